// Decodes a tile of consecutive positions of one head into shared memory, in two phases: codes (and exact rows), then
// outliers over them. Decoding whole rows before anything else keeps every family's values equal to the reference
// codec's to the bit; a word is loaded once and its 32 codes are unpacked in registers.
#pragma once

#include "kernels/device/common.cuh"

namespace kvcc::device {

/// The odd stride lets a warp's threads, each at its own token and the same channel, hit 32 different banks.
template <class Config>
struct Tile {
  static constexpr int kTokens = Config::kHeadDim <= 128 ? 32 : 16;  // kvcc_tile_tokens
  static constexpr int kStride = Config::kHeadDim | 1;
  float value[kTokens * kStride];
  float levels[1 << Config::kBits];
};

/// Phase: copies the head's levels. A barrier must follow before decode_codes.
template <class Config>
KVCC_HD inline void load_levels(const KvccCache& c, int32_t head, int thread, Tile<Config>& tile) {
  const float* levels = Config::levels(c.layer, head);
  for (int i = thread; i < (1 << Config::kBits); i += KVCC_THREADS) tile.levels[i] = levels[i];
}

/// Phase: positions [first, first + kTokens) below `length`, codes to values. The chunk of 32 codes of a thread lies in
/// kBits whole words. Positions at and above `length` are left as they are.
template <class Config>
KVCC_HD inline void decode_codes(const KvccCache& c, uint32_t s, int32_t head, int32_t first, int32_t length,
                                 int thread, Tile<Config>& tile) {
  constexpr int D = Config::kHeadDim, kTokens = Tile<Config>::kTokens, kChunks = (D + 31) / 32;
  for (int item = thread; item < kTokens * kChunks; item += KVCC_THREADS) {
    const int token = item % kTokens, chunk = item / kTokens;
    const int32_t p = first + token;
    if (p >= length) continue;
    float* out = tile.value + token * Tile<Config>::kStride + chunk * 32;
    const int channels = D - chunk * 32 < 32 ? D - chunk * 32 : 32;
    const int32_t row = exact_row(c, p, length);
    if (row >= 0) {
      const int64_t exact = ((static_cast<int64_t>(s) * (c.sink + c.residual) + row) * c.heads + head) * D + chunk * 32;
      for (int j = 0; j < channels; ++j) out[j] = half_to_float(c.exact[exact + j]);
      continue;
    }
    const int32_t packed = p - c.sink;
    const int32_t slot = packed % KVCC_PAGE_TOKENS;
    uint8_t* const base = page(c, s, packed / KVCC_PAGE_TOKENS);
    const uint32_t* words = code_row<Config>(c, base, slot, head) + chunk * Config::kBits;
    constexpr int kRowWords = static_cast<int>(linear::row_words(D, Config::kBits));
    uint32_t chunk_words[Config::kBits];
    KVCC_UNROLL
    for (int w = 0; w < Config::kBits; ++w) chunk_words[w] = chunk * Config::kBits + w < kRowWords ? words[w] : 0u;
    float scale = 0, zero = 0;
    if constexpr (Config::kAxis == Axis::token) {
      const linear::RangeRecord range = ranges<Config>(c, base)[slot];
      scale = half_to_float(range.scale);
      zero = half_to_float(range.zero);
    }
    KVCC_UNROLL
    for (int j = 0; j < 32; ++j) {
      if (D % 32 != 0 && j >= channels) break;
      const float level = tile.levels[linear::get_code(chunk_words, j, Config::kBits)];
      if constexpr (Config::kAxis == Axis::channel) {
        const int64_t channel = static_cast<int64_t>(head) * D + chunk * 32 + j;
        scale = c.scale[channel];
        zero = c.zero[channel];
      }
      out[j] = decode_element(level, scale, zero);
    }
  }
}

/// Phase: puts the outliers of the tile's packed tokens over their decoded values. Several threads share a token; each
/// entry has a column of its own, so their order does not matter.
template <class Config>
KVCC_HD inline void apply_outliers(const KvccCache& c, uint32_t s, int32_t head, int32_t first, int32_t length,
                                   int thread, Tile<Config>& tile) {
  if constexpr (Config::kSparse != linear::Sparse::none) {
    constexpr int D = Config::kHeadDim, kTokens = Tile<Config>::kTokens, kParts = KVCC_THREADS / kTokens;
    const int token = thread % kTokens, part = thread / kTokens;
    const int32_t p = first + token;
    if (p >= length || exact_row(c, p, length) >= 0) return;
    const int32_t packed = p - c.sink;
    const int32_t slot = packed % KVCC_PAGE_TOKENS;
    uint8_t* const base = page(c, s, packed / KVCC_PAGE_TOKENS);
    uint32_t begin, end;
    if constexpr (Config::kSparse == linear::Sparse::csr) {
      const uint32_t* row_end = row_ends<Config>(c, base);
      begin = slot > 0 ? row_end[slot - 1] : 0u;
      end = row_end[slot];
      const uint32_t capacity = static_cast<uint32_t>(c.sparse_capacity);
      if (end > capacity) end = capacity;  // never read past the page, even one that pack reported
    } else {
      begin = static_cast<uint32_t>(slot * 2 * c.tail);
      end = begin + static_cast<uint32_t>(2 * c.tail);
    }
    const linear::SparseRecord* record = entries<Config>(c, base);
    const uint32_t low_column = static_cast<uint32_t>(head) * D;
    uint32_t low = begin, high = end;  // first entry of this head: entries ascend by column
    while (low < high) {
      const uint32_t middle = (low + high) >> 1;
      if (record[middle].column < low_column) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (uint32_t i = low + part; i < end; i += kParts) {
      const uint32_t channel = record[i].column - low_column;
      if (channel >= D) break;
      tile.value[token * Tile<Config>::kStride + channel] = half_to_float(record[i].value);
    }
  }
}

}  // namespace kvcc::device
