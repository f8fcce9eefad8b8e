// dequantise, vector codebooks: positions [first, first + count) to f32 rows.
//   grid   kvcc_grid_dequantise
//   phases decode; inverse transform; store
#pragma once

#include "kernels/device/vector_tile.cuh"

namespace kvcc::device {

template <class Config>
struct VectorDequantise {
  using Params = KvccVectorDequantiseParams;
  using TileType = VectorTile<Config>;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, kTokens = TileType::kTokens;
  struct Shared {
    TileType tile;
  };

  static KVCC_HD int32_t end(const Params& p, const Block& b) {
    const int32_t length = p.dequantise.cache.lengths[b.z], asked = p.dequantise.first[b.z] + p.dequantise.count;
    return length < asked ? length : asked;
  }
  static KVCC_HD int32_t begin(const Params& p, const Block& b) {
    return p.dequantise.first[b.z] + static_cast<int32_t>(b.x) * kTokens;
  }
  static KVCC_HD int phases(const Params& p, const Block& b) { return begin(p, b) < end(p, b) ? 3 : 0; }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    const KvccCache& c = p.dequantise.cache;
    const int32_t head = static_cast<int32_t>(b.y), first = begin(p, b), length = c.lengths[b.z];
    if (k == 0) {
      decode_vectors(c, p.tensor, b.z, head, first, length, thread, shared.tile);
    } else if (k == 1) {
      transform_vectors<Config>(c, p.tensor, head, first, length, thread, shared.tile);
    } else {
      for (int i = thread; i < kTokens * D; i += kThreads) {
        const int32_t position = first + i / D;
        if (position >= end(p, b)) break;
        const int64_t row = static_cast<int64_t>(b.z) * p.dequantise.count + position - p.dequantise.first[b.z];
        p.dequantise.out[(row * c.heads + head) * D + i % D] = shared.tile.value[i / D * TileType::kStride + i % D];
      }
    }
  }
};

}  // namespace kvcc::device
