// What packed caches are timed against: decode attention over an fp16 cache, written as the mma-1 families are. Blocks
// of four warps, one (split, KV head, sequence); a warp streams whole tiles of 64 tokens without block barriers;
// queries of a group share each loaded key on the tensor cores; partial results merge in a fixed order. Keys are stored
// rotated.
//
// The cache lies in the order of the A operands, so that every load is 128 bits a lane and 512 contiguous bytes a warp,
// and nothing is moved between lanes: no fp16 kernel reads it with fewer instructions. A page is 64 tokens of all
// heads, a head's tile D / 4 chunks of 512 bytes, four words a lane (formats/layout/mma.h says which lane 4 g + t is):
//   keys    chunk (m, s), m < 4 outer, s < D / 16: A = tokens 16 m … by channels 16 s …
//   values  chunk (k, m), k < 4 outer, m < D / 16: A = channels 16 m … by tokens 16 k …
// Tolerance: products of fp16 numbers summed in f32, softmax weights rounded to fp16:
//   scores 2^-18 multiplier sum |q||k|; mix 2^-18 sum |w||v|; attention 2^-10 sum p |v| + 1e-6, a few hundred tokens.
#pragma once

#include "formats/layout/mma_launch.h"
#include "kernels/device/common.cuh"
#include "kernels/device/intrinsics.cuh"
#include "kernels/device/launch.cuh"

namespace kvcc::gpu {

using device::Block;
using device::Words;

struct Fp16Params {
  const uint8_t* key_pages;    // [pages, H, 64 * D] fp16
  const uint8_t* value_pages;  // likewise
  const int32_t* page_table;   // [S, N]
  const int32_t* lengths;      // [S]
  const uint16_t* query;       // [S, H * group, D] fp16
  const uint16_t* weights;     // [S, H * group, stride] fp16; value mix
  float* scores;               // [S, H * group, stride]; key scores
  float* partial;              // [S, splits, H * group, D + 2] attention, [S, splits, H * group, D] mix; null: 1 split
  float* out;                  // [S, H * group, D]
  int64_t stride;              // even
  float multiplier;
  int32_t group;  // at most 8
  int32_t splits, sequences, heads, max_pages;
};

/// Place of (token, channel) of a head's tile, in halves.
KVCC_HD constexpr uint32_t fp16_key_place(uint32_t head_dim, uint32_t token, uint32_t channel) {
  const uint32_t chunk = token / 16u * (head_dim / 16u) + channel / 16u;
  const uint32_t word = token / 8u % 2u + channel / 8u % 2u * 2u, lane = token % 8u * 4u + channel % 8u / 2u;
  return ((chunk * 32u + lane) * 4u + word) * 2u + channel % 2u;
}
KVCC_HD constexpr uint32_t fp16_value_place(uint32_t head_dim, uint32_t token, uint32_t channel) {
  const uint32_t chunk = token / 16u * (head_dim / 16u) + channel / 16u;
  const uint32_t word = channel / 8u % 2u + token / 8u % 2u * 2u, lane = channel % 8u * 4u + token % 8u / 2u;
  return ((chunk * 32u + lane) * 4u + word) * 2u + token % 2u;
}

KVCC_LAUNCH_FN KvccGrid fp16_grid(const Fp16Params* p) {
  return {static_cast<uint32_t>(p->splits), static_cast<uint32_t>(p->heads), static_cast<uint32_t>(p->sequences)};
}
KVCC_LAUNCH_FN KvccGrid fp16_merge_grid(const Fp16Params* p) {
  return {static_cast<uint32_t>(p->heads * p->group), 1u, static_cast<uint32_t>(p->sequences)};
}

constexpr float kLog2E = 1.44269504f;
KVCC_HD inline float negative_infinity() { return bits_float(0xff800000u); }

/// What the three families share. G: 64 tokens by 8 queries of scores, C[m][0..3] as mma_16816 has them.
template <int D>
struct Fp16 {
  static constexpr int kWarps = KVCC_THREADS / 32, kSteps = D / 16;
  static_assert(D % 16 == 0);
  using Group = Words<4>[kSteps];  ///< a fourth of a tile, this lane's share

