// The cache file: what is loaded is what was saved, the page of formats/spec says what is written, and a damaged or
// foreign file is refused.
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "formats/core/text.h"
#include "kernels/host/runtime_file.h"
#include "tests/kernels/runtime/made.h"
#include "tests/spec_tables.h"

namespace kvcc::test {
namespace {

using nlohmann::ordered_json;
using testing::Test;

Sequence load(const KvccArtifact* artifact, const std::string& bytes, const KvccOptions& o = options()) {
  const std::string path = scratch_file();
  std::ofstream(path, std::ios::binary) << bytes;
  KvccSequence* sequence = nullptr;
  const int code = kvcc_load(artifact, path.c_str(), &o, &sequence);
  std::filesystem::remove(path);
  EXPECT_EQ(code == KVCC_OK, sequence != nullptr);
  return Sequence(sequence);
}

ordered_json header_of(const std::string& file) {
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof length);
  return ordered_json::parse(file.substr(8, length));
}
std::string data_of(const std::string& file) {
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof length);
  return file.substr(8 + length);
}

/// The file of a header and data, with the checksum of what they hold.
std::string file_of(ordered_json header, const std::string& data, bool checksum = true) {
  if (checksum) {
    std::map<std::string, std::string> metadata = header["__metadata__"];
    std::map<std::string, ordered_json> tensors;
    std::string text;
    for (const auto& [name, value] : metadata) {
      if (name == "content_sha256") continue;
      text.append("metadata ").append(name).append(" ").append(std::to_string(value.size())).append("\n");
      text.append(value).append("\n");
    }
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") tensors[name] = entry;
    }
    for (const auto& [name, entry] : tensors) {
      std::string shape;
      for (const int64_t n : entry["shape"]) {
        if (!shape.empty()) shape += 'x';
        shape += std::to_string(n);
      }
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      text.append("tensor ")
          .append(name)
          .append(" ")
          .append(entry["dtype"].get<std::string>())
          .append(" ")
          .append(shape);
      text.append(" ").append(std::to_string(end - begin)).append("\n").append(data, begin, end - begin).append("\n");
    }
    header["__metadata__"]["content_sha256"] = sha256_hex(text);
  }
  std::string json = header.dump();
  json.resize((json.size() + 8 + 127) / 128 * 128 - 8, ' ');
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + json + data;
}

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

/// The example of the page, in two pieces: what the artifact is, what is appended.
class Example {
 public:
  Example()
      : made_({.scheme = "k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=1",
               .shape = {1, 1, 1, 16, 16},
               .rope = {1e4, "half-split", "none", "", 16}}) {
    Tree& tree = made_.tree();
    std::vector<float> levels;
    for (int j = 0; j < 8; ++j) levels.push_back(-0.875f + 0.25f * static_cast<float>(j));
    for (const char* at : {"/key/codebook", "/value/codebook"}) {
      tree[at].value = array_value(Element::f32, {1, 1, 8}, levels);
    }
    for (const auto& [name, value] : {std::pair<const char*, float>{"scale", 2},
                                      {"zero", 0.5f},
                                      {"threshold_lower", -1.5f},
                                      {"threshold_upper", 2.5f}}) {
      tree[std::string("/key/") + name].value = array_value(Element::f32, {1, 1, 16}, std::vector<float>(16, value));
    }
    tree["/model"].attributes["name"] = text_value("example");
    tree["/"].attributes["content_sha256"] = text_value(std::string(64, 'a'));
    artifact_ = open(tree_to_safetensors(tree));
    sequence_ = create(artifact_.get());
    std::vector<float> x;
    for (int t = 0; t < 3; ++t) {
      for (int c = 0; c < 16; ++c) {
        const auto channel = static_cast<float>(c);
        x.push_back(t == 0 ? channel / 8 : t == 2 && c == 3 ? 5 : t == 2 && c == 15 ? -7.5f : -1.25f + 0.25f * channel);
      }
    }
    EXPECT_EQ(kvcc_append(sequence_.get(), 0, x.data(), x.data(), 3), KVCC_OK) << kvcc_error_message();
    const int32_t ids[] = {1, 2, 300};
    const made::TemporaryFolder folder;
    EXPECT_EQ(kvcc_save(sequence_.get(), (folder / "f").c_str(), ids, 3), KVCC_OK) << kvcc_error_message();
    file_ = read_text_file(folder / "f");
  }
  const KvccArtifact* artifact() const { return artifact_.get(); }
  const std::string& file() const { return file_; }

