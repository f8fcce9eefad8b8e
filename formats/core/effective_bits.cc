#include "formats/core/effective_bits.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr double kFullBits = 16;
constexpr double kScaleBits = 16, kZeroBits = 16;  ///< online scale and zero-point, fp16 each
constexpr double kOutlierBits = 16 + 16;           ///< fp16 value and column
constexpr double kRowPointerBits = 32;

/// Bits of one token in one layer's tensor.
struct TokenBits {
  double codes = 0, scales = 0, sparse = 0;
  double total() const { return codes + scales + sparse; }
};

int wide_channels(const TensorScheme& t, int dim) {
  return t.wide > 0 ? std::max(1, static_cast<int>(dim * t.wide + 1e-6)) : 0;
}

/// Bits of the number of a channel.
int index_bits(int dim) {
  int bits = 1;
  while ((1 << bits) < dim) ++bits;
  return bits;
}

int zero_bits(const TensorScheme& t) {
  switch (t.rounding) {
    case Rounding::zero_inside:
    case Rounding::zero_clamped:
      return t.bits;  // the zero-point is a code
    case Rounding::symmetric:
    case Rounding::ggml:
      return 0;
    default:
      return 16;
  }
}

/// Bits of a head's codes, a token; sketches included.
double head_codes(const TensorScheme& t, int dim) {
  const int wide = wide_channels(t, dim);
  switch (t.grid) {
    case Grid::angles:
      return dim / 16.0 * (8 * 4 + (4 + 2 + 1) * 2);
    case Grid::sign:
      return dim * (t.sketch + (wide > 0 ? (t.sketch + 1) / 2 : 0));
    default:
      return (dim - wide) * t.bits + wide * t.wide_bits + t.sketch * dim;
  }
}

/// Bits of what a head stores beside its codes, a token; ranges over several heads apart.
double head_scales(const TensorScheme& t, int dim) {
  const int wide = wide_channels(t, dim);
  const double group = t.group;
  if (t.norm == Norm::varn || t.norm == Norm::varn_rms) {
    const double tile = t.tile, scale = t.half_scales ? 16 : 8;
    const double rows = t.axis == Axis::channel_group ? dim : tile, columns = dim + tile - rows;
    return (rows * (scale + kZeroBits) + columns * scale) / tile;
  }
  switch (t.grid) {
    case Grid::lloyd:
      return kScaleBits + (t.sketch > 0 ? kScaleBits : 0);
    case Grid::polar:
      return dim / 2.0 * 2 * (kScaleBits + kZeroBits) / group;
    case Grid::angles:
      return dim / 16.0 * kScaleBits;
    case Grid::sign:
      return kScaleBits + (wide > 0 ? kScaleBits + wide * index_bits(dim) / group : 0);
    default:
      break;
  }
  const double range = kScaleBits + zero_bits(t);
  if (t.axis == Axis::channel_group) {
    const int ranges = dim - (t.wide_bits == 16 ? wide : 0);
    return (ranges * range + wide * index_bits(dim)) / group;
  }
  if (t.axis == Axis::token_group) return range * (t.group == 0 ? 1 : (dim + t.group - 1) / t.group);
  return 0;
}

/// `capped`: as many outliers a token as a per-token quantiser has.
TokenBits token_bits(const TensorScheme& t, int heads, int dim, double sparse, double fraction, bool capped) {
  TokenBits bits;
  const int elements = heads * dim;
  bits.codes = heads * head_codes(t, dim);
  bits.scales = heads * head_scales(t, dim);
  if (t.norm == Norm::token) bits.scales += kScaleBits;
  if (t.axis == Axis::token) bits.scales += kScaleBits + zero_bits(t);
  if (t.axis == Axis::token || capped) {
    bits.sparse = 2.0 * outliers_per_tail(sparse, elements) * kOutlierBits;  // a fixed count needs no row pointer
  } else if (sparse > 0) {
    bits.sparse = fraction * elements * kOutlierBits + kRowPointerBits;
  }
  return bits;
}

/// Mean over the layers.
TokenBits mean_bits(const TensorScheme& t, int layers, int heads, int dim, double sparse, double fraction,
                    bool capped) {
  const double early = static_cast<double>(std::min(t.early_layers, layers)) / layers;
  const TokenBits last = token_bits(t.in_layer(t.early_layers), heads, dim, sparse, fraction, capped);
  if (early == 0) return last;
  const TokenBits first = token_bits(t.in_layer(0), heads, dim, sparse, fraction, capped);
  const auto mean = [&](double a, double b) { return early * a + (1 - early) * b; };
  return {mean(first.codes, last.codes), mean(first.scales, last.scales), mean(first.sparse, last.sparse)};
}

/// What the full-precision tokens of a cache of `context` tokens add, a token. The tail of a tensor that is coded in
/// blocks grows from nothing to a block less one; its mean counts.
double exception_bits(const Scheme& scheme, const TensorScheme& t, double quantised, int elements, int64_t context) {
  const int64_t block = t.block_tokens();
  const double tail = block == 1 ? scheme.residual : (static_cast<double>(tail_unit(scheme.residual, block)) - 1) / 2;
  const double full = std::min(scheme.sink + tail, static_cast<double>(context));
  return (kFullBits * elements - quantised) * full / static_cast<double>(context);
}

int64_t constant_bytes(const TensorScheme& tensor, int heads, int dim, int layers, double sparse, bool qnorm) {
  constexpr int64_t kFloat = 4;
  int64_t floats = 0;
  if (tensor.grid == Grid::nuq) floats += (int64_t{heads} << tensor.bits) + (qnorm ? 2 * heads : 0);
  if (tensor.axis == Axis::channel) floats += int64_t{heads} * dim * (sparse > 0 ? 4 : 2);
  if (tensor.rotation == Rotation::spectral) floats += int64_t{heads} * dim * dim;
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
  const TokenBits key =
      mean_bits(scheme.key, shape.layers, shape.kv_heads, shape.head_dim, scheme.sparse, fraction, scheme.capped);
  const TokenBits value =
      mean_bits(scheme.value, shape.layers, shape.kv_heads, shape.value_head_dim, scheme.sparse, fraction, false);
  bits.codes = (key.codes + value.codes) / elements;
  bits.scales = (key.scales + value.scales) / elements;
  bits.sparse = (key.sparse + value.sparse) / elements;
  const double quantised = bits.codes + bits.scales + bits.sparse;

  bits.exceptions = (exception_bits(scheme, scheme.key, key.total(), key_elements, query.context) +
                     exception_bits(scheme, scheme.value, value.total(), value_elements, query.context)) /
                    elements;

  bits.constant_bytes =
      constant_bytes(scheme.key, shape.kv_heads, shape.head_dim, shape.layers, scheme.sparse, scheme.qnorm) +
      constant_bytes(scheme.value, shape.kv_heads, shape.value_head_dim, shape.layers, scheme.sparse, scheme.qnorm);
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

double nominal_bits(const Scheme& scheme) {
  const auto width = [](const TensorScheme& t) -> double {
    constexpr int kDim = 128;  // no number of channels is asked for, so those that grids count a head by
    if (t.grid == Grid::angles || t.grid == Grid::sign) return head_codes(t, kDim) / kDim;
    return t.bits + t.wide * (t.wide_bits - t.bits) + t.sketch;
  };
  return (width(scheme.key) + width(scheme.value)) / 2;
}

}  // namespace kvcc
