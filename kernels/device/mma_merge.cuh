// How the results of a block's warps, each with pages of its own, become the block's: in the order of the warps, so
// that they do not depend on the schedule.
#pragma once

#include "kernels/device/mma_values.cuh"

namespace kvcc::device {

template <int D, int kGroup>
struct MergedSums {
  static constexpr int kStride = D + 4;  ///< rows of neighbouring queries in other banks
  float sum[kGroup * kStride];           ///< [query, channel]
};
template <int kGroup>
struct WarpTotals {
  float reference[kMmaWarps][kGroup];
  float total[kMmaWarps][kGroup];
};

/// Greatest reference of a query over the warps, and the total in its unit.
struct MergedTotal {
  float reference, total;
};
template <int kGroup>
KVCC_DEVICE MergedTotal merged_total(const WarpTotals<kGroup>& totals, int query) {
  MergedTotal out{totals.reference[0][query], 0};
  for (int w = 1; w < kMmaWarps; ++w) out.reference = maximum(out.reference, totals.reference[w][query]);
  for (int w = 0; w < kMmaWarps; ++w) {
    const float factor = exp2_approximate(add(totals.reference[w][query], -out.reference));
    out.total = fused_multiply_add(totals.total[w][query], factor, out.total);
  }
  return out;
}

/// Brings the warps' sums to the greatest reference and adds them into `merged`, which may lie over the tables.
/// All warps of the block must come here.
template <int D, int kTiles>
KVCC_DEVICE void merge_warps(Mix<D, kTiles>& mix, MergedSums<D, kTiles * kMmaQueries>& merged,
                             WarpTotals<kTiles * kMmaQueries>& totals, const Lane& at) {
  KVCC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
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
  float factor[kTiles][2];
  KVCC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    KVCC_UNROLL
    for (int q = 0; q < 2; ++q) {
      const uint32_t query = j * kMmaQueries + 2 * at.column + q;
      float best = totals.reference[0][query];
      for (int w = 1; w < kMmaWarps; ++w) best = maximum(best, totals.reference[w][query]);
      factor[j][q] = exp2_approximate(add(mix.reference[j][q], -best));
    }
  }
  mix.scale(factor);
  KVCC_ROLLED
  for (int w = 0; w < kMmaWarps; ++w) {
    if (w == static_cast<int>(at.warp)) {
      KVCC_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        KVCC_UNROLL
        for (int i = 0; i < D / 16; ++i) {
          KVCC_UNROLL
          for (int e = 0; e < 4; ++e) {
            const int query = j * kMmaQueries + 2 * static_cast<int>(at.column) + e % 2;
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
