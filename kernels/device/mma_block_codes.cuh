// Which codes of a tile a warp takes where a block takes each page together (mma_block.cuh): those of a run of tokens,
// or of a quarter of the channels. Words of which several warps take codes come from the L1 cache.
#pragma once

#include <type_traits>

#include "kernels/device/mma_common.cuh"

namespace kvcc::device {

template <int D, int kGroup>
constexpr bool kByBlock = D > 128 && kGroup > kMmaQueries;

constexpr int kBlockTiles = 2;  ///< tiles of queries
constexpr int kBlockQueries = kBlockTiles * kMmaQueries;
static_assert(kMmaWarps == kMmaSteps);  // a run a warp

/// A lane's words of the codes of one run of a tile's tokens.
template <class Config>
struct RunCodes {
  static constexpr int kHeld = Config::kHeadDim * Config::kBits / 64;
  /// Runs begin within a plane of four words: the words of all planes that have some of them are loaded.
  static constexpr int kMostShift = kHeld % 4 == 0 ? 0 : kHeld % 2 == 0 ? 2 : 3, kPlanes = (kMostShift + kHeld + 3) / 4;
  uint32_t word[kHeld];

  KVCC_DEVICE void load(const uint32_t* tile, uint32_t run, uint32_t lane) {
    const uint32_t first = run * kHeld;
    const uint32_t* const from = tile + first / 4u * 128u + lane * 4u;
    if constexpr (kMostShift == 0) {
      KVCC_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        if (i % 4 != 0) continue;
        const Words<4> w = load_streamed<4>(from + i * 32);
        KVCC_UNROLL
        for (int j = 0; j < 4; ++j) word[i + j] = w.word[j];
      }
    } else {
      uint32_t all[4 * kPlanes];
      KVCC_UNROLL
      for (int plane = 0; plane < kPlanes; ++plane) {
        const Words<4> w = load_cached<4>(from + plane * 128);
        KVCC_UNROLL
        for (int j = 0; j < 4; ++j) all[4 * plane + j] = w.word[j];
      }
      if constexpr (kMostShift == 3) {
        KVCC_UNROLL
        for (int i = 0; i + 1 < 4 * kPlanes; ++i) all[i] = first % 2u != 0 ? all[i + 1] : all[i];
      }
      KVCC_UNROLL
      for (int i = 0; i < kHeld; ++i) word[i] = first % 4u >= 2u ? all[i + 2] : all[i];
    }
  }
};

/// A lane's words with codes of a quarter of the channels, run by run.
template <class Config>
struct QuarterCodes {
  static constexpr int kBits = Config::kBits, kBandPairs = Config::kHeadDim / 8, kOctets = kBandPairs / kMmaWarps;
  static constexpr int kRunWords = RunCodes<Config>::kHeld;
  static_assert(kRunWords <= 32 && kOctets % 2 == 0 && Config::kHeadDim * kBits % 64 == 0);

  /// Bit w: word w of a run has codes of the quarter's.
  static KVCC_HD constexpr uint32_t mask(int quarter) {
    uint32_t words = 0;
    for (int i = 0; i < 2 * kOctets; ++i) {
      const int e = i / kOctets * kBandPairs + quarter * kOctets + i % kOctets, first = e / 16 * kBits;
      words |= kBits == 3 && e % 16 == 15 ? 7u << first : 1u << (first + mma::pair_word(e % 16, kBits));
    }
    return words;
  }
  static KVCC_HD constexpr int count(uint32_t words) {
    words = words - (words >> 1 & 0x55555555u);
    words = (words & 0x33333333u) + (words >> 2 & 0x33333333u);
    return static_cast<int>(((words + (words >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
  }
  static KVCC_HD constexpr int most() {
    int words = 0;
    for (int quarter = 0; quarter < kMmaWarps; ++quarter)
      words = words < count(mask(quarter)) ? count(mask(quarter)) : words;
    return words;
  }
  static constexpr int kHeld = most();
  uint32_t word[kMmaSteps][kHeld];

  template <int kQuarter>
  KVCC_DEVICE void load(const uint32_t* tile, uint32_t lane) {
    constexpr uint32_t kMask = mask(kQuarter);
    KVCC_UNROLL
    for (int plane = 0; plane < kMmaSteps * kRunWords / 4; ++plane) {
      uint32_t wanted = 0;
      KVCC_UNROLL
      for (int j = 0; j < 4; ++j) wanted |= (kMask >> (4 * plane + j) % kRunWords & 1u) << j;
      const uint32_t* const from = tile + plane * 128 + lane * 4u;
      uint32_t w[4] = {};
      if (wanted == 15u || count(wanted) == 3 || wanted == 9u || wanted == 5u || wanted == 10u || wanted == 6u) {
        const Words<4> four = load_cached<4>(from);
        KVCC_UNROLL
        for (int j = 0; j < 4; ++j) w[j] = four.word[j];
      } else if (wanted == 3u || wanted == 12u) {
        const int first = wanted == 3u ? 0 : 2;
        const Words<2> two = load_cached<2>(from + first);
        w[first] = two.word[0];
        w[first + 1] = two.word[1];
      } else {
        KVCC_UNROLL
        for (int j = 0; j < 4; ++j) {
          if (wanted == 1u << j) w[j] = load_cached<1>(from + j).word[0];
        }
      }
      KVCC_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int at = (4 * plane + j) % kRunWords;
        if (wanted >> j & 1u) word[(4 * plane + j) / kRunWords][count(kMask & ((1u << at) - 1u))] = w[j];
      }
    }
  }
  /// Both levels of the pair at `octet` of the quarter, of the run's first or second band.
  template <int kQuarter, Table kTable>
  KVCC_DEVICE Half2 pair(const LevelTable<kBits, kTable>& levels, int run, int band, int octet,
                         uint32_t lane_offset) const {
    constexpr uint32_t kMask = mask(kQuarter);
    const int e = band * kBandPairs + kQuarter * kOctets + octet;
    uint32_t group[kBits];
    KVCC_UNROLL
    for (int j = 0; j < kBits; ++j) {
      const int at = e / 16 * kBits + j;
      group[j] = kMask >> at & 1u ? word[run][count(kMask & ((1u << at) - 1u))] : 0u;
    }
    return levels.pair(group, e % 16, lane_offset);
  }
};

/// Calls action with the warp's number as a constant.
template <class Do>
KVCC_DEVICE void with_quarter(uint32_t warp, const Do& action) {
  if (warp < 2u) {
    if (warp == 0u) {
      action(std::integral_constant<int, 0>());
    } else {
      action(std::integral_constant<int, 1>());
    }
  } else if (warp == 2u) {
    action(std::integral_constant<int, 2>());
  } else {
    action(std::integral_constant<int, 3>());
  }
}

}  // namespace kvcc::device
