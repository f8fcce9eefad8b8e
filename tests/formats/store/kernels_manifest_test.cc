#include "formats/store/kernels_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "tests/formats/store/made.h"
#include "tests/spec_tables.h"

namespace kvcc {
namespace {

using made::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// An ELF header, a section of 16 bytes, and headers of it and of one that takes no bytes of the file.
std::string cubin() {
  const auto put = [](std::string& to, size_t at, uint64_t value, size_t width) {
    for (size_t i = 0; i < width; ++i) to[at + i] = static_cast<char>(value >> 8 * i);
  };
  std::string bytes = std::string("\x7f") + "ELF\x02\x01\x01" + std::string(64 - 7, '\0') + std::string(16, 'c') +
                      std::string(2 * 64, '\0');
  put(bytes, 40, 80, 8);  // where the section headers are, how large each, how many
  put(bytes, 58, 64, 2);
  put(bytes, 60, 2, 2);
  for (const auto& [entry, type, offset, size] : {std::array<size_t, 4>{80, 1, 64, 16}, {144, 8, 80, 1 << 20}}) {
    put(bytes, entry + 4, type, 4);
    put(bytes, entry + 24, offset, 8);
    put(bytes, entry + 32, size, 8);
  }
  return bytes;
}

KernelsManifest manifest() {
  KernelsManifest out;
  out.content_sha256 = sha256_hex("artifact");
  out.artifact = "модель.kvcb";
  out.scheme = "kvcc-nuq3-1%-sink1";
  out.model = "tiny";
  out.tool_version = "0.1.0";
  out.nvcc_version = "13.0.88";
  out.files = {{"a.cu", sha256_hex("source")}, {"a.cubin", sha256_hex(cubin())}};
  KernelEntry entry;
  entry.name = "key_scores_nuq3_d64__linear1";
  entry.symbol = "_Z10key_scores";
  entry.family = "key_scores";
  entry.spec = {{"bits", 3}, {"head_dim", 64}};
  entry.arch = "sm_90";
  entry.source = "a.cu";
  entry.cubin = "a.cubin";
  entry.registers = 40;
  entry.shared_bytes = 1024;
  entry.min_blocks = 3;
  entry.launch = {{128, 1, 1}, 32, "host", "kvcc_grid_mma_attention", 4096, 1, "splits > 1"};
  entry.arguments = {{"query", "const float*", {"query_heads", "64"}}, {"tokens", "int", {}}};
  out.kernels = {entry};
  out.pages["key"] = {"kvcc_mma_page_bytes", {640, 640}, {{0, 384}, {0, 256}}, 1, 0, 8, 2, 96};
  out.pages["value"] = {"kvcc_mma_page_bytes", {768, 768}, {}, 0, 0, 0, 0, 0};
  return out;
}

TEST(KernelsManifest, RoundTripAndOrder) {
  const TemporaryFolder folder;
  write_text_file(folder / "kernels.json", kernels_manifest_text(manifest()));
  const KernelsManifest read = read_kernels_manifest(folder.path());
  EXPECT_EQ(to_json(read), to_json(manifest()));
  EXPECT_EQ(read.kernels[0].launch.block, (std::array<int, 3>{128, 1, 1}));
  EXPECT_THAT(read.kernels[0].arguments[0].shape, ElementsAre("query_heads", "64"));
  EXPECT_EQ(to_json(read).begin().key(), "schema_version");
  EXPECT_EQ(read.kernels[0].launch.dynamic_shared_bytes, 4096);
  EXPECT_EQ(read.kernels[0].launch.when, "splits > 1");
  EXPECT_EQ(read.kernels[0].min_blocks, 3);
  EXPECT_EQ(read.pages.at("key").head_words, (std::vector<std::vector<uint32_t>>{{0, 384}, {0, 256}}));
  EXPECT_TRUE(read.pages.at("value").head_words.empty());
}

TEST(KernelsManifest, ThoseOfVersionOneAreRead) {
  nlohmann::ordered_json document = to_json(manifest());
  document.erase("schema_minor");
  document.erase("pages");
  document["kernels"][0].erase("min_blocks");
  for (const char* member : {"grid", "stage", "when", "dynamic_shared_bytes"}) {
    document["kernels"][0]["launch"].erase(member);
  }
  const KernelsManifest read = kernels_from_json(document, "kernels.json");
  EXPECT_TRUE(read.pages.empty());
  EXPECT_EQ(read.kernels[0].launch.grid, "");
  EXPECT_EQ(read.kernels[0].launch.dynamic_shared_bytes, -1);
  EXPECT_EQ(read.kernels[0].min_blocks, 0);
  EXPECT_EQ(read.kernels[0].launch.when, "always");
}

TEST(KernelsManifest, MembersAreNamedWhenWrong) {
  const auto refused = [](const std::function<void(nlohmann::ordered_json&)>& edit) -> std::string {
    nlohmann::ordered_json document = to_json(manifest());
    edit(document);
    try {
      kernels_from_json(document, "kernels.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused([](auto& d) { d["schema_version"] = 2; }),
              HasSubstr("kernels format 2, this build reads up to 1"));
  EXPECT_THAT(refused([](auto& d) { d["layout"] = "mma-7"; }),
              AllOf(HasSubstr("'layout' is \"mma-7\""), HasSubstr("linear-1, mma-1 or vector-1")));
  EXPECT_THAT(refused([](auto& d) { d["layout"] = "mma-1"; }), "accepted");
  EXPECT_THAT(refused([](auto& d) { d.erase("content_sha256"); }), HasSubstr("'content_sha256' is missing"));
  EXPECT_THAT(refused([](auto& d) { d["kernels"][0].erase("launch"); }), HasSubstr("'launch' is missing"));
  EXPECT_THAT(refused([](auto& d) { d["kernels"][0]["registers"] = "40"; }), HasSubstr("'registers' is \"40\""));
  EXPECT_THAT(refused([](auto& d) { d["kernels"][0]["launch"]["block"] = {1, 2}; }), HasSubstr("'block'"));
  EXPECT_THAT(refused([](auto& d) { d["pages"]["key"].erase("code_words"); }), HasSubstr("pages of key"));
  EXPECT_THAT(refused([](auto& d) { d["kernels"][0]["launch"].erase("stage"); }), HasSubstr("'stage' is missing"));
  EXPECT_THAT(refused([](auto& d) { d["kernels"] = 3; }), HasSubstr("'kernels'"));
}

TEST(KernelsManifest, ValidateChecksFilesAndSpills) {
  const TemporaryFolder folder;
  KernelsManifest content = manifest();
  write_text_file(folder / "a.cu", "source");
  write_text_file(folder / "a.cubin", cubin());
  write_text_file(folder / "kernels.json", kernels_manifest_text(content));
  EXPECT_THAT(validate_kernels(folder.path()), IsEmpty());
  content.kernels[0].spill_bytes = 8;
  content.kernels[0].ptx = "a.ptx";
  content.kernels.push_back(content.kernels[0]);
  content.files["gone.h"] = std::string(64, '0');
  write_text_file(folder / "kernels.json", kernels_manifest_text(content));
  write_text_file(folder / "a.cu", "changed");
  EXPECT_THAT(validate_kernels(folder.path()),
              UnorderedElementsAre(HasSubstr("a.cu: its sha256"), HasSubstr("gone.h: missing"),
                                   HasSubstr("spills 8 bytes"), HasSubstr("spills 8 bytes"), HasSubstr("listed twice"),
                                   HasSubstr("a.ptx is not listed"), HasSubstr("a.ptx is not listed")));
}

TEST(KernelsManifest, ABrokenCubinIsNotSoundThoughItsHashIsListed) {
  const auto problems = [](const std::string& bytes) {
    const TemporaryFolder folder;
    KernelsManifest content = manifest();
    content.files["a.cubin"] = sha256_hex(bytes);
    write_text_file(folder / "a.cu", "source");
    write_text_file(folder / "a.cubin", bytes);
    write_text_file(folder / "kernels.json", kernels_manifest_text(content));
    return validate_kernels(folder.path());
  };
  const std::string good = cubin();
  EXPECT_THAT(problems(good), IsEmpty());
  EXPECT_THAT(problems("nvcc: fatal error"), ElementsAre(HasSubstr("a.cubin: does not begin as a 64-bit ELF file")));
  EXPECT_THAT(problems(""), ElementsAre(HasSubstr("a.cubin: does not begin")));
  for (const size_t length : {6, 63, 64, 79, 80, 143, 144, 207}) {
    EXPECT_THAT(problems(good.substr(0, length)), ElementsAre(HasSubstr("a.cubin: truncated"))) << length;
  }
  std::string other = good;
  other[60] = 0;
  EXPECT_THAT(problems(other), ElementsAre(HasSubstr("a.cubin: 0 section headers of 64 bytes")));
  other = good;
  other[80 + 32] = 120;  // of 376 bytes, from byte 64 on
  other[80 + 33] = 1;
  EXPECT_THAT(problems(other), ElementsAre(HasSubstr("wanted 376 of section 0 from byte 64")));
  other = good;
  other[33] = 1;  // a program header of 56 bytes from byte 256 on
  other[54] = 56;
  other[56] = 1;
  EXPECT_THAT(problems(other), ElementsAre(HasSubstr("wanted 56 of program headers from byte 256")));
  other = good;
  for (size_t i = 0; i < 8; ++i) other[40 + i] = '\xff';  // where adding would wrap around
  EXPECT_THAT(problems(other), ElementsAre(HasSubstr("truncated: 208 bytes; wanted 2 section headers")));
}

TEST(KernelsManifest, ReaderRequiresWhatThePageSays) {
  auto tables = spec_tables("kernels.md", 5, ", ");
  const Rows rows = tables["member, type, required, since, meaning"];
  ASSERT_GT(rows.size(), 40u);
  int tried = 0;
  for (const std::vector<std::string>& row : rows) {
    const std::string name = row.at(0).substr(1, row.at(0).size() - 2);
    nlohmann::ordered_json document = to_json(manifest());
    nlohmann::ordered_json& entry = document["kernels"][0];
    nlohmann::ordered_json* places[] = {&document, &entry, &entry["launch"], nullptr};
    if (!document["pages"].empty()) places[3] = &*document["pages"].begin();
    nlohmann::ordered_json* place = nullptr;
    for (nlohmann::ordered_json* object : places) {
      if (place == nullptr && object != nullptr && object->contains(name)) place = object;
    }
    if (place == nullptr) continue;  // of the CPU's units, or only of heads of several widths
    const nlohmann::ordered_json& value = place->at(name);
    EXPECT_EQ(row.at(1), value.is_string()           ? "text"
                         : value.is_number_integer() ? "integer"
                         : value.is_array()          ? "list"
                         : value.is_object()         ? "object"
                                                     : "another type")
        << name;
    place->erase(name);
    ++tried;
    std::string message;
    try {
      kernels_from_json(document, "kernels.json");
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_EQ(message.find("'" + name + "' is missing") != std::string::npos, row.at(2) != "no")
        << name << ": " << message;
  }
  EXPECT_GT(tried, 30);
}

}  // namespace
}  // namespace kvcc
