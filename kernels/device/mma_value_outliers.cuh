// The mix of values with a sparse part, by a patch (mma_patch.cuh). Token axis: the patch holds half of what the
// outliers differ from their decoded values, 0 elsewhere, and meets twice the weights in products of its own; decoding
// stays without arithmetic. Channel axis: it holds the zero-points, as for keys, and values are decoded in full.
//   cost: see tests/kernels/ptx/test_full_outliers.py
#pragma once

#include "kernels/device/mma_patch.cuh"
#include "kernels/device/mma_values.cuh"

namespace kvcc::device {

/// Where a value's number lies in a patch. token: of the patch.
template <int D>
KVCC_DEVICE uint32_t value_place(uint32_t channel, uint32_t token) {
  const uint32_t lane = channel % 8u * 4u + token % 8u / 2u, word = channel / 8u % 2u + token / 8u % 2u * 2u;
  return Patch<D>::place(channel / 16u, lane, word, token % 2u) + token / 16u * Patch<D>::kRun;
}

/// Adds what a page's outliers differ from their decoded values, weighted; token axis. weight as mix_page takes it.
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void mix_outliers(Mix<Config::kHeadDim, kTiles>& mix, Patch<Config::kHeadDim>& differs, const KvccCache& c,
                              uint8_t* page, const PageRecords& records, const uint32_t* tile,
                              const float (&weight)[kMmaSteps][kTiles][4], const Tables& s, const Lane& at) {
  constexpr int D = Config::kHeadDim;
  using Differs = Patch<D>;
  constexpr Half2 kMinusHalf = 0xb800b800u, kHalf = 0x38003800u, kTwo = 0x40004000u;
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  const auto* const ranges = reinterpret_cast<const uint32_t*>(mma_ranges<Config>(c, page));
  constexpr uint32_t kNone = 0xffffffffu;
  uint32_t used = kNone;  // number that the lane's record of the runs before has taken
  bool many = true;
  KVCC_UNROLL
  for (int m = 0; m < kMmaSteps; m += Differs::kRuns) {
    const BandRecords<Differs::kBands> these(records, 2 * m, at.lane);
    sync_warp();
    if (many) {
      KVCC_UNROLL
      for (int i = 0; i < Differs::kRuns * D / 16; ++i) differs.fragment[i * 32 + static_cast<int>(at.lane)] = {};
    } else if (used != kNone) {
      differs.number(used) = 0;
    }
    sync_warp();
    used = kNone;
    these.each(records, 2 * m, at.lane, [&](uint32_t record, uint32_t band, bool is) {
      is = is && is_of_head<D>(record);
      record = is ? record : 0u;
      const uint32_t token = 8u * band + (record >> 8 & 7u), range = ranges[static_cast<uint32_t>(16 * m) + token];
      const Half2 level = patch_level<Config>(s.levels, tile, record, static_cast<uint32_t>(2 * m) + band, lane_at);
      const Half2 decoded = fma_half2(level, range, range >> 16);
      const uint32_t to = value_place<D>(record & 255u, token);
      const uint16_t half = finite_half(fma_half2(decoded, kMinusHalf, multiply_half2(record >> 16, kHalf)));
      if (is) differs.number(to) = half;
      if (is) used = to;
    });
    many = these.many();
    sync_warp();
    KVCC_UNROLL
    for (int run = 0; run < Differs::kRuns; ++run) {
      uint32_t b[kTiles][2];
      weight_fragments(b, weight[m + run]);
      KVCC_UNROLL
      for (int i = 0; i < kTiles * 2; ++i) b[i / 2][i % 2] = multiply_half2(b[i / 2][i % 2], kTwo);
      KVCC_UNROLL
      for (int i = 0; i < D / 16; ++i) {
        const Words<4> a = differs.at(run, i, at.lane);
        KVCC_UNROLL
        for (int j = 0; j < kTiles; ++j) mma_16816(mix.sum[j][i], a.word, b[j][0], b[j][1]);
      }
    }
  }
}

/// As mix_page, of a page with a sparse part on the channel axis; what it gathers needs no settle().
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void mix_patched_page(Mix<Config::kHeadDim, kTiles>& mix, MmaCodes<Config>& codes,
                                  Patch<Config::kHeadDim>& zeros, const PageRecords& records, const uint32_t* tile,
                                  const float (&weight)[kMmaSteps][kTiles][4], const Tables& s, const Lane& at) {
  constexpr int D = Config::kHeadDim;
  using Codes = MmaCodes<Config>;
  using Zeros = Patch<D>;
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  KVCC_UNROLL
  for (int m = 0; m < kMmaSteps; ++m) {
    const int run = m % Codes::kRuns, patched = m % Zeros::kRuns;
    if (m > 0 && run == 0) codes.load(tile, m / Codes::kRuns, at.lane);
    if (patched == 0) {
      const BandRecords<Zeros::kBands> these(records, 2 * m, at.lane);
      sync_warp();
      KVCC_UNROLL
      for (int i = 0; i < Zeros::kRuns * D / 16; ++i) {
        const auto zero = *reinterpret_cast<const Words<2>*>(s.channels.zero + (i % (D / 16) * 8 + at.row) * 2);
        zeros.fragment[i * 32 + static_cast<int>(at.lane)] = {{zero.word[0], zero.word[1], zero.word[0], zero.word[1]}};
      }
      sync_warp();
      these.each(records, 2 * m, at.lane, [&](uint32_t record, uint32_t band, bool is) {
        is = is && is_of_head<D>(record);
        record = is ? record : 0u;
        const uint32_t scale = s.channels.scale[s.channels.place(static_cast<int>(record & 255u))];
        const Half2 level = patch_level<Config>(s.levels, tile, record, static_cast<uint32_t>(2 * m) + band, lane_at);
        const uint16_t zero = finite_half(fma_half2(negate_half2(level), scale, record >> 16));
        if (is) zeros.number(value_place<D>(record & 255u, 8u * band + (record >> 8 & 7u))) = zero;
      });
      sync_warp();
    }
    uint32_t b[kTiles][2];
    weight_fragments(b, weight[m]);
    KVCC_UNROLL
    for (int i = 0; i < D / 16; ++i) {
      const Words<4> zero = zeros.at(patched, i, at.lane);
      const auto scale = *reinterpret_cast<const Words<2>*>(s.channels.scale + (i * 8 + at.row) * 2);
      uint32_t a[4];
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        const Half2 level = level_pair(s.levels, codes, 2 * run + e / 2, 2 * i + e % 2, lane_at);
        a[e] = fma_half2(level, scale.word[e % 2], zero.word[e]);
      }
      KVCC_UNROLL
      for (int j = 0; j < kTiles; ++j) mma_16816(mix.sum[j][i], a, b[j][0], b[j][1]);
    }
  }
}

/// As mix_page, of a page with a sparse part.
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void mix_sparse_page(Mix<Config::kHeadDim, kTiles>& mix, MmaCodes<Config>& codes,
                                 Patch<Config::kHeadDim>& patch, const KvccCache& c, uint8_t* page, int32_t head,
                                 const uint32_t* tile, const float (&weight)[kMmaSteps][kTiles][4],
                                 const uint32_t (&range)[8], const Tables& s, const Lane& at) {
  const auto records = PageRecords::of<Config>(c, page, head, at.lane);
  if constexpr (Tables::kPatched) {
    mix_patched_page<Config>(mix, codes, patch, records, tile, weight, s, at);
  } else {
    mix_outliers<Config>(mix, patch, c, page, records, tile, weight, s, at);
    mix_page<Config>(mix, codes, tile, weight, range, s, at);
  }
}

}  // namespace kvcc::device
