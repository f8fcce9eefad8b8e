// dequantise: positions [first, first + count) to f32 rows, for prefill over a packed prefix and for checks.
//   grid (tiles of the range, KV head, sequence); kvcc_grid_dequantise
#pragma once

#include "kernels/device/tile.cuh"

namespace kvcc::device {

template <class Config>
struct Dequantise {
  using Params = KvccDequantiseParams;
  using TileType = Tile<Config>;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, kTokens = TileType::kTokens;
  struct Shared {
    TileType tile;
  };

  static KVCC_HD int phases(const Params& p, const Block& b) {
    const int32_t offset = static_cast<int32_t>(b.x) * kTokens;
    const bool any = offset < p.count && p.first[b.z] + offset < p.cache.lengths[b.z];
    return any && serves<Config>(p.cache.layer, static_cast<int32_t>(b.y)) ? 4 : 0;
  }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    const int32_t head = static_cast<int32_t>(b.y), offset = static_cast<int32_t>(b.x) * kTokens;
    const int32_t first = p.first[b.z] + offset, length = p.cache.lengths[b.z];
    switch (k) {
      case 0:
        load_levels<Config>(p.cache, head, thread, shared.tile);
        break;
      case 1:
        decode_codes<Config>(p.cache, b.z, head, first, length, thread, shared.tile);
        break;
      case 2:
        apply_outliers<Config>(p.cache, b.z, head, first, length, thread, shared.tile);
        break;
      default:
        for (int i = thread; i < kTokens * D; i += kThreads) {
          const int token = i / D;
          if (offset + token >= p.count || first + token >= length) continue;
          p.out[((static_cast<int64_t>(b.z) * p.count + offset + token) * p.cache.heads + head) * D + i % D] =
              shared.tile.value[token * TileType::kStride + i % D];
        }
    }
  }
};

}  // namespace kvcc::device
