// fp16 arithmetic in double, rounded exactly once. Host only.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats/layout/half.h"

namespace kvcc::emulator::internal {

constexpr uint16_t kHalfNan = 0x7fff;  // PTX's one NaN

/// Value of the fp16 in the low 16 bits. Without branches: mma converts 384 of them.
inline float half_value(uint32_t h) {
  const uint32_t magnitude = h & 0x7fffu;
  const float finite = bits_float(magnitude << 13) * 0x1p112f;  // exact, subnormals included
  const uint32_t bits = magnitude >= 0x7c00u ? 0x7f800000u | magnitude << 13 : float_bits(finite);
  return bits_float(bits | (h & 0x8000u) << 16);
}

/// To nearest, ties to even; subnormals kept, overflow to infinity.
inline uint16_t round_to_half_once(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000u);
  const uint64_t magnitude = bits & 0x7fffffffffffffffu;
  if (magnitude > 0x7ff0000000000000u) return kHalfNan;
  if (magnitude >= 0x40effe0000000000u) return sign | 0x7c00u;  // 65520
  if (magnitude >= 0x3f10000000000000u) {                       // 2^-14: 42 bits are dropped
    const uint64_t rounded = magnitude + ((uint64_t{1} << 41) - 1) + (magnitude >> 42 & 1);
    return sign | static_cast<uint16_t>((rounded - (uint64_t{1008} << 52)) >> 42);
  }
  const auto exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (exponent < -25) return sign;
  const uint64_t mantissa = (magnitude & 0xfffffffffffffu) | uint64_t{1} << 52;
  const int shift = 28 - exponent;  // to units of 2^-24; 43 to 53
  const uint64_t kept = mantissa >> shift, rest = mantissa & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  return sign | static_cast<uint16_t>(kept + (rest > half || (rest == half && (kept & 1)) ? 1 : 0));
}

/// a b + c, rounded once. The product is exact in double, and so is the sum unless the product is below 2^-31 of c:
/// then c, which is an fp16 itself, lies so far from where rounding turns that the last bit of a double does not
/// matter.
inline uint16_t fma_half(uint16_t a, uint16_t b, uint16_t c) {
  return round_to_half_once(static_cast<double>(half_value(a)) * half_value(b) + half_value(c));
}

}  // namespace kvcc::emulator::internal
