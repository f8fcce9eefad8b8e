// What is done about spills, with an nvcc that spills as it is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "codegen/build/nvcc.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "tests/formats/store/made.h"

namespace kvcc::codegen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Bounds = std::map<std::string, int>;

const char* const kPtx =
    ".visible .entry a(\n.param .u64 a_param_0\n)\n.maxntid 128, 1, 1\n.minnctapersm 12\n{\nret;\n}\n"
    ".visible .entry none(\n)\n{\nret;\n}\n"
    ".visible .entry b(\n)\n.maxntid 128\n.minnctapersm 3\n{\nret;\n}\n";

TEST(MinBlocks, AreReadAndReplacedByEntry) {
  EXPECT_EQ(min_blocks_of(kPtx), (Bounds{{"a", 12}, {"none", 0}, {"b", 3}}));
  const std::string lower = with_min_blocks(kPtx, {{"a", 9}, {"none", 2}});
  EXPECT_EQ(min_blocks_of(lower), (Bounds{{"a", 9}, {"none", 0}, {"b", 3}}));
  EXPECT_EQ(with_min_blocks(lower, {{"a", 12}}), kPtx);
  EXPECT_THAT(min_blocks_of(".global .u32 x;\n"), IsEmpty());
}

/// An nvcc whose entries a and b spill 8 bytes a block above the given ones, and which counts its runs.
struct Spilling {
  explicit Spilling(int a, int b) {
    const auto entry = [](const char* name, const char* line, int most) {
      return "n=$(sed -n '" + std::string(line) + "s/.minnctapersm //p' k.ptx); s=$(( n > " + std::to_string(most) +
             " ? 8 * (n - " + std::to_string(most) + ") : 0 ))\necho \"ptxas info : Compiling entry function '" + name +
             "' for 'sm_90'\"\necho \"$s bytes stack frame, $s bytes spill stores, 0 bytes spill loads\"\n" +
             "echo \"ptxas info : Used 40 registers\"\n";
    };
    write_text_file(folder / "nvcc", "#!/bin/sh\necho run >> '" + (folder / "count") + "'\ncp k.ptx out.cubin\n" +
                                         entry("a", "5", a) +
                                         "echo \"ptxas info : Compiling entry function 'none' for 'sm_90'\"\n"
                                         "echo \"ptxas info : Used 4 registers\"\n" +
                                         entry("b", "17", b));
    std::filesystem::permissions(folder / "nvcc", std::filesystem::perms::owner_all);
  }
  Compiled assembled() const {
    const Nvcc nvcc{folder / "nvcc", "13.0.88", {}};
    return assemble(nvcc, "k", std::string(kPtx) + "// " + folder.path(), "sm_90", folder / "cache");
  }
  size_t runs() const { return read_text_file(folder / "count").size() / 4; }
  made::TemporaryFolder folder;
};

TEST(Spills, WhatFitsIsAssembledOnce) {
  const Spilling nvcc(12, 3);
  const Compiled cubin = nvcc.assembled();
  EXPECT_EQ(cubin.min_blocks, (Bounds{{"a", 12}, {"none", 0}, {"b", 3}}));
  EXPECT_FALSE(cubin.lowered);
  EXPECT_EQ(nvcc.runs(), 1u);
  EXPECT_THAT(check_spills("k", "sm_90", cubin, true), IsEmpty());
}

TEST(Spills, EntriesThatSpillGetFewerBlocksUntilTheyDoNot) {
  const Spilling nvcc(9, 2);
  const Compiled cubin = nvcc.assembled();
  EXPECT_EQ(cubin.min_blocks, (Bounds{{"a", 9}, {"none", 0}, {"b", 2}}));
  EXPECT_EQ(min_blocks_of(cubin.binary), cubin.min_blocks);  // the cubin is of the text with those
  EXPECT_TRUE(cubin.lowered);
  EXPECT_FALSE(cubin.cached);
  EXPECT_EQ(nvcc.runs(), 4u);
  EXPECT_THAT(check_spills("k", "sm_90", cubin, true), IsEmpty());
  const Compiled again = nvcc.assembled();
  EXPECT_TRUE(again.cached && again.lowered);
  EXPECT_EQ(again.min_blocks, cubin.min_blocks);
  EXPECT_EQ(again.binary, cubin.binary);
  EXPECT_EQ(nvcc.runs(), 4u);
}

TEST(Spills, WhatSpillsAtOneBlockIsAnErrorOfShippedConfigurations) {
  const Spilling nvcc(12, 0);
  const Compiled cubin = nvcc.assembled();
  EXPECT_EQ(cubin.min_blocks, (Bounds{{"a", 12}, {"none", 0}, {"b", 1}}));
  EXPECT_EQ(cubin.usage.at("b").spill_bytes, 8);
  EXPECT_EQ(nvcc.runs(), 3u);
  EXPECT_THAT(check_spills("k", "sm_90", cubin, false), ElementsAre(HasSubstr("k for sm_90: b spills 8 bytes")));
  try {
    check_spills("k", "sm_90", cubin, true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    EXPECT_THAT(error.what(), HasSubstr("k for sm_90: b spills 8 bytes"));
  }
}

}  // namespace
}  // namespace kvcc::codegen
