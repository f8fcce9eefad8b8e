#include "formats/codec/rtn.h"

#include <algorithm>
#include <cmath>

#include "formats/codec/clones.h"
#include "formats/codec/element.h"
#include "formats/codec/tails.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr float kLargestHalf = 65504.0f;

uint16_t scale_half(float scale, const Where& where) {
  const uint16_t half = stored_half(scale, "a range whose scale is", where);
  return half == 0 ? kLeastHalfScale : half;
}

uint16_t zero_half(float low, const Where& where) { return stored_half(low, "a least value of", where); }

/// codes = rint(clamp((x - low) / scale, 0, most)).
KVCC_CLONES void codes_from_low(const float* x, int n, float low, float scale, float most, uint16_t* codes) {
  for (int i = 0; i < n; ++i) {
    float y = (x[i] - low) / scale;
    y = y > 0.0f ? y : 0.0f;
    y = y < most ? y : most;
    codes[i] = static_cast<uint16_t>(static_cast<int>(std::rint(y)));
  }
}

KVCC_CLONES void codes_by_inverse(const float* x, int n, float low, float inverse, float most, uint16_t* codes) {
  for (int i = 0; i < n; ++i) {
    float y = (x[i] - low) * inverse;
    y = y > 0.0f ? y : 0.0f;
    y = y < most ? y : most;
    codes[i] = static_cast<uint16_t>(static_cast<int>(std::rint(y)));
  }
}

/// codes = clamp(rint(x / scale) + zero, 0, most), counted from `first`.
KVCC_CLONES void codes_about_zero(const float* x, int n, float scale, float zero, float most, uint16_t* codes) {
  for (int i = 0; i < n; ++i) {
    float y = std::rint(x[i] / scale) + zero;
    y = y > 0.0f ? y : 0.0f;
    y = y < most ? y : most;
    codes[i] = static_cast<uint16_t>(static_cast<int>(y));
  }
}

/// llama.cpp's quantize_row_q4_0_ref and quantize_row_q8_0_ref: codes by the scale before it is rounded to fp16.
RtnRange encode_ggml(int bits, const float* x, int n, uint16_t* codes, const Where& where) {
  const int first = 1 << (bits - 1);
  float greatest = 0;  // of the magnitudes, with its sign; the first of equal ones
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(greatest)) greatest = x[i];
  }
  const float scale = bits == 4 ? greatest / -8.0f : std::fabs(greatest) / 127.0f;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  for (int i = 0; i < n; ++i) {
    const double y = static_cast<double>(x[i]) * inverse;  // exact, so that no compiler's contraction matters
    const double code = bits == 4 ? std::min(15.0, std::trunc(y + 8.5)) : std::round(static_cast<float>(y)) + first;
    codes[i] = static_cast<uint16_t>(std::clamp(code, 0.0, 2.0 * first - 1));
  }
  return {stored_half(scale, "a range whose scale is", where), 0};
}

}  // namespace

int RtnForm::zero_bits() const {
  switch (rounding) {
    case Rounding::ends:
    case Rounding::inverse:
    case Rounding::zero:
      return 16;
    case Rounding::zero_inside:
    case Rounding::zero_clamped:
      return bits;
    case Rounding::symmetric:
    case Rounding::ggml:
      return 0;
  }
  return 0;
}

RtnRange rtn_encode(const RtnForm& form, const float* x, int n, uint16_t* codes, const Where& where) {
  float low, high;
  extremes(x, n, low, high);
  const float most = static_cast<float>((1 << form.bits) - 1);
  if (form.rounding == Rounding::ggml) return encode_ggml(form.bits, x, n, codes, where);
  if (form.rounding == Rounding::zero_inside) {
    low = std::min(low, 0.0f);
    high = std::max(high, 0.0f);
  }
  low *= form.clip;
  high *= form.clip;
  switch (form.rounding) {
    case Rounding::ends: {
      const RtnRange range{scale_half((high - low) / most, where), zero_half(low, where)};
      codes_from_low(x, n, half_to_float(range.zero), half_to_float(range.scale), most, codes);
      return range;
    }
    case Rounding::inverse: {
      const float inverse = std::min(kLargestHalf, most / (high - low));  // infinity for a constant group
      const RtnRange range{scale_half(inverse, where), zero_half(low, where)};
      codes_by_inverse(x, n, half_to_float(range.zero), half_to_float(range.scale), most, codes);
      return range;
    }
    case Rounding::symmetric: {
      const float greatest = std::max(std::fabs(low), std::fabs(high));
      const int first = 1 << (form.bits - 1);
      const RtnRange range{scale_half(greatest / static_cast<float>(first - 1), where), 0};
      codes_about_zero(x, n, half_to_float(range.scale), static_cast<float>(first), most, codes);
      return range;
    }
    default:
      break;
  }
  // A whole-number zero-point. RTN-Z's must stay one in fp16, which holds all up to 2048: a group that is nearly
  // constant gets a greater scale than its range asks for, and a constant one is one step from 0.
  float scale = (high - low) / most;
  if (form.rounding == Rounding::zero_clamped) scale = std::max(high - low, 1e-5f) / most;
  if (form.rounding == Rounding::zero) {
    const float greatest = std::max(std::fabs(low), std::fabs(high));
    scale = low == high ? (greatest > 0 ? greatest : 1.0f) : std::max(scale, greatest / 2048.0f);
  }
  if (form.rounding == Rounding::zero_inside && low == high) scale = 2.0f / most;  // zeros: -1 to 1, as QuaRot
  RtnRange range{scale_half(scale, where), 0};
  const float stored = half_to_float(range.scale);
  float zero = std::rint(-low / stored);
  if (form.rounding == Rounding::zero) {
    zero = std::clamp(zero, -2048.0f, 2048.0f);  // the scale's rounding may add one
    range.zero = float_to_half(zero + 0.0f);
  } else {
    zero = std::clamp(zero, 0.0f, most);
    range.zero = static_cast<uint16_t>(zero);
  }
  codes_about_zero(x, n, stored, zero, most, codes);
  return range;
}

KVCC_CLONES void rtn_decode(const RtnForm& form, RtnRange range, const uint16_t* codes, int n, float* out) {
  const float scale = half_to_float(range.scale);
  if (form.rounding == Rounding::ends) {
    const float low = half_to_float(range.zero);
    for (int i = 0; i < n; ++i) out[i] = fused_multiply_add(static_cast<float>(codes[i]), scale, low);
    return;
  }
  if (form.rounding == Rounding::inverse) {
    const float low = half_to_float(range.zero);
    for (int i = 0; i < n; ++i) out[i] = static_cast<float>(codes[i]) / scale + low;
    return;
  }
  float zero = static_cast<float>(range.zero);
  if (form.rounding == Rounding::zero) zero = half_to_float(range.zero);
  if (form.zero_bits() == 0) zero = static_cast<float>(1 << (form.bits - 1));
  for (int i = 0; i < n; ++i) out[i] = scale * (static_cast<float>(codes[i]) - zero);
}

}  // namespace kvcc
