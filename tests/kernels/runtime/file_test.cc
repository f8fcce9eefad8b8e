// The cache file: what is loaded is what was saved, and the page of formats/spec says what is written.
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <regex>

#include "kernels/host/runtime_file.h"
#include "tests/kernels/runtime/files.h"
#include "tests/spec_tables.h"

namespace kvcc::test {
namespace {

class Files : public testing::TestWithParam<Case> {};

TEST_P(Files, ContinueWhereTheyWereSaved) {
  Made made(GetParam());
  const Artifact artifact = open(made.bytes());
  const CacheShape& s = made.of().shape;
  for (const int64_t tokens : {0, 1, 5, 100, 300}) {
    const Text text(made, tokens + 100);
    const Sequence straight = create(artifact.get(), options(2));
    text.append(made, straight.get(), 0, tokens);
    const std::string file = saved(straight.get());
    const Sequence loaded = load(artifact.get(), file);
    ASSERT_NE(loaded, nullptr) << kvcc_error_message();
    EXPECT_TRUE(saved(loaded.get()) == file);
    const std::vector<float> query = made.queries(100);
    std::vector<float> a(100 * s.query_heads * s.value_head_dim), b(a.size());
    for (int l = 0; l < s.layers; ++l) {
      ASSERT_EQ(kvcc_length(loaded.get(), l), tokens);
      for (const auto& [sequence, out] : {std::pair{straight.get(), &a}, {loaded.get(), &b}}) {
        ASSERT_EQ(kvcc_append_attend(sequence, l, text.key[l].data() + tokens * made.key_columns(),
                                     text.value[l].data() + tokens * made.value_columns(), query.data(), 100, 0, 0,
                                     out->data()),
                  KVCC_OK)
            << kvcc_error_message();
      }
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * 4), 0) << "layer " << l << " after " << tokens << " tokens";
    }
    EXPECT_TRUE(saved(loaded.get()) == saved(straight.get()));
  }
}
INSTANTIATE_TEST_SUITE_P(Schemes, Files, testing::ValuesIn(cases()));

std::string page_text() { return read_text_file(std::string(KVCC_SOURCE_DIR) + "/formats/spec/cache-file.md"); }

TEST(CacheFilePage, ExampleIsWhatIsWritten) {
  const Example example;
  std::string header = header_of(example.file()).dump();
  const std::string page = page_text();
  const size_t begin = page.find("```\n{") + 4, end = page.find("```", begin);
  ASSERT_NE(begin, std::string::npos + 4) << header;
  std::string stated = page.substr(begin, end - begin);
  stated.erase(std::remove(stated.begin(), stated.end(), '\n'), stated.end());
  EXPECT_EQ(stated, header);
  const std::string data = data_of(example.file());
  std::string built(data.size(), '\0');
  const Rows stated_bytes = spec_tables("cache-file.md", 1, "")["offset in the data"];
  for (const auto& row : stated_bytes) {
    std::istringstream bytes(row.at(1));
    size_t at = std::stoul(row.at(0));
    for (std::string byte; bytes >> byte; ++at) built.at(at) = static_cast<char>(std::stoul(byte, nullptr, 16));
  }
  EXPECT_TRUE(built == data);
  for (size_t at = 0; at < data.size() && built != data; at += 16) {  // what the page should say
    const std::string part = data.substr(at, 16);
    if (part.find_first_not_of('\0') == std::string::npos) continue;
    std::printf("| %zu |", at);
    for (const char c : part) std::printf(" %02x", static_cast<unsigned char>(c));
    std::printf(" |\n");
  }
  EXPECT_EQ((example.file().size() - data.size()) % 128, 0u);
}

