// Which models' GGUF files have the rows of keys interleaved: the export says what the reader of models knows.
#include <gtest/gtest.h>

#include "formats/core/error.h"
#include "formats/export/export.h"
#include "formats/weights/architecture.h"

namespace kvcc {
namespace {

TEST(InterleavedKeys, AreThoseOfTheTableOfArchitectures) {
  int known = 0;
  for (const Architecture& architecture : architectures()) {
    const std::string name = architecture.name;
    if (name.starts_with("deepseek")) {
      EXPECT_THROW(gguf_interleaves_keys(name), Error) << name;
      continue;
    }
    EXPECT_EQ(gguf_interleaves_keys(name), architecture.gguf_interleaves) << name;
    ++known;
  }
  EXPECT_GE(known, 14);
}

TEST(InterleavedKeys, AreNotGuessed) { EXPECT_THROW(gguf_interleaves_keys("gpt_neox"), Error); }

}  // namespace
}  // namespace kvcc
