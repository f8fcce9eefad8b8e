#include "formats/core/effective_bits.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr double kFullBits = 16;
constexpr double kTokenScaleBits = 2 * 16;  ///< online scale and zero-point, fp16 each
constexpr double kOutlierBits = 16 + 16;    ///< fp16 value and column
constexpr double kRowPointerBits = 32;

/// Bits of one token in one layer's tensor of `elements` values.
struct TokenBits {
  double codes = 0, scales = 0, sparse = 0;
};

TokenBits token_bits(const TensorScheme& tensor, int elements, double sparse, double fraction) {
  TokenBits bits;
  bits.codes = static_cast<double>(tensor.bits) * elements;
  if (tensor.axis == Axis::token) {
    bits.scales = kTokenScaleBits;
    bits.sparse = 2.0 * outliers_per_tail(sparse, elements) * kOutlierBits;  // a fixed count needs no row pointer
  } else if (sparse > 0) {
    bits.sparse = fraction * elements * kOutlierBits + kRowPointerBits;
  }
  return bits;
}

int64_t constant_bytes(const TensorScheme& tensor, int heads, int dim, int layers, double sparse) {
  constexpr int64_t kFloat = 4;
  int64_t floats = 0;
  if (tensor.grid == Grid::nuq) floats += int64_t{heads} << tensor.bits;
  if (tensor.axis == Axis::channel) floats += int64_t{heads} * dim * (sparse > 0 ? 4 : 2);
  return floats * layers * kFloat;
}

}  // namespace

EffectiveBits effective_bits(const Scheme& scheme, const CacheShape& shape, const EffectiveBitsQuery& query) {
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.head_dim < 1 || shape.value_head_dim < 1 || query.context < 1 ||
      query.amortise < 1) {
    throw Error(ErrorKind::usage, "effective bits",
                fmt::format("{} layers, {} kv heads, head dims {} and {}, context {}, amortise {}", shape.layers,
                            shape.kv_heads, shape.head_dim, shape.value_head_dim, query.context, query.amortise),
                "all positive");
  }
  EffectiveBits bits;
  if (scheme.is_full()) {
    bits.codes = bits.total = kFullBits;
    return bits;
  }
  const int key_elements = shape.kv_heads * shape.head_dim;
  const int value_elements = shape.kv_heads * shape.value_head_dim;
  const double elements = key_elements + value_elements;
  const double fraction = query.key_outlier_fraction < 0 ? scheme.sparse : query.key_outlier_fraction;
  const TokenBits key = token_bits(scheme.key, key_elements, scheme.sparse, fraction);
  const TokenBits value = token_bits(scheme.value, value_elements, scheme.sparse, fraction);
  bits.codes = (key.codes + value.codes) / elements;
  bits.scales = (key.scales + value.scales) / elements;
  bits.sparse = (key.sparse + value.sparse) / elements;
  const double quantised = bits.codes + bits.scales + bits.sparse;

  const int64_t full_tokens = std::min<int64_t>(int64_t{scheme.sink} + scheme.residual, query.context);
  bits.exceptions = (kFullBits - quantised) * static_cast<double>(full_tokens) / static_cast<double>(query.context);

  bits.constant_bytes = constant_bytes(scheme.key, shape.kv_heads, shape.head_dim, shape.layers, scheme.sparse) +
                        constant_bytes(scheme.value, shape.kv_heads, shape.value_head_dim, shape.layers, scheme.sparse);
  bits.constants =
      8.0 * static_cast<double>(bits.constant_bytes) / (elements * shape.layers * static_cast<double>(query.amortise));
  bits.total = quantised + bits.exceptions + bits.constants;
  return bits;
}

double mean_outlier_fraction(std::span<const float> fractions) {
  if (fractions.empty()) return -1.0;
  double sum = 0;
  for (const float fraction : fractions) sum += fraction;
  return sum / static_cast<double>(fractions.size());
}

double nominal_bits(const Scheme& scheme) { return (scheme.key.bits + scheme.value.bits) / 2.0; }

}  // namespace kvcc
