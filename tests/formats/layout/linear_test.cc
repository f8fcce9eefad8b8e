#include "formats/layout/linear.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <vector>

namespace kvcc::linear {
namespace {

std::vector<uint32_t> pack(const std::vector<uint32_t>& codes, uint32_t bits) {
  const uint32_t n = static_cast<uint32_t>(codes.size());
  std::vector<uint32_t> words(row_words(n, bits));
  for (uint32_t w = 0; w < words.size(); ++w) {
    words[w] = make_word(w, n, bits, [&](uint32_t i) { return codes[i]; });
  }
  return words;
}

TEST(Codes, UnpackWhatWasPacked) {
  EXPECT_TRUE(rc::check("get_code(make_word(codes)) == codes, padding is zero", [] {
    const uint32_t bits = *rc::gen::inRange(1u, 9u);
    const auto codes = *rc::gen::container<std::vector<uint32_t>>(rc::gen::inRange(0u, 1u << bits));
    const uint32_t n = static_cast<uint32_t>(codes.size());
    const auto words = pack(codes, bits);
    for (uint32_t i = 0; i < n; ++i) RC_ASSERT(get_code(words.data(), i, bits) == codes[i]);
    // The same as one long number, built bit by bit.
    for (uint32_t j = 0; j < words.size() * 32; ++j) {
      const uint32_t wanted = j < n * bits ? codes[j / bits] >> (j % bits) & 1u : 0u;
      RC_ASSERT((words[j / 32] >> (j % 32) & 1u) == wanted);
    }
  }));
}

TEST(Codes, ThirtyTwoThreeBitValuesTakeThreeWords) {
  EXPECT_EQ(row_words(32, 3), 3u);
  const auto words = pack(std::vector<uint32_t>(32, 7), 3);
  EXPECT_EQ(words, std::vector<uint32_t>(3, 0xffffffffu));
}

TEST(Capacity, IsTwiceTheExpectedCountInStepsOf32) {
  EXPECT_EQ(default_capacity(0.01, 3, 64), 256u);  // 122.88 expected
  EXPECT_EQ(default_capacity(0.01, 8, 80), 832u);  // 409.6
  EXPECT_EQ(default_capacity(0.0, 3, 64), 32u);
}

}  // namespace
}  // namespace kvcc::linear
