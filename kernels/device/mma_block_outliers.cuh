// The sparse part where a block takes each page together (mma_block.cuh). A warp's lanes take the records of its run of
// tokens, and write what they change into A fragments in shared memory: no lane waits for another, and products are the
// tensor cores'.
//   keys    a zero-point with which the decoded outlier comes out as recorded; past what fp16 holds it is the greatest
//           that it holds (values and scales above 2^15 only)
//   values  half of the difference to the decoded value, so that fp16 holds it, times twice the weight
#pragma once

#include "kernels/device/mma_block_codes.cuh"
#include "kernels/device/mma_key_outliers.cuh"
#include "kernels/device/mma_value_outliers.cuh"

namespace kvcc::device {

/// A patch of a block, a run a warp: of keys only the warp itself reads its run, of values all warps do.
template <int D>
using BlockPatch = Patch<D, kMmaWarps>;
/// That of a block with a sparse part; else none.
template <int D, bool kSparse>
struct BlockPatchWhere {
  std::conditional_t<kSparse, BlockPatch<D>, NoPatch> patch;
  KVCC_DEVICE BlockPatch<D>* get() {
    if constexpr (kSparse) {
      return &patch;
    } else {
      return nullptr;
    }
  }
};

/// Calls action(record, its level, its band in the run) for each record of the warp's run that the lane takes, of
/// visible tokens.
template <class Config, class Tables, class Do>
KVCC_DEVICE void each_record(const KvccCache& c, uint8_t* page, const uint32_t* tile, int32_t head, const Slots& slots,
                             const Tables& s, const Lane& at, const Do& action) {
  const int first = 2 * static_cast<int>(at.warp);
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  const auto records = PageRecords<false>::of<Config>(c, page, head, at.lane);
  const BandRecords<2, false> these(records, first, at.lane);
  these.each(records, first, at.lane, [&](uint32_t record, uint32_t band, bool) {
    const uint32_t of_page = static_cast<uint32_t>(first) + band;
    if (!is_of_head<Config::kHeadDim>(record) || !slots.has(static_cast<int32_t>(8u * of_page + (record >> 8 & 7u)))) {
      return;
    }
    action(record, patch_level<Config>(s.levels, tile, record, of_page, lane_at), band);
  });
}

/// Zero-points of the warp's run of keys, for score_run.
template <class Config, class Tables>
KVCC_DEVICE void fill_zeros(BlockPatch<Config::kHeadDim>& to, const Tables& s, const KvccCache& c, uint8_t* page,
                            const uint32_t* tile, int32_t head, const Slots& slots, const uint32_t (&range)[2],
                            const Lane& at) {
  fill_zero_points<Config>(to, static_cast<int>(at.warp), range, s, at);
  sync_warp();
  each_record<Config>(c, page, tile, head, slots, s, at, [&](uint32_t record, Half2 level, uint32_t band) {
    const Words<2> channel = s.channel[record & 255u];
    uint32_t scale = channel.word[0];
    if constexpr (!Tables::kChannel) {
      const uint32_t token = 16u * at.warp + 8u * band + (record >> 8 & 7u);
      scale = reinterpret_cast<const uint32_t*>(mma_ranges<Config>(c, page))[token];
    }
    to.number(zero_point_place<Config::kHeadDim>(channel, record, band) + at.warp * to.kRun) =
        outlier_zero_point(level, scale, record);
  });
  sync_warp();
}

/// Half of what the outliers of the warp's run of values differ from their decoded values, for mix_quarter.
template <class Config, class Tables>
KVCC_DEVICE void fill_differences(BlockPatch<Config::kHeadDim>& to, const Tables& s, const KvccCache& c, uint8_t* page,
                                  const uint32_t* tile, int32_t head, const Slots& slots, const Lane& at) {
  KVCC_UNROLL
  for (int k = 0; k < Config::kHeadDim / 16; ++k) {
    to.fragment[(static_cast<int>(at.warp) * to.kSteps + k) * 32 + static_cast<int>(at.lane)] = {};
  }
  sync_warp();
  each_record<Config>(c, page, tile, head, slots, s, at, [&](uint32_t record, Half2 level, uint32_t band) {
    const uint32_t token = 16u * at.warp + 8u * band + (record >> 8 & 7u);
    to.number(value_place<Config::kHeadDim>(record & 255u, token)) =
        half_difference<Config>(c, page, head, level, record, token);
  });
}

/// Sums of the warp's channels.
template <int D>
using QuarterMix = Mix<D / kMmaWarps, kBlockTiles>;
/// Where the outliers' shares of them are added. Mix has levels where scales are the channels', so there they need sums
/// of their own.
template <class Config>
struct OutlierQuarter {
  static constexpr int D = Config::kHeadDim;
  static constexpr bool kOwn = kMmaSparse<Config> && Config::kAxis == Axis::channel;
  float sum[kOwn ? kBlockTiles : 1][kOwn ? D / 64 : 1][4];

  KVCC_DEVICE float (&of(QuarterMix<D>& mix, int tile, int block))[4] {
    if constexpr (kOwn) {
      return sum[tile][block];
    } else {
      return mix.sum[tile][block];
    }
  }
  template <class Do>
  KVCC_DEVICE void each(const Do& action) {
    if constexpr (kOwn) {
      KVCC_UNROLL
      for (int j = 0; j < kBlockTiles; ++j) {
        KVCC_UNROLL
        for (int i = 0; i < D / 64; ++i) {
          KVCC_UNROLL
          for (int e = 0; e < 4; ++e) action(sum[j][i][e], j, i, e);
        }
      }
    }
  }
};

}  // namespace kvcc::device
