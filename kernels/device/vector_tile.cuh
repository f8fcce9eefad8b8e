// Decodes a tile of consecutive positions of one head of vector codebooks into shared memory, and the inverse transform
// of it. Every value equals the reference codec's to the bit.
//
// A Config has kHeadDim, kTransform (whether the artifact's tensors have one: KvccVectorTensor.transform), kDtype and,
// of key scores and value mix, kRope, kRotaryDim and kGroupTile as the Configs of the other layouts.
#pragma once

#include "formats/layout/vector.h"
#include "formats/layout/vector_launch.h"
#include "kernels/device/common.cuh"

namespace kvcc::device {

/// The odd stride lets a warp's threads, each at its own token and the same channel, hit 32 different banks. kApart:
/// coordinates lie beside values; else a packed token's take its row in `value`.
template <class Config, bool kApart = Config::kTransform>
struct VectorTile {
  static constexpr int kTokens = Config::kHeadDim <= 128 ? 32 : 16;  // kvcc_tile_tokens
  static constexpr int kStride = Config::kHeadDim | 1;
  float value[kTokens * kStride];
  float z[kApart ? kTokens * kStride : 1];  ///< coordinates, with a transform
};

/// Tile of a head in page i of sequence s.
KVCC_HD inline uint8_t* vector_tile(const KvccCache& c, uint32_t s, int32_t i, int32_t head) {
  return page(c, s, i) + static_cast<int64_t>(c.head_words[head]) * 4;
}

/// Code of a quad in a tile.
KVCC_HD inline uint32_t vector_code(const KvccVectorTensor& t, const uint8_t* tile, int32_t head, int32_t slot,
                                    const KvccVectorQuad& quad) {
  return vector_page::get_code(tile, static_cast<uint32_t>(t.token_bits[head]), static_cast<uint32_t>(slot),
                               static_cast<uint32_t>(quad.first_bit), static_cast<uint32_t>(quad.bits));
}

/// Phase: positions [first, first + kTokens) below `length`. Packed ones: coordinates to `z` (or `value`, kApart), or
/// without a transform channels to `value`, constant ones too. Exact ones: channels to `value`. A thread takes a
/// token's quads in turn with the others of its token.
template <class Config, bool kApart>
KVCC_HD inline void decode_vectors(const KvccCache& c, const KvccVectorTensor& t, uint32_t s, int32_t head,
                                   int32_t first, int32_t length, int thread, VectorTile<Config, kApart>& tile) {
  constexpr int D = Config::kHeadDim, kTokens = VectorTile<Config>::kTokens, kParts = KVCC_THREADS / kTokens;
  const int token = thread % kTokens, part = thread / kTokens;
  const int32_t p = first + token;
  if (p >= length) return;
  const int32_t row = exact_row(c, p, length);
  float* const value = tile.value + token * VectorTile<Config>::kStride;
  if (row >= 0) {
    const int64_t exact = ((static_cast<int64_t>(s) * (c.sink + c.residual) + row) * c.heads + head) * D;
    for (int i = part; i < D; i += kParts) value[i] = half_to_float(c.exact[exact + i]);
    return;
  }
  float* const to = kApart ? tile.z + token * VectorTile<Config>::kStride : value;
  const int64_t base = static_cast<int64_t>(head) * D;
  // Places that quads give come first in `place`, the others after them.
  for (int i = t.places[head] + part; i < D; i += kParts) to[t.place[base + i]] = t.constant[base + t.place[base + i]];
  const int32_t packed = p - c.sink;
  const uint8_t* const codes = vector_tile(c, s, packed / KVCC_PAGE_TOKENS, head);
  for (int32_t q = t.first_quad[head] + part; q < t.first_quad[head + 1]; q += kParts) {
    const KvccVectorQuad quad = t.quads[q];
    const uint32_t code = vector_code(t, codes, head, packed % KVCC_PAGE_TOKENS, quad);
    const float* const vector = t.tables + quad.table + static_cast<int64_t>(code) * KVCC_VECTOR_ROW;
    for (int i = 0; i < quad.width; ++i) to[t.place[base + quad.first + i]] = vector[i];
  }
}

/// Phase, with a transform: `value` of packed positions from `z`, the sum over coordinates ascending, every product and
/// sum rounded.
template <class Config>
KVCC_HD inline void transform_vectors(const KvccCache& c, const KvccVectorTensor& t, int32_t head, int32_t first,
                                      int32_t length, int thread, VectorTile<Config>& tile) {
  if constexpr (Config::kTransform) {
    constexpr int D = Config::kHeadDim, kTokens = VectorTile<Config>::kTokens;
    for (int item = thread; item < kTokens * D; item += KVCC_THREADS) {
      const int token = item % kTokens, channel = item / kTokens;
      if (first + token >= length || exact_row(c, first + token, length) >= 0) continue;
      const float* const inverse = t.inverse + (static_cast<int64_t>(head) * D + channel) * D;
      const float* const z = tile.z + token * VectorTile<Config>::kStride;
      float sum = 0;
      for (int i = 0; i < D; ++i) sum = add(sum, multiply(inverse[i], z[i]));
      tile.value[token * VectorTile<Config>::kStride + channel] = add(sum, t.mean[head * D + channel]);
    }
  }
}

}  // namespace kvcc::device
