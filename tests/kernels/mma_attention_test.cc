// The oracle of attention: against scores and mix computed apart, and its bound of how far errors of the scores carry.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/reference/attention.h"
#include "tests/kernels/mma_cases.h"

namespace kvcc::test {
namespace {

using reference::AttentionShape;
using reference::Rotation;

Rotation rotation_of(const MmaRope& rope) { return {rope.interleaved, rope.frequencies, rope.factor}; }

TEST(ReferenceAttention, IsTheMixByTheSoftmaxOfTheScores) {
  std::mt19937 random(21);
  const int heads = 2, group = 3, tokens = 90, dim = 32, value_dim = 48;
  const auto key = make_rows(tokens, heads * dim, random), value = make_rows(tokens, heads * value_dim, random);
  const auto query = make_rows(heads * group, dim, random);
  for (const int64_t window : {0, 1, 40, 90, 500}) {
    for (const bool interleaved : {false, true}) {
      const MmaRope rope = make_mma_rope(16, interleaved, tokens, 1.25);
      const AttentionShape shape{heads, dim, value_dim, group, window, 0.125f};
      const auto found = reference::attention(key, value, query, shape, rotation_of(rope));
      const auto scores = reference::key_scores(key, query, heads, dim, group, rotation_of(rope), 0.125f);
      std::vector<float> weights(heads * group * tokens, 0.0f);
      for (int row = 0; row < heads * group; ++row) {
        const int first = window > 0 ? std::max<int>(0, tokens - static_cast<int>(window)) : 0;
        double sum = 0;
        for (int t = first; t < tokens; ++t) sum += std::exp(scores.value[row * tokens + t]);
        for (int t = first; t < tokens; ++t) {
          weights[row * tokens + t] = static_cast<float>(std::exp(scores.value[row * tokens + t]) / sum);
        }
        EXPECT_NEAR(found.sum[row] * std::exp(found.peak[row]), sum, 1e-12 * sum);
      }
      const auto wanted = reference::value_mix(value, weights, heads, value_dim, group);
      for (size_t i = 0; i < wanted.value.size(); ++i) {
        ASSERT_NEAR(found.value[i], wanted.value[i], 1e-7 * wanted.magnitude[i]);
        ASSERT_NEAR(found.magnitude[i], wanted.magnitude[i], 1e-7 * wanted.magnitude[i]);
      }
    }
  }
}

TEST(ReferenceAttention, AnglesAgreeWithTablesAndWithBlockRelativeOnes) {
  std::mt19937 random(22);
  const int heads = 1, dim = 64, rotary = 32, tokens = 200;
  const auto key = make_rows(tokens, dim, random), query = make_rows(1, dim, random);
  for (const bool interleaved : {false, true}) {
    const MmaRope rope = make_mma_rope(rotary, interleaved, tokens);
    const auto exact = reference::key_scores(key, query, heads, dim, 1, rotation_of(rope), 1.0f);
    const auto table = reference::key_scores(key, query, heads, dim, 1, make_rope(rotary, interleaved, tokens), 1.0f);
    reference::RopeTable block = make_rope(rotary, interleaved, tokens);
    for (int p = 0; p < tokens; ++p) {
      for (int i = 0; i < rotary / 2; ++i) {
        const int base = p / 64 * (rotary / 2) + i, relative = p % 64 * (rotary / 2) + i;
        const double c = half_to_float(rope.relative_cosine[relative]), s = half_to_float(rope.relative_sine[relative]);
        block.cosine[p * rotary / 2 + i] = static_cast<float>(rope.base_cosine[base] * c - rope.base_sine[base] * s);
        block.sine[p * rotary / 2 + i] = static_cast<float>(rope.base_sine[base] * c + rope.base_cosine[base] * s);
      }
    }
    const auto relative = reference::key_scores(key, query, heads, dim, 1, block, 1.0f);
    for (int t = 0; t < tokens; ++t) {
      ASSERT_NEAR(table.value[t], exact.value[t], 1e-6 * exact.magnitude[t]) << t;
      ASSERT_NEAR(relative.value[t], exact.value[t], std::ldexp(1.5, -11) * exact.magnitude[t]) << t;
    }
  }
}

TEST(ReferenceAttention, SensitivityBoundsWhatErrorsOfTheScoresDo) {
  std::mt19937 random(23);
  const int dim = 32, tokens = 70;
  const auto key = make_rows(tokens, dim, random), value = make_rows(tokens, dim, random);
  const auto query = make_rows(1, dim, random);
  const AttentionShape shape{1, dim, dim, 1, 0, 0.25f};
  const auto exact = reference::attention(key, value, query, shape, {});
  const double e = 1e-4;
  bool near = false;
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<float> off = key;  // each term of each score is off by at most e
    for (float& k : off) k *= random() % 2 ? 1.0f + static_cast<float>(e) : 1.0f - static_cast<float>(e);
    const auto found = reference::attention(off, value, query, shape, {});
    for (size_t i = 0; i < exact.value.size(); ++i) {
      const double error = std::fabs(found.value[i] - exact.value[i]);
      ASSERT_LE(error, 1.01 * e * exact.sensitivity[i] + 1e-12);
      near = near || error > 0.1 * e * exact.sensitivity[i];
    }
  }
  EXPECT_TRUE(near) << "the bound says little";
}

TEST(ReferenceAttention, NothingVisibleGivesZeros) {
  const std::vector<float> query(32, 1.0f);
  const auto found = reference::attention({}, {}, query, {2, 16, 16, 1, 0, 1.0f}, {});
  EXPECT_EQ(found.value, std::vector<double>(32, 0.0));
  EXPECT_EQ(found.sum, std::vector<double>(2, 0.0));
}

}  // namespace
}  // namespace kvcc::test
