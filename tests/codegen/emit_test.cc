#include "codegen/emit/emit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "codegen/build/compile.h"
#include "codegen/emit/fill.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/layout/launch.h"
#include "formats/layout/linear.h"
#include "tests/codegen/made.h"

namespace kvcc::codegen {
namespace {

using testing::HasSubstr;

Templates templates() {
  Templates result;
  for (const std::string& name : template_names()) {
    result[name] = read_text_file(std::string(KVCC_SOURCE_DIR) + "/codegen/templates/" + name);
  }
  return result;
}

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

/// First line that differs, with its neighbours: what a reviewer wants to see.
std::string difference(const std::string& wanted, const std::string& found) {
  std::istringstream a(wanted), b(found);
  std::string left, right, out;
  for (int line = 1; out.size() < 2000; ++line) {
    const bool more_a = static_cast<bool>(std::getline(a, left)), more_b = static_cast<bool>(std::getline(b, right));
    if (!more_a && !more_b) break;
    if (more_a != more_b || left != right) {
      out +=
          std::to_string(line) + ":\n  - " + (more_a ? left : "(end)") + "\n  + " + (more_b ? right : "(end)") + "\n";
    }
  }
  return out;
}

void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(KVCC_SOURCE_DIR) + "/tests/golden/codegen/" + name;
  if (std::getenv("KVCC_UPDATE_GOLDEN") != nullptr) {
    make_folder(std::filesystem::path(path).parent_path().string());
    write_if_different(path, text);
  }
  ASSERT_TRUE(std::filesystem::exists(path)) << path << " is missing: make golden";
  const std::string kept = read_text_file(path);
  EXPECT_TRUE(kept == text) << name << " differs; if that is meant: make golden\n" << difference(kept, text);
}

// A few emitted units and headers kept in git, so that a change of the generator shows what it does.
TEST(Golden, UnitsAndHeader) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  Plan p = plan(artifact, {});
  for (const KernelSpec& spec : p.kernels) {
    expect_golden("uniform/" + spec.name + ".cu", emit_unit(artifact, spec, templates(), "0.0.0"));
  }
  expect_golden("uniform/kvcc_tiny_3.h", emit_header(artifact, p, templates(), "0.0.0"));

  artifact.key.bits = {3, 2, 2, 3};
  p = plan(artifact, {});
  expect_golden("mixed/" + p.kernels[0].name + ".cu", emit_unit(artifact, p.kernels[0], templates(), "0.0.0"));
  expect_golden("mixed/kvcc_tiny_3.h", emit_header(artifact, p, templates(), "0.0.0"));
}

TEST(Unit, IsShortBesideItsTable) {
  const Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  for (const KernelSpec& spec : plan(artifact, {}).kernels) {
    const std::string text = emit_unit(artifact, spec, templates(), "0.0.0");
    const auto lines = std::count(text.begin(), text.end(), '\n');
    EXPECT_LE(lines - 2 * spec.layers * spec.heads, 40) << spec.name;  // the table takes two lines a head
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
