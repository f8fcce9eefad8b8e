#include "codegen/emit/emit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "codegen/build/compile.h"
#include "codegen/emit/fill.h"
#include "formats/core/error.h"
#include "formats/layout/launch.h"
#include "formats/layout/linear.h"
#include "tests/codegen/golden.h"
#include "tests/codegen/made.h"

namespace kvcc::codegen {
namespace {

using testing::HasSubstr;

std::string refusal(const char* text, const std::map<std::string, std::string>& values) {
  try {
    return "filled: " + fill(text, values, "place");
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Fill, ReplacesNamedPlaceholdersAndNothingElse) {
  EXPECT_EQ(fill("a{@x@}@y_2@", {{"x", "1"}, {"y_2", "@x@"}}, "p"), "a{1}@x@");
  EXPECT_EQ(fill("", {}, "p"), "");
}

TEST(Fill, UnknownUnusedAndLoneMarksAreErrors) {
  EXPECT_THAT(refusal("@x@", {}), HasSubstr("@x@ has no value"));
  EXPECT_THAT(refusal("x", {{"x", "1"}}), HasSubstr("@x@ is not used"));
  EXPECT_THAT(refusal("user@host", {}), HasSubstr("lone @"));
  EXPECT_THAT(refusal("@a b@", {}), HasSubstr("lone @"));
  EXPECT_THAT(refusal("@@", {}), HasSubstr("lone @"));
}

// A few emitted units and headers kept in git, so that a change of the generator shows what it does.
TEST(Golden, UnitsAndHeader) {
  for (const Layout layout : {Layout::linear, Layout::mma}) {
    Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
    const Targets targets{{}, Dtype::f16, layout, {}};
    const std::string folder = layout == Layout::mma ? "mma_" : "";
    Plan p = plan(artifact, targets);
    std::map<std::string, int> shared;  // made up: what compiling would say
    for (const KernelSpec& spec : p.kernels) {
      for (const Entry& entry : entries_of(spec)) shared[entry.symbol] = 1024 * static_cast<int>(shared.size());
    }
    for (const KernelSpec& spec : p.kernels) {
      expect_golden(folder + "uniform/" + spec.name + ".cu", emit_unit(artifact, spec, templates(), "0.0.0"));
    }
    expect_golden(folder + "uniform/kvcc_tiny_3.h", emit_header(artifact, p, templates(), "0.0.0", shared));

    artifact.key.bits = {3, 2, 2, 3};
    p = plan(artifact, targets);
    const auto spec = std::find_if(p.kernels.begin(), p.kernels.end(), [&](const KernelSpec& one) {
      return one.configuration.family == (layout == Layout::mma ? Family::attention : Family::pack_key);
    });
    expect_golden(folder + "mixed/" + spec->name + ".cu", emit_unit(artifact, *spec, templates(), "0.0.0"));
    expect_golden(folder + "mixed/kvcc_tiny_3.h", emit_header(artifact, p, templates(), "0.0.0"));
  }
}

TEST(Golden, UnitsAndHeaderOfVectorCodebooks) {
  for (const char* scheme : {"kvcc-2-head", "kvcc-2-channels"}) {
    const Artifact artifact = made::kernel_artifact(scheme, 2, 2, 3, 64, 64);
    const Plan p = plan(artifact, {});
    const std::string folder = scheme + std::string("kvcc-2-").size();
    for (const KernelSpec& spec : p.kernels) {
      if (spec.configuration.family == Family::copy_pages) continue;  // as of the other layouts
      expect_golden("vector_" + folder + "/" + spec.name + ".cu", emit_unit(artifact, spec, templates(), "0.0.0"));
    }
    expect_golden("vector_" + folder + "/kvcc_tiny_3.h", emit_header(artifact, p, templates(), "0.0.0"));
  }
}

TEST(Unit, OfVectorCodebooksIsTheSameForEveryCodebookOfItsForm) {
  const auto text = [](float seed) {
    Codebook book = made::kernel_codebook("kvcc-2-head", 1, 2, 3, 64, 64);
    for (float& x : book.key.vectors) x += seed;
    const Artifact artifact = describe(book, "a" + std::to_string(seed));
    return emit_unit(artifact, plan(artifact, {}).kernels.at(0), templates(), "0.0.0");
  };
  EXPECT_EQ(text(0), text(1));
}

TEST(Unit, IsShortBesideItsTable) {
  const Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  for (const KernelSpec& spec : plan(artifact, {}).kernels) {
    const std::string text = emit_unit(artifact, spec, templates(), "0.0.0");
    const auto lines = std::count(text.begin(), text.end(), '\n');
    const int tables = spec.configuration.family == Family::attention ? 2 : 1;
    EXPECT_LE(lines - 2 * tables * spec.layers * spec.heads, 20 + 22 * tables) << spec.name;  // two lines a head
  }
}

TEST(Unit, LevelsAreExact) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq2-1%-sink1", 1, 1, 1, 64, 64);
  artifact.key.levels = {-0.1f, -1e-40f, 0x1.fffffep-1f, 1.0f};
  const std::string text = emit_unit(artifact, plan(artifact, {}).kernels[0], templates(), "0.0.0");
  const size_t begin = text.find("head 0\n") + 7;
  std::istringstream table(text.substr(begin, text.find("};", begin) - begin));
  for (const float level : artifact.key.levels) {
    std::string word;
    table >> word;
    EXPECT_EQ(std::strtof(word.c_str(), nullptr), level) << word;
  }
}

TEST(Unit, NamesFromElsewhereCannotLeaveTheirComment) {
  EXPECT_EQ(comment_text("a*/b\nc\\"), "a* /b?c?");
  EXPECT_EQ(comment_text("модель é"), "модель é");
  EXPECT_EQ(identifier("3-bit é.x"), "_3_bit____x");
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 1, 1, 1, 64, 64);
  artifact.model = "evil */ int x; /* \\\n#error";
  const std::string text = emit_header(artifact, plan(artifact, {}), templates(), "0.0.0");
  EXPECT_EQ(text.find("*/ int x"), std::string::npos);
  EXPECT_EQ(text.find("\n#error"), std::string::npos);
}

TEST(Unit, OfCopyPagesIsTheSameForEveryCodebook) {
  const auto text = [](const char* scheme, int dim) {
    const Artifact artifact = made::kernel_artifact(scheme, 1, 1, 1, dim, dim);
    return emit_unit(artifact, plan(artifact, {}).kernels.back(), templates(), "0.0.0");
  };
  EXPECT_THAT(text("kvcc-nuq3-1%-sink1", 64), HasSubstr("KVCC_KERNEL(kvcc_copy_pages__any,"));
  EXPECT_EQ(text("kvcc-nuq3-1%-sink1", 64), text("int4", 32));
}

TEST(Entries, OfTwoStagesAreInTheOrderOfTheirLaunches) {
  const Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 1, 1, 1, 64, 64);
  std::vector<std::string> stages;
  for (const KernelSpec& spec : plan(artifact, {}).kernels) {
    for (const Entry& entry : entries_of(spec)) {
      if (entries_of(spec).size() == 1) continue;
      stages.push_back(entry.family + " " + std::to_string(entry.stage) + " " + entry.when + " " + entry.grid_rule);
      EXPECT_EQ(entry.symbol, "kvcc_" + entry.name);
    }
  }
  EXPECT_THAT(stages, testing::ElementsAre("pack_value_select 0 always kvcc_grid_mma_pack_select",
                                           "pack_value 1 always kvcc_grid_mma_pack",
                                           "attention 0 always kvcc_grid_mma_attention",
                                           "attention_merge 1 splits > 1 kvcc_grid_mma_attention_merge",
                                           "value_mix 0 always kvcc_grid_mma_value_mix",
                                           "value_merge 1 splits > 1 kvcc_grid_value_merge"));
}

