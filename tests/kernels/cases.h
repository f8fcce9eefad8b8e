// Made-up layers for the kernels' tests: quantisers with random levels, scales and thresholds, rows with ties, constant
// channels and large outliers. Everything follows from the seed.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "formats/codec/reference.h"
#include "formats/layout/launch.h"
#include "kernels/device/common.cuh"
#include "kernels/reference/attention.h"
#include "kernels/reference/cache.h"

namespace kvcc::test {

/// Levels that a test's Config serves: [H, C] of the layer under test.
struct Levels {
  std::vector<float> table;
  std::vector<uint8_t> bits;
  int stride = 0;
};
inline Levels& levels_under_test() {
  static Levels levels;
  return levels;
}

/// A Config for the device bodies; the generated units have the same members.
template <int bits_, int head_dim, device::Axis axis, linear::Sparse sparse, device::Rope rope, int rotary,
          int group_tile, device::Dtype dtype, bool mixed = false>
struct Config {
  static constexpr int kBits = bits_, kHeadDim = head_dim, kRotaryDim = rotary, kGroupTile = group_tile;
  static constexpr device::Axis kAxis = axis;
  static constexpr linear::Sparse kSparse = sparse;
  static constexpr device::Rope kRope = rope;
  static constexpr device::Dtype kDtype = dtype;
  static constexpr bool kMixed = mixed;
  static const float* levels(int, int head) {
    return levels_under_test().table.data() + static_cast<size_t>(head) * levels_under_test().stride;
  }
  static int bits(int, int head) { return levels_under_test().bits[head]; }
};

inline LevelTable make_levels(int heads, const std::vector<uint8_t>& bits, std::mt19937& random) {
  LevelTable table;
  table.heads = heads;
  table.bits = bits;
  for (const uint8_t b : bits) table.stride = std::max(table.stride, 1 << b);
  table.levels.assign(static_cast<size_t>(heads) * table.stride, bits_float(0x7fc00000u));
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int h = 0; h < heads; ++h) {
    float* levels = table.levels.data() + static_cast<size_t>(h) * table.stride;
    for (int j = 0; j < table.count(h); ++j) levels[j] = uniform(random);
    std::sort(levels, levels + table.count(h));
    if (h % 2 == 1 && table.count(h) > 3) levels[2] = levels[1];  // repeated levels are legal
  }
  levels_under_test() = {table.levels, table.bits, table.stride};
  return table;
}

inline ChannelQuantiser make_channel_quantiser(int heads, int dim, const std::vector<uint8_t>& bits, bool sparse,
                                               std::mt19937& random) {
  ChannelQuantiser q;
  q.heads = heads;
  q.dim = dim;
  q.table = make_levels(heads, bits, random);
  std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
  std::normal_distribution<float> normal;
  for (int i = 0; i < heads * dim; ++i) {
    const float scale = i % 37 == 5 ? kLeastScale : uniform(random), zero = normal(random);
    q.scale.push_back(scale);
    q.zero.push_back(zero);
    if (sparse) {
      q.threshold_lower.push_back(zero - 0.98f * scale);
      q.threshold_upper.push_back(zero + 0.97f * scale);
    }
  }
  return q;
}

inline TokenQuantiser make_token_quantiser(int heads, int dim, const std::vector<uint8_t>& bits, int tail,
                                           std::mt19937& random) {
  TokenQuantiser q;
  q.heads = heads;
  q.dim = dim;
  q.table = make_levels(heads, bits, random);
  q.tail = tail;
  return q;
}

/// [T, columns], values that fp16, bf16 and f32 all hold exactly (8 significant bits), with many ties; every fifth
/// token is constant, every seventh holds zeros of both signs only.
inline std::vector<float> make_rows(int64_t tokens, int64_t columns, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(tokens * columns);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < columns; ++i) {
      float v = std::round(normal(random) * 32.0f) / 32.0f;
      if (random() % 97 == 0) v *= 8.0f;
      if (t % 5 == 3) v = 0.75f;
      if (t % 7 == 6) v = random() % 2 ? 0.0f : -0.0f;
      x[t * columns + i] = bfloat16_to_float(float_to_bfloat16(v));
    }
  }
  return x;
}

/// x as the bytes of a dtype.
inline std::vector<uint8_t> as_dtype(const std::vector<float>& x, device::Dtype dtype) {
  std::vector<uint8_t> bytes(x.size() * (dtype == device::Dtype::f32 ? 4 : 2));
  for (size_t i = 0; i < x.size(); ++i) {
    if (dtype == device::Dtype::f32) {
      std::memcpy(&bytes[4 * i], &x[i], 4);
    } else {
      const uint16_t h = dtype == device::Dtype::f16 ? float_to_half(x[i]) : float_to_bfloat16(x[i]);
      std::memcpy(&bytes[2 * i], &h, 2);
    }
  }
  return bytes;
}

/// What a cache of either layout says of itself in the same words.
template <class Cache>
KvccCache view_of_any(Cache& cache, const int32_t* length) {
  KvccCache c{};
  c.pages = cache.pages.data();
  c.lengths = length;
  c.head_words = cache.head_words.data();
  c.code_words = static_cast<int32_t>(cache.shape.code_words);
  c.tail = cache.tail;
  c.max_pages = cache.page_count();
  c.sequences = 1;
  c.heads = cache.heads;
  c.sink = cache.sink;
  c.residual = cache.residual;
  return c;
}

/// The cache as kernels take it, of one sequence. The pointers live as long as cache, quantiser and length.
inline KvccCache view(reference::LinearCache& cache, const int32_t* length) {
  KvccCache c = view_of_any(cache, length);
  c.exact = cache.exact.data();
  c.needed = cache.needed.data();
  c.page_bytes = static_cast<int64_t>(linear::page_bytes(cache.shape));
  c.sparse_capacity = cache.shape.sparse == linear::Sparse::csr ? static_cast<int32_t>(cache.shape.entries) : 0;
  return c;
}
inline void set_constants(KvccCache& c, const ChannelQuantiser& q) {
  c.scale = q.scale.data();
  c.zero = q.zero.data();
  c.lower = q.threshold_lower.empty() ? nullptr : q.threshold_lower.data();
  c.upper = q.threshold_upper.empty() ? nullptr : q.threshold_upper.data();
}
inline void set_constants(KvccCache&, const TokenQuantiser&) {}

inline reference::RopeTable make_rope(int rotary, bool interleaved, int64_t positions) {
  reference::RopeTable rope;
  rope.rotary = rotary;
  rope.interleaved = interleaved;
  for (int64_t p = 0; p < positions; ++p) {
    for (int i = 0; i < rotary / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * i / rotary);
      rope.cosine.push_back(static_cast<float>(std::cos(angle)));
      rope.sine.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return rope;
}

}  // namespace kvcc::test
