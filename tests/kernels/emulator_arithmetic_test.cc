// The emulator's arithmetic against other arithmetic: long double and a search over all of fp16.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/device/intrinsics.cuh"
#include "kernels/emulator/emulator.h"

namespace kvcc::emulator {
namespace {

/// The fp16 nearest to x, ties to even, by search over all of them.
uint16_t nearest_half(long double x) {
  const bool negative = std::signbit(x);
  const long double magnitude = std::fabs(x);
  if (magnitude >= 65520.0L) return negative ? 0xfc00 : 0x7c00;
  uint16_t low = 0, high = 0x7bff;  // greatest not above
  while (low < high) {
    const auto middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (half_to_float(middle) <= magnitude) {
      low = middle;
    } else {
      high = static_cast<uint16_t>(middle - 1);
    }
  }
  const long double below = half_to_float(low), above = low == 0x7bff ? 65536.0L : half_to_float(low + 1);
  const long double down = magnitude - below, up = above - magnitude;
  const auto rounded = static_cast<uint16_t>(down < up || (down == up && low % 2 == 0) ? low : low + 1);
  return static_cast<uint16_t>(rounded | (negative ? 0x8000 : 0));
}

// Products of fp16 have exponents from -48 to 32, sums with a third one need up to 81 bits: long double has 64. Where
// its sum is not exact the tie is broken by what was lost.
uint16_t exact_fma(uint16_t a, uint16_t b, uint16_t c) {
  const long double product = static_cast<long double>(half_to_float(a)) * half_to_float(b), addend = half_to_float(c);
  const long double sum = product + addend, part = sum - product;
  const long double lost = (product - (sum - part)) + (addend - part);
  if (lost == 0) return nearest_half(sum);
  const uint16_t one = nearest_half(std::nextafter(sum, lost > 0 ? INFINITY : -INFINITY));
  return nearest_half(sum) == one ? one : nearest_half(sum + (lost > 0 ? 1 : -1) * std::fabs(sum) * 0x1p-50L);
}

bool is_nan(uint16_t h) { return (h & 0x7fff) > 0x7c00; }
bool is_finite(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

TEST(EmulatorArithmetic, HalfPairsAreRoundedOnce) {
  std::mt19937 random(3);
  const auto draw = [&] {
    const uint32_t kind = random() % 8;
    uint32_t h = random() & 0xffff;
    if (kind == 0) h &= 0x83ff;                // subnormal
    if (kind == 1) h = (h & 0x83ff) | 0x3c00;  // around one: many ties
    if (kind == 2) h &= 0xfff0;                // few bits
    if (!is_finite(static_cast<uint16_t>(h))) h &= 0xbfff;
    return static_cast<uint16_t>(h);
  };
  int subnormal = 0, infinite = 0;
  for (int i = 0; i < 300000; ++i) {
    const uint16_t a = draw(), b = draw(), c = draw(), d = draw(), e = draw(), f = draw();
    const auto pair = [](uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; };
    const uint32_t fma = device::fma_half2(pair(a, d), pair(b, e), pair(c, f));
    ASSERT_EQ(fma & 0xffff, exact_fma(a, b, c)) << a << " " << b << " " << c;
    ASSERT_EQ(fma >> 16, exact_fma(d, e, f)) << d << " " << e << " " << f;
    const long double x = half_to_float(a), y = half_to_float(b);
    ASSERT_EQ(device::multiply_half2(pair(a, 0), pair(b, 0)) & 0xffff, nearest_half(x * y));
    ASSERT_EQ(device::add_half2(pair(0, a), pair(0, b)) >> 16, nearest_half(x + y));
    subnormal += (fma & 0x7c00) == 0 && (fma & 0x3ff) != 0;
    infinite += (fma & 0x7fff) == 0x7c00;
  }
  EXPECT_GT(subnormal, 1000);
  EXPECT_GT(infinite, 1000);
}

// 3 * 683 = 2049 is a tie of fp16; what is added is lost when the sum is rounded to float first.
TEST(EmulatorArithmetic, NoDoubleRounding) {
  const auto fma = [](float a, float b, float c) {
    return half_to_float(
        static_cast<uint16_t>(device::fma_half2(float_to_half(a), float_to_half(b), float_to_half(c))));
  };
  EXPECT_EQ(fma(3, 683, 0), 2048.0f);
  EXPECT_EQ(fma(3, 683, 0x1p-24f), 2050.0f);
  EXPECT_EQ(fma(3, 683, -0x1p-24f), 2048.0f);
  EXPECT_EQ(fma(7, 293, 0), 2052.0f);
  EXPECT_EQ(fma(7, 293, -0x1p-24f), 2050.0f);
  EXPECT_EQ(fma(0x1p-24f, 0x1p-24f, 32768), 32768.0f);
}

TEST(EmulatorArithmetic, HalfPairsSpecialCases) {
  const uint16_t infinity = 0x7c00, nan = 0x7e01, one = 0x3c00, minus_zero = 0x8000;
  EXPECT_EQ(multiply_half2(infinity, 0) & 0xffff, 0x7fffu);
  EXPECT_EQ(add_half2(infinity, 0xfc00) & 0xffff, 0x7fffu);
  EXPECT_TRUE(is_nan(static_cast<uint16_t>(fma_half2(nan, one, one))));
  EXPECT_EQ(fma_half2(infinity, one, one) & 0xffff, infinity);
  EXPECT_EQ(add_half2(minus_zero, minus_zero) & 0xffff, minus_zero);
  EXPECT_EQ(fma_half2(one, minus_zero, 0) & 0xffff, 0u);
}

TEST(EmulatorArithmetic, PowersOfTwo) {
  for (float x = -140; x < 130; x += 0.37f) {
    const float y = device::exp2_approximate(x);
    if (x < -126) {
      EXPECT_EQ(y, 0.0f) << x;
    } else if (x < 128) {
      EXPECT_NEAR(y, std::exp2(static_cast<long double>(x)), std::ldexp(y, -23)) << x;
    } else {
      EXPECT_EQ(y, INFINITY);
    }
  }
  EXPECT_EQ(device::exp2_approximate(-INFINITY), 0.0f);
  EXPECT_EQ(device::exp2_approximate(3.0f), 8.0f);
  EXPECT_EQ(float_bits(device::exp2_approximate(-1e-40f)), 0x3f800000u);
  EXPECT_TRUE(std::isnan(device::exp2_approximate(NAN)));
}

TEST(EmulatorArithmetic, TensorCoreEqualsTheProductInLongDouble) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const float scale : {1.0f, 1e-5f, 200.0f}) {
    uint16_t a[16][16], b[16][8];
    float c[16][8], d[16][8];
    for (auto& row : a) {
      for (auto& x : row) x = float_to_half(normal(random) * scale);
    }
    for (auto& row : b) {
      for (auto& x : row) x = float_to_half(normal(random) * scale);
    }
    for (auto& row : c) {
      for (auto& x : row) x = normal(random);
    }
    const auto kernel = [&] {
      const uint32_t g = device::thread_index() / 4, t = device::thread_index() % 4;
      const auto pair = [](uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; };
      const auto from_a = [&](uint32_t i, uint32_t k) { return pair(a[i][k], a[i][k + 1]); };
      const uint32_t fragment[4] = {from_a(g, 2 * t), from_a(g + 8, 2 * t), from_a(g, 2 * t + 8),
                                    from_a(g + 8, 2 * t + 8)};
      float sum[4] = {c[g][2 * t], c[g][2 * t + 1], c[g + 8][2 * t], c[g + 8][2 * t + 1]};
      device::mma_16816(sum, fragment, pair(b[2 * t][g], b[2 * t + 1][g]), pair(b[2 * t + 8][g], b[2 * t + 9][g]));
      for (uint32_t i = 0; i < 4; ++i) d[g + i / 2 * 8][2 * t + i % 2] = sum[i];
    };
    launch([](const void* k) { (*static_cast<const decltype(kernel)*>(k))(); }, &kernel, {1, 1, 1}, 32, 0);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        long double exact = c[i][j], magnitude = std::fabs(exact);
        for (int k = 0; k < 16; ++k) {
          const long double term = static_cast<long double>(half_to_float(a[i][k])) * half_to_float(b[k][j]);
          exact += term;
          magnitude += std::fabs(term);
        }
        // One rounding to f32; the sum in double is off by far less.
        ASSERT_NEAR(d[i][j], exact, std::fabs(exact) * 0x1.0001p-24L + magnitude * 0x1p-49L) << i << " " << j;
      }
    }
  }
}

}  // namespace
}  // namespace kvcc::emulator
