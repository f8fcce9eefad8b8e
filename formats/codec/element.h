// What one stored element means: the normative encode and decode, shared by calibration, eval, the kernels' reference
// and the device code. Compile with -ffp-contract=off (g++) and -fmad=false (nvcc): every fused operation is spelt out.
#pragma once

#include <cstdint>
#if !defined(__CUDA_ARCH__)
#include <cmath>
#endif

#include "formats/layout/half.h"

namespace kvcc {

/// Scale of a constant channel, and the least static scale: fmaf(level, kLeastScale, zero) == zero for |zero| >=
/// 2^-100, so that a constant channel of 0.7 decodes to 0.7.
constexpr float kLeastScale = 1.17549435e-38f;
/// Least online (fp16) scale: the smallest subnormal, 2^-24.
constexpr uint16_t kLeastHalfScale = 0x0001;

KVCC_HD inline float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fmaf(a, b, c);
#endif
}

/// Position of x on the normalised grid: (x - zero) / scale in binary32, IEEE division.
KVCC_HD inline float normalise(float x, float scale, float zero) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(__fadd_rn(x, -zero), scale);
#else
  return (x - zero) / scale;
#endif
}

/// Upper end of the cell of level j: y above it belongs to a higher level. The midpoint in binary32.
KVCC_HD inline float upper_boundary(const float* levels, int j) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(0.5f, __fadd_rn(levels[j], levels[j + 1]));
#else
  return 0.5f * (levels[j] + levels[j + 1]);
#endif
}

/// Index of the level nearest to y in levels[0..count), non-decreasing; a tie goes to the lower index. NaN gives 0.
/// count is at most 256. Binary search over the cell boundaries, which are non-decreasing as the levels are.
KVCC_HD inline uint32_t nearest_level(const float* levels, int count, float y) {
  uint32_t low = 0, high = static_cast<uint32_t>(count) - 1;  // answer in [low, high]
  while (low < high) {
    const uint32_t middle = (low + high) >> 1;
    if (y > upper_boundary(levels, static_cast<int>(middle))) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// x^ = level * scale + zero, fused, in binary32.
KVCC_HD inline float decode_element(float level, float scale, float zero) {
  return fused_multiply_add(level, scale, zero);
}

/// A key is an outlier when it lies strictly outside its channel's thresholds (METHODS.md 2.4).
KVCC_HD inline bool outside_thresholds(float x, float lower, float upper) { return x < lower || x > upper; }

/// Total order of a row's elements for the per-token tails: by value, ties by index. The n first in this order are the
/// lower tail, the n last the upper tail: always exactly n, whatever the ties.
KVCC_HD inline bool tail_less(float a, int index_a, float b, int index_b) {
  return a < b || (a == b && index_a < index_b);
}

/// Online range of a token: scale and zero-point of the inliers [low, high], rounded to fp16 as they are stored.
struct TokenRange {
  uint16_t scale;  ///< fp16, > 0
  uint16_t zero;   ///< fp16, never -0
};
KVCC_HD inline TokenRange token_range(float low, float high) {
#if defined(__CUDA_ARCH__)
  const float half_width = __fmul_rn(0.5f, __fadd_rn(high, -low));
  const float centre = __fmul_rn(0.5f, __fadd_rn(high, low));
#else
  const float half_width = 0.5f * (high - low);
  const float centre = 0.5f * (high + low);
#endif
  TokenRange range{float_to_half(half_width), float_to_half(centre)};
  // Zeros of either sign are equal values: without this, +0 and -0 as ends would give a scale of -0.
  if ((range.scale & 0x7fffu) == 0) range.scale = kLeastHalfScale;
  if (range.zero == 0x8000u) range.zero = 0;
  return range;
}

}  // namespace kvcc
