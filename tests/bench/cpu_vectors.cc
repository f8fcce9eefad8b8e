#include "tests/bench/cpu_vectors.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "formats/layout/mma_launch.h"

namespace kvcc::bench {
namespace {

/// Bits of the groups of 64 coordinates, 128 together: 8 pairs, then 12 fours; 16 fours. Pairs have 4 each.
constexpr int kTurnedBits[] = {9, 8, 7, 7, 7, 6, 6, 6, 10, 9, 8, 8, 7, 6, 6, 5, 4, 4, 3, 2};
constexpr int kGroupedBits[] = {10, 10, 10, 9, 9, 9, 9, 8, 8, 8, 7, 7, 6, 6, 6, 6};

VectorQuantiser quantiser_of(const Shape& shape, VectorGroups groups) {
  const bool transform = groups == VectorGroups::turned;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  VectorQuantiser q{shape.heads, shape.head_dim, shape.heads, {}, {}, {}, {}, {}, {}};
  const int n = shape.head_dim;
  const auto add = [&](int width, int bits) {
    for (int i = 0; i < width; ++i) {
      q.width.push_back(static_cast<uint8_t>(i == 0 ? width : 0));
      q.bits.push_back(static_cast<uint8_t>(i == 0 ? bits : 0));
    }
    for (int i = 0; i < width << bits; ++i) q.vectors.push_back(normal(random));
  };
  for (int h = 0; h < shape.heads; ++h) {
    for (int at = 0; at < n; at += 64) {
      switch (groups) {
        case VectorGroups::turned:
          for (int i = 0; i < 20; ++i) add(i < 8 ? 2 : 4, kTurnedBits[i]);
          break;
        case VectorGroups::fours:
          for (const int bits : kGroupedBits) add(4, bits);
          break;
        case VectorGroups::pairs:
          for (int i = 0; i < 32; ++i) add(2, 4);
      }
    }
    for (int i = 0; i < n; ++i) q.mean.push_back(0.1f * normal(random));
    for (int i = 0; i < n * n; ++i) {
      const float own = i / n == i % n ? 1.0f : 0.0f, off = transform ? 0.05f * normal(random) : 0.0f;
      q.forward.push_back(own + off);
      q.inverse.push_back(own - off);
    }
  }
  return q;
}

}  // namespace

PackedVectors::Side::Side(const Layer& layer, VectorGroups groups, const std::vector<float>& rows)
    : quantiser(quantiser_of(layer.shape(), groups)),
      tables(quantiser),
      cache(reference::pack_vector(quantiser, rows, {})) {}

PackedVectors::PackedVectors(const Layer& layer, const VectorScheme& scheme, int64_t tokens, size_t least_bytes)
    : layer_(layer),
      tokens_(tokens),
      length_(static_cast<int32_t>(tokens)),
      pages_((tokens + KVCC_PAGE_TOKENS - 1) / KVCC_PAGE_TOKENS),
      key_(layer, scheme.key, layer.keys()),
      value_(layer, scheme.value, layer.values()),
      rope_(layer.tables(tokens)) {
  const size_t both = key_.cache.shape.page_bytes() + value_.cache.shape.page_bytes();
  copies_ = static_cast<int>(std::max<size_t>(1, (least_bytes + pages_ * both - 1) / (pages_ * both)));
  for (Side* side : {&key_, &value_}) {
    const size_t bytes = side->cache.shape.page_bytes();
    constexpr int64_t kPages = kDistinctTokens / KVCC_PAGE_TOKENS;
    side->pages = Memory(bytes * pages_ * copies_);
    for (int64_t i = 0; i < pages_ * copies_; ++i) {
      std::memcpy(side->pages.data() + i * bytes, side->cache.pages.data() + i % pages_ % kPages * bytes, bytes);
    }
    bytes_read_ += 4.0 * side->cache.shape.code_words * static_cast<double>(pages_);
  }
  tables_ = {&key_.tables.tensor(),         &value_.tables.tensor(), KVCC_ROPE_HALF,
             layer.shape().head_dim,        KVCC_DTYPE_F32,          rope_.relative_cosine_f32.data(),
             rope_.relative_sine_f32.data()};
}

KvccCache PackedVectors::cache(const Side& side, int copy) const {
  KvccCache c{};
  const size_t bytes = side.cache.shape.page_bytes();
  c.pages = side.pages.data() + bytes * pages_ * copy;
  c.lengths = &length_;
  c.head_words = side.cache.shape.head_words.data();
  c.page_bytes = static_cast<int64_t>(bytes);
  c.code_words = static_cast<int32_t>(side.cache.shape.code_words);
  c.max_pages = static_cast<int32_t>(pages_);
  c.sequences = 1;
  c.heads = side.cache.shape.heads;
  return c;
}

KvccAttentionParams PackedVectors::params(int copy, float* out, float* partial, int splits) const {
  KvccAttentionParams p = layer_.attention(rope_, out, partial, splits);
  p.key = cache(key_, copy);
  p.value = cache(value_, copy);
  return p;
}

reference::AttentionSums PackedVectors::exact() const {
  // Without sinks page 0 begins with the first row.
  return layer_.exact(reference::unpack(key_.quantiser, key_.cache), reference::unpack(value_.quantiser, value_.cache),
                      tokens_);
}

}  // namespace kvcc::bench
