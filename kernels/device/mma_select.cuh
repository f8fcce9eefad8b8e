// First half of pack into layout mma-1, token axis: a block a token, the outliers and the range of all its heads.
//   grid   (count, 1, sequence); kvcc_grid_mma_pack_select; launched before MmaPack
//   phases those of SelectToken; then range, inliers' ends and outliers
#pragma once

#include "kernels/device/mma_page.cuh"
#include "kernels/device/select_token.cuh"

namespace kvcc::device {

template <class Config>
struct MmaSelect {
  using Params = KvccPackParams;
  using Select = SelectToken<Config>;
  using Shared = typename Select::Shared;
  static constexpr int kThreads = KVCC_THREADS;

  static KVCC_HD int phases(const Params& p, const Block& b) {
    return Select::position(p, b) < p.cache.sink ? 0 : Select::kPhases + 1;
  }

  /// Every unit of a mixed artifact finds the same, so that units need no order among each other.
  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    if (k < Select::kPhases) return Select::phase(k, p, b, thread, shared);
    const int64_t token = static_cast<int64_t>(b.z) * p.count + b.x;
    if constexpr (Select::kTail) {
      uint32_t* const selected = p.selected + token * 2 * p.cache.tail;
      uint32_t next = Select::first_outlier(thread, shared);
      Select::for_chunk(p, b, thread, shared, [&](int32_t column, float x, bool outlier) {
        if (!outlier) return;
        selected[next++] = static_cast<uint32_t>(column) | static_cast<uint32_t>(record_half(x, p.status)) << 16;
      });
    }
    if (thread != 0) return;
    p.inliers[token * 2] = shared.row_low;
    p.inliers[token * 2 + 1] = shared.row_high;
    if (!writes_shared_part<Config>(p.cache)) return;
    const int32_t packed = Select::position(p, b) - p.cache.sink;
    uint8_t* const base = page(p.cache, b.z, packed / KVCC_PAGE_TOKENS);
    mma_ranges<Config>(p.cache, base)[packed % KVCC_PAGE_TOKENS] = shared.range;
  }
};

}  // namespace kvcc::device