  struct Place {
    int32_t head, length, first, end;  ///< tiles of the split
    uint32_t warp, lane, g, t;
  };
  static KVCC_DEVICE Place place(const Fp16Params& p) {
    const Block b = device::block_index();
    Place at;
    at.head = static_cast<int32_t>(b.y);
    at.length = p.lengths[b.z];
    const int32_t tiles = (at.length + 63) / 64, each = (tiles + p.splits - 1) / p.splits;
    at.first = static_cast<int32_t>(b.x) * each;
    at.end = at.first + each < tiles ? at.first + each : tiles;
    at.warp = device::thread_index() / 32u;
    at.lane = device::thread_index() % 32u;
    at.g = at.lane / 4u;
    at.t = at.lane % 4u;
    return at;
  }
  static KVCC_DEVICE int64_t row(const Fp16Params& p, const Place& at, uint32_t query) {
    return (static_cast<int64_t>(device::block_index().z) * p.heads + at.head) * p.group + query;
  }
  static KVCC_DEVICE const uint8_t* tile(const Fp16Params& p, const uint8_t* pages, const Place& at, int32_t i) {
    const int64_t page = p.page_table[static_cast<int64_t>(device::block_index().z) * p.max_pages + i];
    return pages + (page * p.heads + at.head) * (64 * D * 2);
  }
  static KVCC_DEVICE void load(Group& group, const uint8_t* tile, int number, const Place& at) {
    KVCC_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      group[s] = device::load_streamed<4>(tile + (static_cast<uint32_t>(number * kSteps + s) * 32u + at.lane) * 16u);
    }
  }
  /// B operands of the queries: b[s][0..1] for channels 16 s …
  static KVCC_DEVICE void load_queries(const Fp16Params& p, const Place& at, uint32_t (&b)[kSteps][2]) {
    const bool there = static_cast<int32_t>(at.g) < p.group;
    const uint16_t* query = p.query + row(p, at, there ? at.g : 0u) * D;
    KVCC_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      KVCC_UNROLL
      for (int half = 0; half < 2; ++half) {
        const auto* pair = reinterpret_cast<const uint32_t*>(query + 16 * s + 8 * half + 2 * at.t);
        b[s][half] = there ? *pair : 0u;
      }
    }
  }
  static KVCC_DEVICE void score(const Group& keys, const uint32_t (&query)[kSteps][2], float (&c)[4]) {
    KVCC_UNROLL
    for (int i = 0; i < 4; ++i) c[i] = 0.0f;
    KVCC_UNROLL
    for (int s = 0; s < kSteps; ++s) device::mma_16816(c, keys[s].word, query[s][0], query[s][1]);
  }
  static KVCC_DEVICE void mix(const Group& values, uint32_t b0, uint32_t b1, float (&out)[kSteps][4]) {
    KVCC_UNROLL
    for (int m = 0; m < kSteps; ++m) device::mma_16816(out[m], values[m].word, b0, b1);
  }
};

/// Key scores. Grid fp16_grid.
template <int D>
struct Fp16KeyScores : Fp16<D> {
  using Base = Fp16<D>;
  using Params = Fp16Params;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 4;
  struct Shared {
    uint32_t unused;
  };

  static KVCC_DEVICE void run(const Params& p, Shared&) {
    const auto at = Base::place(p);
    uint32_t query[Base::kSteps][2];
    Base::load_queries(p, at, query);
    int32_t i = at.first + static_cast<int32_t>(at.warp);
    if (i >= at.end) return;
    typename Base::Group buffer[2];
    const uint8_t* keys = Base::tile(p, p.key_pages, at, i);
    Base::load(buffer[0], keys, 0, at);
    while (i < at.end) {
      const int32_t next = i + Base::kWarps;
      const uint8_t* next_keys = Base::tile(p, p.key_pages, at, next < at.end ? next : i);
      KVCC_UNROLL
      for (int m = 0; m < 4; ++m) {
        if (m < 3) {
          Base::load(buffer[(m + 1) & 1], keys, m + 1, at);
        } else if (next < at.end) {
          Base::load(buffer[0], next_keys, 0, at);
        }
        float c[4];
        Base::score(buffer[m & 1], query, c);
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int32_t position = i * 64 + 16 * m + static_cast<int32_t>(at.g) + 8 * (e / 2);
          const int32_t number = static_cast<int32_t>(2 * at.t) + e % 2;
          if (position < at.length && number < p.group) {
            p.scores[Base::row(p, at, static_cast<uint32_t>(number)) * p.stride + position] =
                device::multiply(c[e], p.multiplier);
          }
        }
      }
      i = next;
      keys = next_keys;
    }
  }
};

