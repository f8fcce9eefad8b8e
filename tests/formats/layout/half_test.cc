// binary16 and bfloat16 conversions against exact arithmetic.
#include "formats/layout/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvcc {
namespace {

/// Value of a finite binary16, by its definition.
double half_value(uint16_t h) {
  const int exponent = (h >> 10) & 0x1f, mantissa = h & 0x3ff;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return h & 0x8000 ? -magnitude : magnitude;
}

TEST(Half, EveryValueConvertsExactlyAndBack) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const uint16_t bits = static_cast<uint16_t>(h);
    const float value = half_to_float(bits);
    if ((h & 0x7c00) == 0x7c00) {
      EXPECT_EQ(std::isnan(value), (h & 0x3ff) != 0);
      EXPECT_EQ(half_is_infinite(bits), (h & 0x3ff) == 0);
      if (std::isnan(value)) continue;
    } else {
      ASSERT_EQ(static_cast<double>(value), half_value(bits)) << h;
    }
    ASSERT_EQ(float_to_half(value), bits) << h;
  }
}

// Between two neighbours: below the middle down, above it up, at it to the even one.
TEST(Half, RoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const uint16_t low = static_cast<uint16_t>(h), high = static_cast<uint16_t>(h + 1);
    const float middle = static_cast<float>((half_value(low) + half_value(high)) / 2);
    ASSERT_EQ(float_to_half(middle), h % 2 == 0 ? low : high) << h;
    ASSERT_EQ(float_to_half(std::nextafterf(middle, 0.0f)), low) << h;
    ASSERT_EQ(float_to_half(std::nextafterf(middle, 1e9f)), high) << h;
    ASSERT_EQ(float_to_half(-middle), (h % 2 == 0 ? low : high) | 0x8000) << h;
  }
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(std::ldexp(1.0f, -25)), 0);
  EXPECT_EQ(float_to_half(std::nextafterf(std::ldexp(1.0f, -25), 1.0f)), 1);
}

TEST(BFloat16, RoundsToNearestEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t bits = random();
    const float x = bits_float(bits);
    const uint16_t b = float_to_bfloat16(x);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(bfloat16_to_float(b)));
      continue;
    }
    const uint32_t low = bits >> 16, rest = bits & 0xffff;
    const bool up = rest > 0x8000 || (rest == 0x8000 && low % 2 == 1);
    ASSERT_EQ(b, static_cast<uint16_t>(low + up));
  }
}

}  // namespace
}  // namespace kvcc
