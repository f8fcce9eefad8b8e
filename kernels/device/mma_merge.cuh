// Which queries and tiles a warp takes, and how the warps' results become the block's: in the order of the warps, so
// that results do not depend on the schedule.
#pragma once

#include "kernels/device/mma_values.cuh"

namespace kvcc::device {

/// Up to 128 channels a warp serves all the block's queries, so that a decoded element is shared by all of them. Above,
/// 16 queries would not fit its registers: two warps take the first 8, two the others, and each pair decodes for
/// itself.
template <int D, int kGroup>
struct WarpPlan {
  static_assert(kGroup == 8 || kGroup == 16);
  static constexpr int kTiles = D <= 128 ? kGroup / kMmaQueries : 1;  ///< tiles of queries a warp
  static constexpr int kSets = kGroup / kMmaQueries / kTiles;
  static constexpr int kWarps = kMmaWarps / kSets;  ///< warps of a set; they share out the tiles of the context
  static KVCC_HD int set(uint32_t warp) { return static_cast<int>(warp) / kWarps; }
  static KVCC_HD int member(uint32_t warp) { return static_cast<int>(warp) % kWarps; }
};

/// Below every reference that a query can have.
constexpr float kNoReference = -1e30f;

template <int D, int kGroup>
struct MergedSums {
  static constexpr int kStride = D + 4;  ///< rows of neighbouring queries in other banks
  float sum[kGroup * kStride];           ///< [query, channel]
};
template <int kGroup>
struct WarpTotals {
  static constexpr int kEach = kGroup < 16 ? 8 : 16;
  float reference[kMmaWarps][kEach];
  float total[kMmaWarps][kEach];
};

/// Greatest reference of a query over its set's warps, and the total in its unit.
struct MergedTotal {
  float reference, total;
};
template <class Plan, int kGroup>
KVCC_DEVICE MergedTotal merged_total(const WarpTotals<kGroup>& totals, int query) {
  const int tile = query / kMmaQueries, first = tile / Plan::kTiles * Plan::kWarps;
  const int at = tile % Plan::kTiles * kMmaQueries + query % kMmaQueries;
  MergedTotal out{totals.reference[first][at], 0};
  for (int w = 1; w < Plan::kWarps; ++w) out.reference = maximum(out.reference, totals.reference[first + w][at]);
  for (int w = 0; w < Plan::kWarps; ++w) {
    const float factor = exp2_approximate(add(totals.reference[first + w][at], -out.reference));
    out.total = fused_multiply_add(totals.total[first + w][at], factor, out.total);
  }
  return out;
}

/// Brings the set's warps' sums to the greatest reference and adds them into `merged`, which may lie over the tables.
/// All warps of the block must come here.
template <class Plan, int D, int kGroup>
KVCC_DEVICE void merge_warps(Mix<D, Plan::kTiles>& mix, MergedSums<D, kGroup>& merged, WarpTotals<kGroup>& totals,
                             const Lane& at) {
  const int set = Plan::set(at.warp), member = Plan::member(at.warp);
  KVCC_UNROLL
  for (int j = 0; j < Plan::kTiles; ++j) {
    KVCC_UNROLL
    for (int q = 0; q < 2; ++q) {
      const float total = sum_over_rows(mix.total[j][q]);
      const uint32_t query = j * kMmaQueries + 2 * at.column + q;
      if (at.row == 0) {
        totals.reference[at.warp][query] = mix.reference[j][q];
        totals.total[at.warp][query] = total;
      }
    }
  }
  sync_block();
  float factor[Plan::kTiles][2];
  KVCC_UNROLL
  for (int j = 0; j < Plan::kTiles; ++j) {
    KVCC_UNROLL
    for (int q = 0; q < 2; ++q) {
      const uint32_t query = j * kMmaQueries + 2 * at.column + q;
      float best = totals.reference[set * Plan::kWarps][query];
      for (int w = 1; w < Plan::kWarps; ++w) best = maximum(best, totals.reference[set * Plan::kWarps + w][query]);
      factor[j][q] = exp2_approximate(add(mix.reference[j][q], -best));
    }
  }
  mix.scale(factor);
  KVCC_ROLLED
  for (int w = 0; w < Plan::kWarps; ++w) {
    if (w == member) {
      KVCC_UNROLL
      for (int j = 0; j < Plan::kTiles; ++j) {
        KVCC_UNROLL
        for (int i = 0; i < D / 16; ++i) {
          KVCC_UNROLL
          for (int e = 0; e < 4; ++e) {
            const int query = (set * Plan::kTiles + j) * kMmaQueries + 2 * static_cast<int>(at.column) + e % 2;
            float& to = merged.sum[query * merged.kStride + 16 * i + e / 2 * 8 + static_cast<int>(at.row)];
            to = w == 0 ? mix.sum[j][i][e] : add(to, mix.sum[j][i][e]);
          }
        }
      }
    }
    sync_block();
  }
}

}  // namespace kvcc::device
