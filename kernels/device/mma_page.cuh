// Where the parts of a page of layout mma-1 lie, and a tile's codes as bytes in shared memory: what pack and dequantise
// share. The bytes keep the tile's order, so that neither side turns addresses into (token, channel) but at its ends.
#pragma once

#include "formats/layout/mma.h"
#include "formats/layout/mma_launch.h"
#include "kernels/device/common.cuh"

namespace kvcc::device {

template <class Config>
constexpr bool kMmaSparse = Config::kSparse != linear::Sparse::none;
/// Classes of a tile's records; 1 without sparse part, so that arrays have a size.
template <class Config>
constexpr uint32_t kMmaClasses = kMmaSparse<Config> ? mma::kClasses : 1u;

template <class Config>
KVCC_HD inline mma::PageShape mma_shape(const KvccCache& c) {
  return {static_cast<uint32_t>(c.code_words), Config::kAxis == Axis::token ? 1u : 0u,
          kMmaSparse<Config> ? mma::kClasses : 0u, static_cast<uint32_t>(c.heads),
          static_cast<uint32_t>(c.sparse_capacity)};
}
template <class Config>
KVCC_HD inline uint32_t* mma_tile(const KvccCache& c, uint8_t* page, int32_t head) {
  const uint32_t first =
      c.head_words != nullptr ? c.head_words[head] : mma::head_first_word(head, Config::kHeadDim, Config::kBits);
  return reinterpret_cast<uint32_t*>(page) + first;
}
template <class Config>
KVCC_HD inline linear::RangeRecord* mma_ranges(const KvccCache& c, uint8_t* page) {
  return reinterpret_cast<linear::RangeRecord*>(page + mma::ranges_offset(mma_shape<Config>(c)));
}
template <class Config>
KVCC_HD inline uint16_t* mma_ends(const KvccCache& c, uint8_t* page, int32_t head) {
  return reinterpret_cast<uint16_t*>(page + mma::ends_offset(mma_shape<Config>(c))) + head * kMmaClasses<Config>;
}
template <class Config>
KVCC_HD inline mma::Record* mma_records(const KvccCache& c, uint8_t* page, int32_t head) {
  return reinterpret_cast<mma::Record*>(page + mma::records_offset(mma_shape<Config>(c))) +
         static_cast<int64_t>(head) * c.sparse_capacity;
}

/// Class of record `place`, from the classes' ends: the first whose end lies above it.
template <class Config, class End>
KVCC_HD inline uint32_t class_of_record(const End* ends, uint32_t place) {
  uint32_t low = 0, high = kMmaClasses<Config> - 1u;
  while (low < high) {
    const uint32_t middle = (low + high) >> 1;
    if (place >= ends[middle]) {
      low = middle + 1u;
    } else {
      high = middle;
    }
  }
  return low;
}

/// One tile's codes, a byte each: pair e of lane l at 2 (32 e + l).
template <class Config>
struct TileCodes {
  static constexpr uint32_t kPairs = Config::kHeadDim;  ///< of a lane
  uint16_t pairs[kPairs * mma::kLanes];

  static KVCC_HD constexpr uint32_t place(uint32_t token, uint32_t channel) {
    const mma::Owner at = mma::owner(Config::kTensor, Config::kHeadDim, token, channel);
    return (at.pair * mma::kLanes + at.lane) * 2u + at.second;
  }
  KVCC_HD uint32_t at(uint32_t token, uint32_t channel) const {
    return reinterpret_cast<const uint8_t*>(pairs)[place(token, channel)];
  }
  KVCC_HD void set(uint32_t token, uint32_t channel, uint32_t code) {
    reinterpret_cast<uint8_t*>(pairs)[place(token, channel)] = static_cast<uint8_t>(code);
  }

  /// The thread's share of the tile's codes, those of tokens at and above `tokens` as 0.
  KVCC_HD void read(const uint32_t* tile, uint32_t tokens, int thread) {
    constexpr uint32_t kBits = Config::kBits, kWords = mma::lane_words(Config::kHeadDim, kBits);
    for (uint32_t item = thread; item < kPairs / 16u * mma::kLanes; item += KVCC_THREADS) {
      const uint32_t lane = item % mma::kLanes, group = item / mma::kLanes;
      uint32_t words[kBits];
      KVCC_UNROLL
      for (uint32_t w = 0; w < kBits; ++w) words[w] = tile[mma::word_place(group * kBits + w, lane, kWords)];
      KVCC_UNROLL
      for (uint32_t i = 0; i < 16u; ++i) {
        const uint32_t e = group * 16u + i, both = mma::get_pair(words, i, kBits);
        uint32_t first = both & ((1u << kBits) - 1u), second = both >> kBits;
        if (mma::element(Config::kTensor, Config::kHeadDim, lane, e, 0).token >= tokens) first = 0;
        if (mma::element(Config::kTensor, Config::kHeadDim, lane, e, 1).token >= tokens) second = 0;
        pairs[e * mma::kLanes + lane] = static_cast<uint16_t>(first | second << 8);
      }
    }
  }

  /// The thread's share of the tile's words, each written once and a warp's as one run.
  KVCC_HD void write(uint32_t* tile, int thread) {
    constexpr uint32_t kBits = Config::kBits, kWords = mma::lane_words(Config::kHeadDim, kBits);
    for (uint32_t i = thread; i < kWords * mma::kLanes; i += KVCC_THREADS) {
      const WordAt at = word_at(i, kWords);
      tile[i] = mma::make_word(at.word, kBits, [&](uint32_t e) {
        const uint32_t both = pairs[e * mma::kLanes + at.lane];
        return (both & 255u) | both >> 8 << kBits;
      });
    }
  }

 private:
  /// Inverse of mma::word_place.
  struct WordAt {
    uint32_t word, lane;
  };
  static KVCC_HD constexpr WordAt word_at(uint32_t place, uint32_t words) {
    const uint32_t quads = words / 4u, rest = words % 4u;
    if (place < quads * 128u) return {place / 128u * 4u + place % 4u, place % 128u / 4u};
    const uint32_t left = place - quads * 128u;
    if (rest >= 2u && left < 64u) return {quads * 4u + left % 2u, left / 2u};
    return {quads * 4u + (rest >= 2u ? 2u : 0u), left % 32u};
  }
};

}  // namespace kvcc::device
