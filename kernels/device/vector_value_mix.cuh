// value_mix, vector codebooks: one block walks a part of the context tile by tile, and adds the coordinates of one KV
// head's values, each weighted, for up to kGroupTile queries of the head's group. The inverse transform is linear: it
// is applied once, to the sums. ValueMerge (value_mix.cuh) then adds the parts in ascending order.
//   grid  kvcc_grid_value_mix; of the merge kvcc_grid_value_merge
//   order coordinates and exact rows are summed over ascending positions of the split, one fused multiply-add each; the
//         transform's sum is over coordinates ascending
#pragma once

#include "kernels/device/value_mix.cuh"
#include "kernels/device/vector_tile.cuh"

namespace kvcc::device {

template <class Config>
struct VectorValueMix {
  using Params = KvccVectorValueMixParams;
  using TileType = VectorTile<Config, false>;  // no tile is transformed
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, G = Config::kGroupTile, kTokens = TileType::kTokens;
  static constexpr bool kTransform = Config::kTransform;

  struct Shared {
    TileType tile;
    float weight[G * kTokens];
    float sum[G * D];                          ///< of channels: exact rows, and all without a transform
    float coordinate[kTransform ? G * D : 1];  ///< of coordinates of packed tokens
    float total[G];                            ///< of their weights: what multiplies the mean
  };
  struct Place : QueryTile {
    int32_t length;
    int32_t tile_first, tile_count;  ///< tiles of this split
  };
  static KVCC_HD Place place(const Params& p, const Block& b) {
    const int32_t length = p.mix.cache.lengths[b.z], tiles = (length + kTokens - 1) / kTokens;
    const int32_t each = (tiles + p.mix.splits - 1) / p.mix.splits, first = static_cast<int32_t>(b.x) * each;
    const int32_t count = tiles - first < each ? tiles - first : each;
    return {query_tile(b.y, p.mix.group, G), length, first, count < 0 ? 0 : count};
  }
  // An empty split still writes its zeros: the merge reads all of them.
  static KVCC_HD int phases(const Params& p, const Block& b) { return 2 + 2 * place(p, b).tile_count; }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    const Place at = place(p, b);
    if (k == 0) {
      for (int i = thread; i < G * D; i += kThreads) {
        shared.sum[i] = 0.0f;
        if (kTransform) shared.coordinate[i] = 0.0f;
      }
      if (thread < G) shared.total[thread] = 0.0f;
      return;
    }
    if (k == 1 + 2 * at.tile_count) {
      store(p, b, at, thread, shared);
      return;
    }
    const int32_t first = (at.tile_first + (k - 1) / 2) * kTokens;
    if ((k - 1) % 2 == 0) {
      decode_vectors(p.mix.cache, p.tensor, b.z, at.head, first, at.length, thread, shared.tile);
      load_weights(p, b, at, first, thread, shared);
    } else {
      accumulate(p, at, first, thread, shared);
    }
  }

 private:
  static KVCC_HD void load_weights(const Params& p, const Block& b, const Place& at, int32_t first, int thread,
                                   Shared& shared) {
    for (int i = thread; i < at.queries * kTokens; i += kThreads) {
      const int g = i / kTokens, token = i % kTokens;
      if (first + token >= at.length) continue;
      const int64_t row = at.row(b.z, p.mix.cache.heads, p.mix.group) + g;
      shared.weight[i] = load<Config::kDtype>(p.mix.weights, row * p.mix.weights_stride + first + token);
    }
  }

  static KVCC_HD void accumulate(const Params& p, const Place& at, int32_t first, int thread, Shared& shared) {
    const int tokens = at.length - first < kTokens ? at.length - first : kTokens;
    for (int i = thread; i < at.queries * D; i += kThreads) {
      const int g = i / D, d = i % D;
      float sum = shared.sum[i], coordinate = kTransform ? shared.coordinate[i] : 0.0f;
      float total = d == 0 ? shared.total[g] : 0.0f;
      for (int t = 0; t < tokens; ++t) {
        const float weight = shared.weight[g * kTokens + t];
        const bool packed = exact_row(p.mix.cache, first + t, at.length) < 0;
        if (kTransform && packed) {
          coordinate = fused_multiply_add(weight, shared.tile.value[t * TileType::kStride + d], coordinate);
          total = add(total, weight);
        } else {
          sum = fused_multiply_add(weight, shared.tile.value[t * TileType::kStride + d], sum);
        }
      }
      shared.sum[i] = sum;
      if (kTransform) shared.coordinate[i] = coordinate;
      if (d == 0) shared.total[g] = total;
    }
  }

  static KVCC_HD void store(const Params& p, const Block& b, const Place& at, int thread, Shared& shared) {
    const int64_t rows = static_cast<int64_t>(p.mix.cache.heads) * p.mix.group;  // of one sequence
    for (int i = thread; i < at.queries * D; i += kThreads) {
      const int g = i / D, d = i % D;
      float out = shared.sum[i];
      if (kTransform) {
        const float* const inverse = p.tensor.inverse + (static_cast<int64_t>(at.head) * D + d) * D;
        out = fused_multiply_add(shared.total[g], p.tensor.mean[at.head * D + d], out);
        for (int j = 0; j < D; ++j) out = fused_multiply_add(inverse[j], shared.coordinate[g * D + j], out);
      }
      const int64_t row = static_cast<int64_t>(at.head) * p.mix.group + at.group_first + g;
      if (p.mix.splits == 1) {
        p.mix.out[(b.z * rows + row) * D + d] = out;
      } else {
        p.mix.partial[((static_cast<int64_t>(b.z) * p.mix.splits + b.x) * rows + row) * D + d] = out;
      }
    }
  }
};

/// Adds the splits of VectorValueMix. Launched only when splits > 1.
template <class Config>
struct VectorValueMerge {
  using Params = KvccVectorValueMixParams;
  using Scalar = ValueMerge<Config>;
  using Shared = typename Scalar::Shared;
  static constexpr int kThreads = Scalar::kThreads;
  static KVCC_HD int phases(const Params& p, const Block& b) { return Scalar::phases(p.mix, b); }
  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    Scalar::phase(k, p.mix, b, thread, shared);
  }
};

}  // namespace kvcc::device
