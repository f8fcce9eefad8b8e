// The oracle of the kernels of layout mma-1: a cache of one layer's keys or values, packed and unpacked by plain loops
// over the reference codec, and converted from and to linear-1. Host only, one sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/codec/reference.h"
#include "formats/layout/mma.h"
#include "kernels/reference/cache.h"

namespace kvcc::reference {

/// One layer's tensor, packed. Owns its memory.
struct MmaCache {
  mma::Tensor tensor = mma::Tensor::key;
  int heads = 0, head_dim = 0, sink = 0, residual = 0, tail = 0;
  int64_t tokens = 0;
  mma::PageShape shape{};
  std::vector<uint8_t> pages;        ///< [N, page_bytes]
  std::vector<uint16_t> exact;       ///< [sink + residual, H, D] fp16
  std::vector<uint32_t> needed;      ///< [N, H] records a tile needs; zeros without sparse part
  std::vector<uint32_t> head_words;  ///< [H] first word of a head's tile in a page

  int page_count() const { return static_cast<int>(pages.size() / mma::page_bytes(shape)); }
  uint8_t* page(int64_t i) { return pages.data() + i * mma::page_bytes(shape); }
  const uint8_t* page(int64_t i) const { return pages.data() + i * mma::page_bytes(shape); }
  int64_t exact_row(int64_t p) const { return reference::exact_row(sink, residual, tokens, p); }
  int64_t bytes() const { return static_cast<int64_t>(pages.size() + exact.size() * 2); }
};

/// An empty cache for `tokens` tokens, all bytes zero. options.capacity: records of a tile, rounded up to a multiple of
/// 4. Throws Error(failed) for shapes and widths the layout can't hold.
MmaCache make_mma_cache(const ChannelQuantiser& q, mma::Tensor tensor, int64_t tokens, const CacheOptions& options);
MmaCache make_mma_cache(const TokenQuantiser& q, mma::Tensor tensor, int64_t tokens, const CacheOptions& options);

/// x [T, H, D] to a packed cache. Throws as encode() does, naming the token. A tile that needs more than the capacity
/// gives all tiles the next multiple of 16.
MmaCache pack_mma(const ChannelQuantiser& q, mma::Tensor tensor, std::span<const float> x, const CacheOptions& options);
MmaCache pack_mma(const TokenQuantiser& q, mma::Tensor tensor, std::span<const float> x, const CacheOptions& options);

/// The same codes, ranges, records and exact rows in the other layout; nothing is decoded. capacity: of a tile, or of a
/// page's csr part, made larger as in packing. Throws Error(failed) for a tile with class ends above its capacity.
MmaCache to_mma(const ChannelQuantiser& q, const LinearCache& cache, mma::Tensor tensor, uint32_t capacity);
MmaCache to_mma(const TokenQuantiser& q, const LinearCache& cache, mma::Tensor tensor, uint32_t capacity);
LinearCache to_linear(const ChannelQuantiser& q, const MmaCache& cache, uint32_t capacity);
LinearCache to_linear(const TokenQuantiser& q, const MmaCache& cache, uint32_t capacity);

/// All tokens, [T, H, D]. Bit-equal to round_trip() (and round_to_record() for exact tokens). Throws as to_linear().
std::vector<float> unpack(const ChannelQuantiser& q, const MmaCache& cache);
std::vector<float> unpack(const TokenQuantiser& q, const MmaCache& cache);

/// Codes, range and records (columns ascending) of position p, which is packed. Throws as to_linear().
EncodedToken read_token(const LevelTable& table, const MmaCache& cache, int64_t p);

}  // namespace kvcc::reference
