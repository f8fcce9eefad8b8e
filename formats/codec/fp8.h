// FP8 E4M3 (arXiv 2209.05433): sign, 4 exponent bits of bias 7, 3 mantissa bits; no infinities, 0x7f is NaN. Host only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "formats/layout/half.h"

namespace kvcc {

constexpr float kLargestFp8 = 448.0f;
/// The least positive one, a subnormal.
constexpr float kLeastFp8 = 0x1p-9f;

/// Nearest, ties to even; magnitudes above 448 saturate. x is finite.
inline uint8_t float_to_fp8(float x) {
  const uint32_t sign = (float_bits(x) >> 24) & 0x80u;
  const float magnitude = std::min(std::fabs(x), kLargestFp8);
  if (magnitude < 0x1p-6f)
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p9f)));
  const uint32_t bits = float_bits(magnitude);
  const uint32_t rounded = bits + 0x7ffffu + ((bits >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

inline float fp8_to_float(uint8_t code) {
  const uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return bits_float(0x7fc00000u);
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * kLeastFp8
                                        : bits_float(((exponent + 120u) << 23) | (mantissa << 20));
  return (code & 0x80u) ? -magnitude : magnitude;
}

}  // namespace kvcc
