// Block-relative rotary tables: angles exact at 128K, how far that is from a model's own f32 angles, and what the pair
// of tables gives together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/core/error.h"
#include "formats/layout/half.h"
#include "kernels/host/rope_table.h"

namespace kvcc::host {
namespace {

constexpr int64_t kPositions = 131072;

RopeFrequencies frequencies(double theta, int rotary_dim) {
  RopeInfo rope;
  rope.theta = theta;
  rope.rotary_dim = rotary_dim;
  return rope_frequencies(rope);
}

TEST(RopeTables, AreTheAnglesOfTheModel) {
  const auto f = frequencies(100000.0, 64).inverse;
  ASSERT_EQ(f.size(), 32u);
  EXPECT_EQ(f[0], 1.0f);
  EXPECT_FLOAT_EQ(f[16], std::pow(100000.0f, -0.5f));
  const RopeTables tables = rope_tables(f, 3000, 2.0f);
  EXPECT_EQ(tables.cosine[5], 2.0f);  // position 0
  const size_t at = 2999 * 32 + 1;
  const float angle = 2999.0f * f[1];
  EXPECT_FLOAT_EQ(tables.cosine[at], 2.0f * static_cast<float>(std::cos(static_cast<double>(angle))));
  EXPECT_FLOAT_EQ(tables.sine[at], 2.0f * static_cast<float>(std::sin(static_cast<double>(angle))));
}

TEST(BlockRopeTables, BaseRowsAreExactToOneRoundingAt128K) {
  const RopeFrequencies f = frequencies(500000.0, 128);
  const BlockRopeTables tables = block_rope_tables(f, kPositions);
  ASSERT_EQ(tables.base_rows, 2048);
  ASSERT_EQ(tables.base_cosine.size(), 2048u * 64);
  ASSERT_EQ(tables.relative_cosine.size(), 128u * 64);
  long double worst = 0;
  for (int64_t block = 0; block < tables.base_rows; ++block) {
    for (size_t i = 0; i < 64; ++i) {
      const long double angle = static_cast<long double>(block * 64) * f.inverse[i];
      const size_t at = block * 64 + i;
      worst = std::max(worst, std::abs(tables.base_cosine[at] - std::cos(angle)));
      worst = std::max(worst, std::abs(tables.base_sine[at] - std::sin(angle)));
    }
  }
  EXPECT_LE(worst, 0x1p-25L * 1.0001L);  // half an ulp of numbers below 1
  EXPECT_GT(worst, 0x1p-27L);            // the comparison compares
}

/// The model rounds position * frequency to f32. Half an ulp of the angle is the bound; it is met nearly, so the
/// difference is real and no larger.
TEST(BlockRopeTables, DifferFromTheModelsAnglesByItsOwnRoundingAlone) {
  for (const auto& [theta, dim] : {std::pair{10000.0, 128}, std::pair{100000.0, 64}, std::pair{500000.0, 128}}) {
    const RopeFrequencies f = frequencies(theta, dim);
    double worst = 0;
    for (int64_t p = 0; p < kPositions; ++p) {
      for (const float frequency : f.inverse) {
        const float theirs = static_cast<float>(p) * frequency;
        const double difference = std::abs(static_cast<double>(theirs) - static_cast<double>(p) * frequency);
        const double half_ulp = 0.5 * (std::nextafter(theirs, std::numeric_limits<float>::infinity()) - theirs);
        ASSERT_LE(difference, half_ulp) << p;
        worst = std::max(worst, difference);
      }
    }
    RecordProperty("worst_rad", std::to_string(worst));
    EXPECT_LE(worst, 0x1p-8);  // 3.9e-3 rad
    EXPECT_GE(worst, 0x1p-9) << theta;
  }
}

/// cos(a + r) = cos a cos r - sin a sin r of a base row and a relative row.
TEST(BlockRopeTables, PairsGiveTheRotationWithinFp16Rounding) {
  const RopeFrequencies f = frequencies(10000.0, 64);
  const BlockRopeTables t = block_rope_tables(f, kPositions);
  double worst = 0;
  for (const int64_t block : {0, 1, 7, 500, 1333, 2047}) {
    for (int64_t r = 0; r < kRelativePositions; ++r) {
      for (size_t i = 0; i < 32; ++i) {
        const double angle = static_cast<double>(block * 64 + r) * f.inverse[i];
        const double a = t.base_cosine[block * 32 + i], b = t.base_sine[block * 32 + i];
        const double c = half_to_float(t.relative_cosine[r * 32 + i]), s = half_to_float(t.relative_sine[r * 32 + i]);
        worst = std::max({worst, std::abs(a * c - b * s - std::cos(angle)), std::abs(b * c + a * s - std::sin(angle))});
      }
    }
  }
  // Two products, each with half an fp16 ulp (2^-12) of a number below 1, of a unit vector: at most 2^-12 sqrt 2.
  EXPECT_LE(worst, 0x1p-12 * std::sqrt(2.0) + 0x1p-23);
  EXPECT_GT(worst, 0x1p-14);
}

TEST(BlockRopeTables, RowZeroTurnsNothingAndTheFactorIsOfTheBaseAlone) {
  RopeFrequencies f = frequencies(10000.0, 64);
  f.attention_factor = 1.25f;
  const BlockRopeTables t = block_rope_tables(f, 65);
  EXPECT_EQ(t.base_rows, 2);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(t.base_cosine[i], 1.25f);
    EXPECT_EQ(t.base_sine[i], 0.0f);
    EXPECT_EQ(t.relative_cosine[i], 0x3c00);
    EXPECT_EQ(t.relative_sine[i], 0);
    EXPECT_EQ(t.relative_sine[32 + i], float_to_half(std::sin(f.inverse[i])));
    EXPECT_NEAR(t.base_sine[32 + i], 1.25 * std::sin(64.0 * f.inverse[i]), 1e-7);
  }
}

TEST(BlockRopeTables, RowsForThePositionsThereAre) {
  EXPECT_EQ(rope_base_rows(1), 1);
  EXPECT_EQ(rope_base_rows(64), 1);
  EXPECT_EQ(rope_base_rows(65), 2);
  RopeFrequencies f = frequencies(10000.0, 64);
  EXPECT_THROW(block_rope_tables(f, 0), Error);
  EXPECT_THROW(block_rope_tables(f, (int64_t{1} << 24) + 1), Error);
  f.inverse[3] = std::numeric_limits<float>::infinity();
  try {
    block_rope_tables(f, 64);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("frequency of pair 3: not finite"));
  }
}

}  // namespace
}  // namespace kvcc::host
