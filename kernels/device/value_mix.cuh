// value_mix: one block walks a part of the context tile by tile, decodes the values of one KV head and adds them, each
// weighted, for up to kGroupTile queries of the head's group. ValueMerge then adds the parts in ascending order.
//   grid  (splits, KV head x group tile, sequence); kvcc_grid_value_mix
//   order out[g][d] is summed over ascending positions of the split, one fused multiply-add each
#pragma once

#include "kernels/device/tile.cuh"

namespace kvcc::device {

template <class Config>
struct ValueMix {
  using Params = KvccValueMixParams;
  using TileType = Tile<Config>;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, G = Config::kGroupTile, kTokens = TileType::kTokens;

  struct Shared {
    TileType tile;
    float weight[G * kTokens];
    float sum[G * D];
  };

  struct Place : QueryTile {
    int32_t length;
    int32_t tile_first, tile_count;  ///< tiles of this split
  };
  static KVCC_HD Place place(const Params& p, const Block& b) {
    const int32_t length = p.cache.lengths[b.z], tiles = (length + kTokens - 1) / kTokens;
    const int32_t each = (tiles + p.splits - 1) / p.splits, first = static_cast<int32_t>(b.x) * each;
    const int32_t count = tiles - first < each ? tiles - first : each;
    return {query_tile(b.y, p.group, G), length, first, count < 0 ? 0 : count};
  }

  // An empty split still writes its zeros: the merge reads all of them.
  static KVCC_HD int phases(const Params& p, const Block& b) {
    const Place at = place(p, b);
    return serves<Config>(p.cache.layer, at.head) ? 2 + 3 * at.tile_count : 0;
  }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    const Place at = place(p, b);
    if (k == 0) {
      load_levels<Config>(p.cache, at.head, thread, shared.tile);
      for (int i = thread; i < G * D; i += kThreads) shared.sum[i] = 0.0f;
      return;
    }
    if (k == 1 + 3 * at.tile_count) {
      store(p, b, at, thread, shared);
      return;
    }
    const int32_t first = (at.tile_first + (k - 1) / 3) * kTokens;
    switch ((k - 1) % 3) {
      case 0:
        decode_codes<Config>(p.cache, b.z, at.head, first, at.length, thread, shared.tile);
        load_weights(p, b, at, first, thread, shared);
        break;
      case 1:
        apply_outliers<Config>(p.cache, b.z, at.head, first, at.length, thread, shared.tile);
        break;
      default:
        accumulate(at, first, thread, shared);
    }
  }

 private:
  static KVCC_HD int64_t query_row(const Params& p, const Block& b, const Place& at, int g) {
    return at.row(b.z, p.cache.heads, p.group) + g;
  }

  static KVCC_HD void load_weights(const Params& p, const Block& b, const Place& at, int32_t first, int thread,
                                   Shared& shared) {
    for (int i = thread; i < at.queries * kTokens; i += kThreads) {
      const int g = i / kTokens, token = i % kTokens;
      if (first + token >= at.length) continue;
      shared.weight[i] = load<Config::kDtype>(p.weights, query_row(p, b, at, g) * p.weights_stride + first + token);
    }
  }

  static KVCC_HD void accumulate(const Place& at, int32_t first, int thread, Shared& shared) {
    const int tokens = at.length - first < kTokens ? at.length - first : kTokens;
    for (int i = thread; i < at.queries * D; i += kThreads) {
      const int g = i / D, d = i % D;
      float sum = shared.sum[i];
      for (int t = 0; t < tokens; ++t) {
        sum = fused_multiply_add(shared.weight[g * kTokens + t], shared.tile.value[t * TileType::kStride + d], sum);
      }
      shared.sum[i] = sum;
    }
  }

  static KVCC_HD void store(const Params& p, const Block& b, const Place& at, int thread, Shared& shared) {
    const int64_t rows = static_cast<int64_t>(p.cache.heads) * p.group;  // of one sequence
    for (int i = thread; i < at.queries * D; i += kThreads) {
      const int64_t row = static_cast<int64_t>(at.head) * p.group + at.group_first + i / D;
      if (p.splits == 1) {
        p.out[(b.z * rows + row) * D + i % D] = shared.sum[i];
      } else {
        p.partial[((static_cast<int64_t>(b.z) * p.splits + b.x) * rows + row) * D + i % D] = shared.sum[i];
      }
    }
  }
};

/// Adds the splits of ValueMix. Grid: kvcc_grid_value_merge. Launched only when splits > 1.
template <class Config>
struct ValueMerge {
  using Params = KvccValueMixParams;
  static constexpr int kThreads = KVCC_THREADS;
  struct Shared {
    uint32_t unused;
  };
  static KVCC_HD int phases(const Params&, const Block&) { return 1; }
  static KVCC_HD void phase(int, const Params& p, const Block& b, int thread, Shared&) {
    const int64_t elements = static_cast<int64_t>(p.cache.heads) * p.group * Config::kHeadDim;  // of one sequence
    const int64_t i = static_cast<int64_t>(b.x) * kThreads + thread;
    if (i >= elements || !serves<Config>(p.cache.layer, static_cast<int32_t>(i / (p.group * Config::kHeadDim)))) return;
    float sum = p.partial[b.z * p.splits * elements + i];
    for (int32_t split = 1; split < p.splits; ++split) {
      sum = add(sum, p.partial[(static_cast<int64_t>(b.z) * p.splits + split) * elements + i]);
    }
    p.out[b.z * elements + i] = sum;
  }
};

}  // namespace kvcc::device
