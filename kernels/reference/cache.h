// The oracle of the kernels: a linear-1 cache of one layer's keys or values, packed and unpacked by plain loops over
// the reference codec. Host only, one sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/codec/reference.h"
#include "formats/layout/launch.h"
#include "formats/layout/linear.h"

namespace kvcc::reference {

/// Which tokens stay at full precision, and how many records a page (linear-1, csr) or a tile (mma-1) is given.
struct CacheOptions {
  int sink = 0;
  int residual = 0;
  uint32_t capacity = 0;  ///< one that needs more makes all larger: nothing is ever dropped
};

/// Row of the exact region that holds position p of a sequence of `tokens`, or -1 when it is packed (launch.h).
int64_t exact_row(int sink, int residual, int64_t tokens, int64_t p);

/// One layer's tensor, packed. Owns its memory; view() lends it to kernels.
struct LinearCache {
  int heads = 0, head_dim = 0, sink = 0, residual = 0, tail = 0;
  int64_t tokens = 0;
  linear::PageShape shape{};
  std::vector<uint8_t> pages;        ///< [N, page_bytes]
  std::vector<uint16_t> exact;       ///< [sink + residual, H, D] fp16
  std::vector<uint32_t> needed;      ///< [N] csr records a page needs
  std::vector<uint32_t> head_words;  ///< [H] first word of a head's codes in a page

  int page_count() const { return static_cast<int>(needed.size()); }
  uint8_t* page(int64_t i) { return pages.data() + i * linear::page_bytes(shape); }
  const uint8_t* page(int64_t i) const { return pages.data() + i * linear::page_bytes(shape); }
  int64_t exact_row(int64_t p) const { return reference::exact_row(sink, residual, tokens, p); }
  int64_t bytes() const { return static_cast<int64_t>(pages.size() + exact.size() * 2); }
};

/// An empty cache for `tokens` tokens, all bytes zero. Throws Error(failed) for shapes the layout can't hold.
LinearCache make_cache(const ChannelQuantiser& q, int64_t tokens, const CacheOptions& options);
LinearCache make_cache(const TokenQuantiser& q, int64_t tokens, const CacheOptions& options);

/// x [T, H, D] to a packed cache. Throws as encode() does, naming `place` and the token.
LinearCache pack(const ChannelQuantiser& q, std::span<const float> x, const CacheOptions& options);
LinearCache pack(const TokenQuantiser& q, std::span<const float> x, const CacheOptions& options);

/// x [T, H, D] encoded: row p of `tokens`, empty for positions that are kept exactly, which go to `exact`
/// [sink + residual, H, D]. What caches of every layout are made from.
struct EncodedRows {
  std::vector<EncodedToken> tokens;  ///< [T]
  std::vector<uint16_t> exact;       ///< fp16
};
EncodedRows encode_rows(const ChannelQuantiser& q, std::span<const float> x, const CacheOptions& options);
EncodedRows encode_rows(const TokenQuantiser& q, std::span<const float> x, const CacheOptions& options);
LinearCache from_rows(const ChannelQuantiser& q, const EncodedRows& rows, const CacheOptions& options);
LinearCache from_rows(const TokenQuantiser& q, const EncodedRows& rows, const CacheOptions& options);

/// Codes, range and records of position p, which is packed.
EncodedToken read_token(const LevelTable& table, const LinearCache& cache, int64_t p);

/// All tokens, [T, H, D]: what the cache holds. Bit-equal to round_trip() (and round_to_record() for exact tokens).
std::vector<float> unpack(const ChannelQuantiser& q, const LinearCache& cache);
std::vector<float> unpack(const TokenQuantiser& q, const LinearCache& cache);

}  // namespace kvcc::reference
