// IEEE binary16 and bfloat16 conversions, written once for host and device, bit-exact on both.
// Round to nearest, ties to even; NaN stays NaN (quiet); overflow gives infinity, which callers must refuse.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define KVCC_HD __host__ __device__
#else
#define KVCC_HD
#endif

namespace kvcc {

KVCC_HD inline uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

KVCC_HD inline float bits_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

/// binary16 to binary32, exact.
KVCC_HD inline float half_to_float(uint16_t h) {
#if defined(__CUDA_ARCH__)
  float x;  // one instruction, and exact as well
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1f) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  if (mantissa == 0) return bits_float(sign);
  uint32_t shift = 0;  // subnormal: normalise
  while (!(mantissa & 0x400u)) {
    mantissa <<= 1;
    ++shift;
  }
  return bits_float(sign | ((113u - shift) << 23) | ((mantissa & 0x3ffu) << 13));
#endif
}

/// binary32 to binary16. |x| >= 65520 gives infinity.
KVCC_HD inline uint16_t float_to_half(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
#if defined(__CUDA_ARCH__)
  uint16_t h;  // rounds as below
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
#else
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude >= 0x38800000u) {  // normal
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);  // below half of the smallest subnormal
  const uint32_t shift = 126u - (magnitude >> 23);                  // 14 to 24
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  return static_cast<uint16_t>(sign | (kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u)));
#endif
}

KVCC_HD inline float bfloat16_to_float(uint16_t b) { return bits_float(static_cast<uint32_t>(b) << 16); }

KVCC_HD inline uint16_t float_to_bfloat16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// The value that the precision of record keeps of x (fp16).
KVCC_HD inline float round_to_half(float x) { return half_to_float(float_to_half(x)); }
KVCC_HD inline bool half_is_infinite(uint16_t h) { return (h & 0x7fffu) == 0x7c00u; }

}  // namespace kvcc