 private:
  Made made_;
  Artifact artifact_;
  Sequence sequence_;
  std::string file_;
};

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

void expect_refused(const KvccArtifact* artifact, const std::string& file, const std::string& why) {
  EXPECT_EQ(load(artifact, file), nullptr) << why;
  EXPECT_NE(std::string(kvcc_error_message()).find(why), std::string::npos) << why << "\n" << kvcc_error_message();
}

TEST(CacheFile, RefusesEveryTruncationAndFlippedBit) {
  const Example example;
  const std::string& file = example.file();
  const ordered_json header = header_of(file);
  const size_t padding = 8 + header.dump().size(), data = file.size() - data_of(file).size();
  std::set<size_t> sizes = {padding, data - 1};
  for (size_t size = 0; size < file.size(); size += size < 32 ? 1 : 17) sizes.insert(size);
  for (const auto& [name, entry] : header.items()) {
    for (size_t i = 0; i < 3 && name != "__metadata__"; ++i) {
      sizes.insert(data + entry["data_offsets"][0].get<size_t>() + i - 1);
    }
  }
  for (const size_t size : sizes) ASSERT_EQ(load(example.artifact(), file.substr(0, size)), nullptr) << size;
  EXPECT_EQ(load(example.artifact(), file + "x"), nullptr);
  for (size_t i = 0; i < file.size(); i += 3) {
    if (i >= padding && i < data) continue;  // spaces, or others that JSON takes for none
    std::string flipped = file;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 8));
    ASSERT_EQ(load(example.artifact(), flipped), nullptr) << "byte " << i;
  }
}

TEST(CacheFile, NamesWhatIsWrongWithIt) {
  const Example example;
  const ordered_json header = header_of(example.file());
  const std::string data = data_of(example.file());
  const auto with = [&](const char* name, const char* value) {
    ordered_json changed = header;
    changed["__metadata__"][name] = value;
    return file_of(changed, data);
  };
  const auto* const a = example.artifact();
  expect_refused(a, "", "truncated");
  expect_refused(a, file_of({{"__metadata__", ordered_json::object()}}, ""), "no packed cache");
  expect_refused(a, with("format", "x"), "no packed cache");
  expect_refused(a, with("format_version", "2.0"), "up to 1.x");
  expect_refused(a, with("format_version", "one"), "MAJOR.MINOR");
  expect_refused(a, with("layout", "mma-2"), "mma-1");
  expect_refused(a, with("artifact_sha256", std::string(64, 'b').c_str()), std::string(64, 'b'));
  expect_refused(a, with("artifact_sha256", std::string(64, 'b').c_str()), std::string(64, 'a'));
  expect_refused(a, with("artifact_sha256", "b"), "64 lower-case");
  expect_refused(a, with("sink", "2"), "as the artifact says");
  expect_refused(a, with("kv_heads", "2"), "as the artifact says");
  expect_refused(a, with("tokens", "-1"), "0 to 16777216");
  expect_refused(a, with("tokens", "99999999999999999999"), "0 to 16777216");
  expect_refused(a, with("tokens", "300"), "layers.0.key.pages");
  expect_refused(a, with("tokens", "0"), "layers.0.key.pages");
  expect_refused(a, with("tokens", "2"), "records in order, of filled slots");
  expect_refused(a, with("key_capacity", "4,4"), "1 numbers");
  expect_refused(a, with("key_capacity", "2048"), "1024");
  expect_refused(a, with("key_capacity", "5"), "multiples of 4");
  expect_refused(a, with("key_capacity", "0"), "layers.0.key.pages");
  expect_refused(a, with("key_capacity", ""), "for each layer");
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    ordered_json without = header;  // its bytes become another's, so that no hole gives it away
    without.erase(name);
    without["other"] = entry;
    expect_refused(a, file_of(without, data), name + ": no such tensor");
    ordered_json other = header;
    other[name]["dtype"] = "I8";
    other[name]["shape"] = {end - begin};
    expect_refused(a, file_of(other, data), name + ": I8");
  }
  ordered_json hole = header;
  hole.erase("token_ids");
  expect_refused(a, file_of(hole, data), "bytes of data");
}

