// What all families share: dtypes, arithmetic that never contracts, where a token lies in the cache.
#pragma once

#include <cstdint>

#include "formats/codec/element.h"
#include "formats/layout/half.h"
#include "formats/layout/launch.h"
#include "formats/layout/linear.h"
#include "kernels/device/launch.cuh"

namespace kvcc::device {

enum class Dtype { f16, bf16, f32 };
enum class Axis { channel, token };           ///< static scales per channel, or one online range a token
enum class Rope { none, half, interleaved };  ///< pairs (i, i + R/2), or (2i, 2i + 1), of the first R channels

/// Element i of an array of the given dtype, as f32 (exact).
template <Dtype dtype>
KVCC_HD inline float load(const void* base, int64_t i) {
  if constexpr (dtype == Dtype::f16) {
    return half_to_float(static_cast<const uint16_t*>(base)[i]);
  } else if constexpr (dtype == Dtype::bf16) {
    return bfloat16_to_float(static_cast<const uint16_t*>(base)[i]);
  } else {
    return static_cast<const float*>(base)[i];
  }
}

// Compiled with -fmad=false and -ffp-contract=off; the intrinsics say so once more where it decides bits.
KVCC_HD inline float multiply(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
KVCC_HD inline float add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

/// Integer additions and or-ings commute, so atomics on integers keep results independent of the schedule. run_on_host
/// runs one thread at a time and needs none.
KVCC_HD inline void atomic_increment(uint32_t* counter) {
#if defined(__CUDA_ARCH__) || defined(KVCC_EMULATE)
  atomic_add(counter, 1u);
#else
  ++*counter;
#endif
}
KVCC_HD inline void set_bits(uint32_t* word, uint32_t bits) {
#if defined(__CUDA_ARCH__) || defined(KVCC_EMULATE)
  atomic_or(word, bits);
#else
  *word |= bits;
#endif
}
KVCC_HD inline void raise_status(uint32_t* status, uint32_t bit) { set_bits(status, bit); }

KVCC_HD inline bool is_finite(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }

/// fp16 of a value that is stored exactly; raises the status bit where fp16 can't hold it.
KVCC_HD inline uint16_t record_half(float x, uint32_t* status) {
  const uint16_t h = float_to_half(x);
  if ((h & 0x7c00u) == 0x7c00u) raise_status(status, KVCC_STATUS_RANGE);
  return h;
}

template <class Config>
KVCC_HD inline linear::PageShape page_shape(const KvccCache& c) {
  return {static_cast<uint32_t>(c.code_words), Config::kAxis == Axis::token ? 1u : 0u, Config::kSparse,
          static_cast<uint32_t>(c.sparse_capacity)};
}

/// Page i of sequence s.
KVCC_HD inline uint8_t* page(const KvccCache& c, uint32_t s, int32_t i) {
  const int64_t slot = static_cast<int64_t>(s) * c.max_pages + i;
  const int64_t number = c.page_table != nullptr ? c.page_table[slot] : slot;
  return c.pages + number * c.page_bytes;
}

/// Row of codes of (slot, head) in a page.
template <class Config>
KVCC_HD inline uint32_t* code_row(const KvccCache& c, uint8_t* page, int32_t slot, int32_t head) {
  uint32_t first = linear::head_first_word(head, Config::kHeadDim, Config::kBits);
  if (c.head_words != nullptr) first = c.head_words[head];
  return reinterpret_cast<uint32_t*>(page) + first + slot * linear::row_words(Config::kHeadDim, Config::kBits);
}
template <class Config>
KVCC_HD inline linear::RangeRecord* ranges(const KvccCache& c, uint8_t* page) {
  return reinterpret_cast<linear::RangeRecord*>(page + linear::ranges_offset(page_shape<Config>(c)));
}
template <class Config>
KVCC_HD inline uint32_t* row_ends(const KvccCache& c, uint8_t* page) {
  return reinterpret_cast<uint32_t*>(page + linear::row_ends_offset(page_shape<Config>(c)));
}
template <class Config>
KVCC_HD inline linear::SparseRecord* entries(const KvccCache& c, uint8_t* page) {
  return reinterpret_cast<linear::SparseRecord*>(page + linear::entries_offset(page_shape<Config>(c)));
}

/// Row of `exact` that holds position p of a sequence of `length` tokens, or -1 when it is packed.
KVCC_HD inline int32_t exact_row(const KvccCache& c, int32_t p, int32_t length) {
  if (p < c.sink) return p;
  if (p >= length - c.residual) return c.sink + (p - c.sink) % c.residual;
  return -1;
}

/// Queries [group_first, group_first + queries) of a KV head's group: what one block serves.
struct QueryTile {
  int32_t head, group_first, queries;
  /// The first of them among all queries, or rows of scores.
  KVCC_HD int64_t row(uint32_t sequence, int32_t heads, int32_t group) const {
    return (static_cast<int64_t>(sequence) * heads + head) * group + group_first;
  }
};
/// y: of the block, head x group tile.
KVCC_HD inline QueryTile query_tile(uint32_t y, int32_t group, int32_t tile) {
  const int32_t tiles = (group + tile - 1) / tile, first = static_cast<int32_t>(y) % tiles * tile;
  return {static_cast<int32_t>(y) / tiles, first, group - first < tile ? group - first : tile};
}

/// Whether this unit serves the head: a unit has one width, the heads of a mixed artifact several.
template <class Config>
KVCC_HD inline bool serves(int32_t layer, int32_t head) {
  if constexpr (Config::kMixed) {
    return Config::bits(layer, head) == Config::kBits;
  } else {
    return true;
  }
}

}  // namespace kvcc::device
