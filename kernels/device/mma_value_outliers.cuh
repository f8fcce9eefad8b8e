// The sparse part of a page of values, by a patch (mma_patch.cuh): half of what the outliers differ from their decoded
// values, 0 elsewhere, which meets twice the weights in products of its own, so that fp16 holds it; decoding stays
// without arithmetic. On the token axis the products are added to the others'; on the channel axis, where those are in
// units of the channels' scales, to sums of their own in shared memory.
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

/// Half of what an outlier differs from the value that its code decodes to. token: of the page.
template <class Config>
KVCC_DEVICE uint16_t half_difference(const KvccCache& c, uint8_t* page, int32_t head, Half2 level, uint32_t record,
                                     uint32_t token) {
  if constexpr (Config::kAxis == Axis::channel) {
    const int64_t channel = static_cast<int64_t>(head) * Config::kHeadDim + (record & 255u);
    const float decoded = fused_multiply_add(low_half(level), c.scale[channel], c.zero[channel]);
    return finite_half(pack_half2(multiply(0.5f, add(high_half(record), -decoded)), 0.0f));
  } else {
    constexpr Half2 kMinusHalf = 0xb800b800u, kHalf = 0x38003800u;
    const uint32_t range = reinterpret_cast<const uint32_t*>(mma_ranges<Config>(c, page))[token];
    const Half2 decoded = fma_half2(level, range, range >> 16);
    return finite_half(fma_half2(decoded, kMinusHalf, multiply_half2(record >> 16, kHalf)));
  }
}

/// Channel axis: a warp's sums of the outliers' shares, in the unit of Mix::reference; C fragments, each lane its own.
template <int D, int kTiles>
struct OutlierSums {
  Float4 sum[kTiles * D / 16 * 32];  ///< [tile of queries, channel / 16, lane]

  KVCC_DEVICE Float4& at(int i, uint32_t lane) { return sum[i * 32 + static_cast<int>(lane)]; }
  KVCC_DEVICE const Float4& at(int i, uint32_t lane) const { return sum[i * 32 + static_cast<int>(lane)]; }
  KVCC_DEVICE void clear(uint32_t lane) {
    for (int i = 0; i < kTiles * D / 16; ++i) at(i, lane) = {};
  }
  /// As Mix::scale.
  KVCC_DEVICE void scale(const float (&factor)[kTiles][2], uint32_t lane) {
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      for (int i = j * (D / 16); i < (j + 1) * (D / 16); ++i) {
        Float4 now = at(i, lane);
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) now.x[e] = multiply(now.x[e], factor[j][e % 2]);
        at(i, lane) = now;
      }
    }
  }
};
struct NoSums {
  uint32_t unused;
};
/// Those of a block's warps.
template <class Config, int kTiles>
struct OutlierSumsOfWarps {
  static constexpr bool kOwn = kMmaSparse<Config> && Config::kAxis == Axis::channel;
  std::conditional_t<kOwn, OutlierSums<Config::kHeadDim, kTiles>, NoSums> of_warp[kOwn ? kMmaWarps : 1];
  KVCC_DEVICE auto& operator[](uint32_t warp) { return of_warp[kOwn ? warp : 0u]; }
};

/// Adds what a page's outliers differ from their decoded values, weighted: weight as mix_page takes it.
template <class Config, class Tables, int kTiles, class Sums>
KVCC_DEVICE void mix_outliers(Mix<Config::kHeadDim, kTiles>& mix, [[maybe_unused]] Sums& sums,
                              Patch<Config::kHeadDim>& differs, const KvccCache& c, uint8_t* page, int32_t head,
                              const uint32_t* tile, const float (&weight)[kMmaSteps][kTiles][4], const Tables& s,
                              const Lane& at) {
  constexpr int D = Config::kHeadDim;
  using Differs = Patch<D>;
  const auto records = PageRecords<kHoldsRecords<Config, kTiles>>::template of<Config>(c, page, head, at.lane);
  constexpr Half2 kTwo = 0x40004000u;
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  constexpr uint32_t kNone = 0xffffffffu;
  uint32_t used = kNone;  // number that the lane's record of the runs before has taken
  bool many = true;
  KVCC_UNROLL
  for (int m = 0; m < kMmaSteps; m += Differs::kRuns) {
    const BandRecords<Differs::kBands, kHoldsRecords<Config, kTiles>> these(records, 2 * m, at.lane);
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
      const uint32_t token = 8u * band + (record >> 8 & 7u);
      const Half2 level = patch_level<Config>(s.levels, tile, record, static_cast<uint32_t>(2 * m) + band, lane_at);
      const uint32_t to = value_place<D>(record & 255u, token);
      const uint16_t half =
          half_difference<Config>(c, page, head, level, record, static_cast<uint32_t>(16 * m) + token);
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
        for (int j = 0; j < kTiles; ++j) {
          if constexpr (Tables::kChannel) {
            Float4& own = sums.at(j * (D / 16) + i, at.lane);
            Float4 now = own;
            mma_16816(now.x, a.word, b[j][0], b[j][1]);
            own = now;
          } else {
            mma_16816(mix.sum[j][i], a.word, b[j][0], b[j][1]);
          }
        }
      }
    }
  }
}

/// Adds what was added to sums of its own, after settle().
template <int D, int kTiles>
KVCC_DEVICE void add_outliers(Mix<D, kTiles>& mix, const OutlierSums<D, kTiles>& sums, uint32_t lane) {
  KVCC_UNROLL
  for (int i = 0; i < kTiles * D / 16; ++i) {
    const Float4 own = sums.at(i, lane);
    KVCC_UNROLL
    for (int e = 0; e < 4; ++e) {
      float& sum = mix.sum[i / (D / 16)][i % (D / 16)][e];
      sum = add(sum, own.x[e]);
    }
  }
}

}  // namespace kvcc::device