/// Output accumulators of a block's warps, added in the order of the warps, with the weights' maxima and sums.
template <int D>
struct Fp16Merge {
  float out[4][8][D + 1];
  float most[4][8], sum[4][8];
};

/// Value mix. Grid fp16_grid, then Fp16MixMerge when splits > 1.
template <int D>
struct Fp16ValueMix : Fp16<D> {
  using Base = Fp16<D>;
  using Params = Fp16Params;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 3;
  using Shared = Fp16Merge<D>;

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const auto at = Base::place(p);
    float out[Base::kSteps][4] = {};
    const int32_t i = at.first + static_cast<int32_t>(at.warp);
    if (i < at.end) stream(p, at, i, out);
    KVCC_UNROLL
    for (int m = 0; m < Base::kSteps; ++m) {
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) shared.out[at.warp][2 * at.t + e % 2][16 * m + at.g + 8 * (e / 2)] = out[m][e];
    }
    device::sync_block();
    float* to =
        p.splits == 1
            ? p.out + Base::row(p, at, 0) * D
            : p.partial +
                  ((static_cast<int64_t>(device::block_index().z) * p.splits + device::block_index().x) * p.heads +
                   at.head) *
                      p.group * D;
    for (int32_t j = static_cast<int32_t>(device::thread_index()); j < p.group * D; j += kThreads) {
      float sum = shared.out[0][j / D][j % D];
      for (int warp = 1; warp < Base::kWarps; ++warp) sum = device::add(sum, shared.out[warp][j / D][j % D]);
      to[j] = sum;
    }
  }

 private:
  static KVCC_DEVICE void stream(const Params& p, const typename Base::Place& at, int32_t i,
                                 float (&out)[Base::kSteps][4]) {
    typename Base::Group buffer[2];
    const uint8_t* values = Base::tile(p, p.value_pages, at, i);
    const bool there = static_cast<int32_t>(at.g) < p.group;
    const uint16_t* weights = p.weights + Base::row(p, at, there ? at.g : 0u) * p.stride;
    Base::load(buffer[0], values, 0, at);
    while (i < at.end) {
      const int32_t next = i + Base::kWarps;
      const uint8_t* next_values = Base::tile(p, p.value_pages, at, next < at.end ? next : i);
      KVCC_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (k < 3) {
          Base::load(buffer[(k + 1) & 1], values, k + 1, at);
        } else if (next < at.end) {
          Base::load(buffer[0], next_values, 0, at);
        }
        uint32_t b[2];
        KVCC_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int32_t position = i * 64 + 16 * k + 8 * half + static_cast<int32_t>(2 * at.t);
          b[half] = 0;
          if (there && position + 1 < at.length) {
            b[half] = *reinterpret_cast<const uint32_t*>(weights + position);
          } else if (there && position < at.length) {
            b[half] = weights[position];
          }
        }
        Base::mix(buffer[k & 1], b[0], b[1], out);
      }
      i = next;
      values = next_values;
    }
  }
};

/// Adds the splits of Fp16ValueMix. Grid fp16_merge_grid.
template <int D>
struct Fp16MixMerge {
  using Params = Fp16Params;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 1;
  struct Shared {
    uint32_t unused;
  };
  static KVCC_DEVICE void run(const Params& p, Shared&) {
    const Block b = device::block_index();
    const int64_t rows = static_cast<int64_t>(p.heads) * p.group;
    for (uint32_t d = device::thread_index(); d < D; d += kThreads) {
      float sum = 0;
      for (int32_t split = 0; split < p.splits; ++split) {
        sum = device::add(sum, p.partial[((b.z * static_cast<int64_t>(p.splits) + split) * rows + b.x) * D + d]);
      }
      p.out[(b.z * rows + b.x) * D + d] = sum;
    }
  }
};

}  // namespace kvcc::gpu
