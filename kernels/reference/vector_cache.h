// The oracle of the kernels of layout vector-1: a cache of one layer's keys or values, packed and unpacked by plain
// loops over the codec of vector codebooks. Host only, one sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/codec/vector_codec.h"
#include "formats/layout/vector.h"
#include "kernels/reference/cache.h"

namespace kvcc::reference {

/// How one layer's groups lie in a page. The form with one unit a head.
struct VectorShape {
  int heads = 0, head_dim = 0;
  std::vector<CodeGroup> groups;     ///< in order; their unit is the head
  std::vector<uint32_t> first_bit;   ///< [groups] bits of a token's head before the group
  std::vector<uint32_t> head_bits;   ///< [H] bits of a token
  std::vector<uint32_t> head_words;  ///< [H] first word of a head's tile in a page
  uint32_t code_words = 0;           ///< of all tiles
  uint64_t page_bytes() const { return vector_page::page_bytes(code_words); }
};
/// Throws Error(failed) for a quantiser whose unit is the layer, and for head dimensions the layout can't hold.
VectorShape vector_shape(const VectorQuantiser& q);

/// One layer's tensor, packed. Owns its memory.
struct VectorCache {
  VectorShape shape;
  int sink = 0, residual = 0;
  int64_t tokens = 0;
  std::vector<uint8_t> pages;   ///< [N, page_bytes]
  std::vector<uint16_t> exact;  ///< [sink + residual, H, D] fp16

  int page_count() const { return static_cast<int>(pages.size() / shape.page_bytes()); }
  uint8_t* tile(int64_t page, int head) {
    return pages.data() + page * shape.page_bytes() + uint64_t{shape.head_words[head]} * 4u;
  }
  const uint8_t* tile(int64_t page, int head) const { return const_cast<VectorCache*>(this)->tile(page, head); }
  int64_t exact_row(int64_t p) const { return reference::exact_row(sink, residual, tokens, p); }
};

/// x [T, H, D] to a packed cache; capacity of the options is of no matter. Throws as the codec does, naming the token.
VectorCache pack_vector(const VectorQuantiser& q, std::span<const float> x, const CacheOptions& options);

/// All tokens, [T, H, D]. Bit-equal to the codec's round_trip() (and round_to_record() for exact tokens).
std::vector<float> unpack(const VectorQuantiser& q, const VectorCache& cache);

}  // namespace kvcc::reference