// What a page may not hold, with a checksum that is right.
TEST(CacheFile, ChecksWhatReadersRelyOn) {
  const Example example;
  const ordered_json header = header_of(example.file());
  const std::string data = data_of(example.file());
  const auto with = [&](const std::string& tensor, size_t offset, const std::vector<uint16_t>& halves) {
    std::string changed = data;
    std::memcpy(changed.data() + header[tensor]["data_offsets"][0].get<size_t>() + offset, halves.data(),
                halves.size() * 2);
    EXPECT_NE(changed, data);
    return file_of(header, changed);
  };
  const auto* const a = example.artifact();
  const std::string key = "layers.0.key.pages", value = "layers.0.value.pages";
  // Keys: codes 384 bytes, class ends at 384, records at 400. Values: ranges at 384, ends at 640, records at 656.
  const size_t ends = 384, records = 400;
  expect_refused(a, with(key, ends, {3}), "record 2");
  expect_refused(a, with(key, ends + 2, {1}), "class end 1 of class 1; wanted 2 to 4");
  expect_refused(a, with(key, ends, {65535}), "class end 65535 of class 0");
  expect_refused(a, with(key, ends + 14, {5}), "class end 5 of class 7; wanted 2 to 4");
  expect_refused(a, with(key, ends + 14, {3}), "record 2");
  expect_refused(a, with(key, ends, {0, 2}), "records in order");          // then they would be of slots 8 to 15
  expect_refused(a, with(key, records, {0x390f, 0, 0x3903}), "record 0");  // the other way round, codes exchanged
  expect_refused(a, with(key, records, {0x3903 + 16}), "record 0");        // a channel beyond the head
  expect_refused(a, with(key, records, {0x3903 ^ 0x800}), "record 0");     // another code
  expect_refused(a, with(key, records, {0x3903 ^ 0x100}), "record 0");     // another token
  expect_refused(a, with(key, records + 2, {0x7c00}), "finite");
  expect_refused(a, with(value, 384, {0}), "scale not above 0");
  expect_refused(a, with(value, 384, {0x8001}), "scale not above 0");
  expect_refused(a, with(value, 384, {0x7c00}), "range");
  expect_refused(a, with(value, 386, {0xfe00}), "range");
  expect_refused(a, with(value, 640, {3, 3, 3, 3, 3, 3, 3, 3}), "slot 1: 1 outliers; wanted 2");
  expect_refused(a, with("layers.0.key.exact", 6, {0x7e00}), "element 3 is not finite");
}

TEST(CacheFile, RandomDamageWithARightChecksumNeverCrashes) {
  Made made(cases()[3]);
  const Artifact artifact = open(made.bytes());
  const Sequence sequence = create(artifact.get());
  const Text text(made, 150);
  text.append(made, sequence.get(), 0, 150);
  const std::string file = saved(sequence.get());
  const ordered_json header = header_of(file);
  int loaded = 0;
  for (int run = 0; run < 300; ++run) {
    std::string data = data_of(file);
    for (int i = 0; i < 1 + run % 4; ++i) data[made.random()() % data.size()] = static_cast<char>(made.random()());
    const Sequence found = load(artifact.get(), file_of(header, data));
    if (found == nullptr) continue;
    ++loaded;
    std::vector<float> query = made.queries(1), out(made.of().shape.query_heads * 64);
    ASSERT_EQ(kvcc_attend(found.get(), 0, query.data(), 0, 0, out.data()), KVCC_OK);
    for (const float x : out) ASSERT_TRUE(std::isfinite(x));
    text.append(made, found.get(), 0, 100);
  }
  EXPECT_GT(loaded, 20);  // another code, or another value of an outlier, is as good
  EXPECT_LT(loaded, 300);
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