TEST(Pages, OfVectorCodebooks) {
  const Artifact artifact = made::kernel_artifact("kvcc-2-head", 2, 2, 3, 64, 64);
  const PageRule key = page_rule(artifact, Layout::vector, true);
  EXPECT_EQ(key.function, "kvcc_vector_page_bytes");
  ASSERT_EQ(key.head_words.size(), 2u);
  for (int l = 0; l < 2;
       ++l) {  // groups of 2 and 4 coordinates in turn, of 0 to 3 bits in turn from the unit's number on
    uint32_t words = 0;
    for (int h = 0; h < 2; ++h) {
      EXPECT_EQ(key.head_words[l][h], words);
      uint32_t bits = 0, group = 2 * l + h;
      for (int at = 0; at < 64; ++group) {
        bits += group % 4;
        at += group % 2 == 0 ? 2 : 4;
      }
      words += 8 * ((2 * bits + 7) / 8);
    }
    EXPECT_EQ(key.code_words[l], static_cast<int32_t>(words));
  }
}

TEST(Pages, AreThoseOfTheLayout) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 128);
  artifact.key.bits = {3, 2, 2, 3};
  const PageRule key = page_rule(artifact, Layout::mma, true), value = page_rule(artifact, Layout::mma, false);
  EXPECT_EQ(key.function, "kvcc_mma_page_bytes");
  EXPECT_THAT(key.code_words, testing::ElementsAre(640, 640));  // 2 x 64 x 3 and 2 x 64 x 2
  EXPECT_THAT(key.head_words, testing::ElementsAre(testing::ElementsAre(0, 384), testing::ElementsAre(0, 256)));
  EXPECT_EQ(key.classes, 8);
  EXPECT_EQ(key.default_capacity, 96);  // twice 1 % of 64 x 64 codes is 81.9: the next step of 16
  EXPECT_EQ(value.classes, 8);
  EXPECT_EQ(value.ranges, 1);
  EXPECT_EQ(value.tail, 2);  // of 256 channels
  EXPECT_TRUE(value.head_words.empty());
  EXPECT_EQ(value.default_capacity, 272);  // 2 x 2 tails of 256 channels, twice that of 64 x 128 codes is 256
  const Artifact dense = made::kernel_artifact("k=nuq3@prerope/channel,v=nuq3@token,sparse=0%", 1, 1, 1, 64, 64);
  for (const bool keys : {true, false}) {
    EXPECT_EQ(page_rule(dense, Layout::mma, keys).classes, 0);
    EXPECT_EQ(page_rule(dense, Layout::mma, keys).default_capacity, 0);
  }
}

// launch.h repeats a few facts in C; they must be those of the layout.
TEST(Launch, RepeatsTheLayout) {
  EXPECT_EQ(uint32_t{KVCC_PAGE_TOKENS}, linear::kPageTokens);
  for (const uint32_t words : {1u, 31u, 1152u}) {
    for (const auto sparse : {linear::Sparse::none, linear::Sparse::csr, linear::Sparse::tail}) {
      for (const uint32_t ranges : {0u, 1u}) {
        const uint32_t tail = sparse == linear::Sparse::tail ? 3 : 0;
        const uint32_t capacity = sparse == linear::Sparse::csr ? 100 : 0;
        const uint32_t entries = capacity + linear::kPageTokens * 2 * tail;
        EXPECT_EQ(static_cast<uint64_t>(kvcc_page_bytes(words, ranges, sparse == linear::Sparse::csr, tail, capacity)),
                  linear::page_bytes({words, ranges, sparse, entries}));
      }
    }
  }
}

}  // namespace
}  // namespace kvcc::codegen