TEST(CacheFilePage, TablesNameEveryFieldAndTensor) {
  const Example example;
  const ordered_json header = header_of(example.file());
  auto tables = spec_tables("cache-file.md", 2, " ");
  std::set<std::string> fields, found;
  for (const auto& row : tables["name value"]) {
    const std::string name = row.at(0).substr(1, row.at(0).size() - 2);
    fields.insert(name);
    if (row.at(1)[0] != '`') continue;
    EXPECT_EQ("`" + header["__metadata__"].value(name, "") + "`", row.at(1)) << name;
  }
  for (const auto& [name, value] : header["__metadata__"].items()) found.insert(name);
  EXPECT_EQ(fields, found);
  std::map<std::string, std::string> tensors, written;
  for (const auto& row : tables["name dtype"]) {
    tensors[std::regex_replace(row.at(0).substr(1, row.at(0).size() - 2), std::regex("\\{.*\\}"), "0")] = row.at(1);
  }
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") written[name] = entry["dtype"];
  }
  EXPECT_EQ(tensors, written);
  EXPECT_NE(page_text().find("# The cache file, format " + std::string(host::kCacheVersion) + "\n"), std::string::npos);
}

TEST(CacheFile, KeepsTheIdsOfTheText) {
  const Example example;
  const Sequence loaded = load(example.artifact(), example.file());
  ASSERT_NE(loaded, nullptr) << kvcc_error_message();
  const int32_t* ids = nullptr;
  int64_t count = 0;
  ASSERT_EQ(kvcc_tokens(loaded.get(), &ids, &count), KVCC_OK);
  ASSERT_EQ(count, 3);
  EXPECT_EQ(ids[2], 300);
  const Sequence fresh = create(example.artifact());
  ASSERT_EQ(kvcc_tokens(fresh.get(), &ids, &count), KVCC_OK);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(ids, nullptr);
}

TEST(CacheFile, IsGoodInAnotherOrderAndWithAdditions) {
  const Example example;
  const ordered_json header = header_of(example.file());
  const std::string data = data_of(example.file());
  ordered_json other;
  std::string moved;
  std::vector<std::string> names;
  for (const auto& [name, entry] : header.items()) names.push_back(name);
  std::reverse(names.begin(), names.end());
  for (const std::string& name : names) {
    other[name] = header[name];
    if (name == "__metadata__") continue;
    const size_t begin = header[name]["data_offsets"][0], end = header[name]["data_offsets"][1];
    other[name]["data_offsets"] = {moved.size(), moved.size() + end - begin};
    moved += data.substr(begin, end - begin);
  }
  const Sequence loaded = load(example.artifact(), file_of(other, moved, false));
  ASSERT_NE(loaded, nullptr) << kvcc_error_message();
  other["__metadata__"]["format_version"] = "1.7";
  other["__metadata__"]["later"] = "x";
  other["later"] = {{"dtype", "U8"}, {"shape", {2}}, {"data_offsets", {moved.size(), moved.size() + 2}}};
  const Sequence later = load(example.artifact(), file_of(other, moved + "ab"));
  EXPECT_NE(later, nullptr) << kvcc_error_message();
}

TEST(CacheFile, ReplacesAFileOnlyWhenItIsWhole) {
  const Example example;
  const Sequence loaded = load(example.artifact(), example.file());
  const made::TemporaryFolder folder;
  write_text_file(folder / "cache", "before");
  ASSERT_EQ(kvcc_save(loaded.get(), (folder / "cache").c_str(), nullptr, 0), KVCC_OK);
  EXPECT_NE(read_text_file(folder / "cache"), "before");
  EXPECT_EQ(kvcc_save(loaded.get(), (folder / "no such folder/cache").c_str(), nullptr, 0), KVCC_BAD_INPUT);
  EXPECT_EQ(kvcc_save(loaded.get(), folder.path().c_str(), nullptr, 0), KVCC_BAD_INPUT);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1000, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);  // as if the disk were full
  const std::string whole = read_text_file(folder / "cache");
  EXPECT_EQ(kvcc_save(loaded.get(), (folder / "cache").c_str(), nullptr, 0), KVCC_NO_MEMORY) << kvcc_error_message();
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(read_text_file(folder / "cache") == whole);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace kvcc::test
