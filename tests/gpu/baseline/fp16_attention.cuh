// Decode attention over the cache of fp16.cuh: scores, online softmax and sums in one pass, as kernels/device/attention
// has them, without anything to decode. Limited to the registers of three blocks a multiprocessor; on sm_80 to sm_89
// one of them is spilled and read back once a tile, one instruction in about 460.
#pragma once

#include "tests/gpu/baseline/fp16.cuh"

namespace kvcc::gpu {

/// Attention. Grid fp16_grid, then Fp16AttentionMerge when splits > 1.
template <int D>
struct Fp16Attention : Fp16<D> {
  using Base = Fp16<D>;
  using Params = Fp16Params;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 3;
  using Shared = Fp16Merge<D>;

  struct State {  ///< of queries 2 t and 2 t + 1, in units of log2
    float most[2] = {negative_infinity(), negative_infinity()}, sum[2] = {0, 0};
    float out[Base::kSteps][4] = {};
  };

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const auto at = Base::place(p);
    State state;
    const int32_t i = at.first + static_cast<int32_t>(at.warp);
    if (i < at.end) stream(p, at, i, state);
    KVCC_UNROLL
    for (int j = 0; j < 2; ++j) {  // each lane added its own tokens
      KVCC_UNROLL
      for (uint32_t lanes = 4; lanes < 32; lanes *= 2) {
        state.sum[j] = device::add(state.sum[j], device::shuffle_xor(state.sum[j], lanes));
      }
      shared.most[at.warp][2 * at.t + j] = state.most[j];
      shared.sum[at.warp][2 * at.t + j] = state.sum[j];
    }
    KVCC_UNROLL
    for (int m = 0; m < Base::kSteps; ++m) {
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        shared.out[at.warp][2 * at.t + e % 2][16 * m + at.g + 8 * (e / 2)] = state.out[m][e];
      }
    }
    device::sync_block();
    const Block b = device::block_index();
    const int64_t rows = static_cast<int64_t>(p.heads) * p.group;
    for (int32_t j = static_cast<int32_t>(device::thread_index()); j < p.group * D; j += kThreads) {
      const int32_t query = j / D, d = j % D;
      float most = negative_infinity(), sum = 0, out = 0;
      for (int warp = 0; warp < Base::kWarps; ++warp) {
        most = most < shared.most[warp][query] ? shared.most[warp][query] : most;
      }
      for (int warp = 0; warp < Base::kWarps; ++warp) {
        if (shared.sum[warp][query] == 0.0f) continue;
        const float factor = device::exp2_approximate(shared.most[warp][query] - most);
        sum = fused_multiply_add(shared.sum[warp][query], factor, sum);
        out = fused_multiply_add(shared.out[warp][query][d], factor, out);
      }
      if (p.splits == 1) {
        p.out[Base::row(p, at, static_cast<uint32_t>(query)) * D + d] = sum == 0.0f ? 0.0f : out / sum;
        continue;
      }
      float* to = p.partial + ((b.z * static_cast<int64_t>(p.splits) + b.x) * rows +
                               static_cast<int64_t>(at.head) * p.group + query) *
                                  (D + 2);
      to[d] = out;
      if (d == 0) {
        to[D] = most;
        to[D + 1] = sum;
      }
    }
  }

 private:
  static KVCC_DEVICE void stream(const Params& p, const typename Base::Place& at, int32_t i, State& state) {
    typename Base::Group buffer[2];
    uint32_t query[Base::kSteps][2];
    Base::load_queries(p, at, query);
    const float unit = device::multiply(p.multiplier, kLog2E);
    const uint8_t* keys = Base::tile(p, p.key_pages, at, i);
    const uint8_t* values = Base::tile(p, p.value_pages, at, i);
    Base::load(buffer[0], keys, 0, at);
    while (i < at.end) {
      const int32_t next = i + Base::kWarps;
      const uint8_t* next_keys = Base::tile(p, p.key_pages, at, next < at.end ? next : i);
      const uint8_t* next_values = Base::tile(p, p.value_pages, at, next < at.end ? next : i);
      float score[4][4];
      KVCC_UNROLL
      for (int m = 0; m < 4; ++m) {
        if (m < 3) {
          Base::load(buffer[(m + 1) & 1], keys, m + 1, at);
        } else {
          Base::load(buffer[0], values, 0, at);
        }
        Base::score(buffer[m & 1], query, score[m]);
      }
      soften(at, i, unit, score, state);
      KVCC_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (k < 3) {
          Base::load(buffer[(k + 1) & 1], values, k + 1, at);
        } else if (next < at.end) {
          Base::load(buffer[0], next_keys, 0, at);
        }
        const uint32_t b0 = device::transpose_8x8(device::pack_half2(score[k][0], score[k][1]));
        const uint32_t b1 = device::transpose_8x8(device::pack_half2(score[k][2], score[k][3]));
        Base::mix(buffer[k & 1], b0, b1, state.out);
      }
      i = next;
      keys = next_keys;
      values = next_values;
    }
  }

  /// Scores to softmax weights relative to the running maximum.
  static KVCC_DEVICE void soften(const typename Base::Place& at, int32_t i, float unit, float (&score)[4][4],
                                 State& state) {
    const bool partial = i * 64 + 64 > at.length;
    float most[2] = {state.most[0], state.most[1]};
    KVCC_UNROLL
    for (int m = 0; m < 4; ++m) {
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int32_t position = i * 64 + 16 * m + static_cast<int32_t>(at.g) + 8 * (e / 2);
        score[m][e] = device::multiply(score[m][e], unit);
        if (partial && position >= at.length) score[m][e] = negative_infinity();
        most[e % 2] = most[e % 2] < score[m][e] ? score[m][e] : most[e % 2];
      }
    }
    float factor[2];
    KVCC_UNROLL
    for (int j = 0; j < 2; ++j) {
      KVCC_UNROLL
      for (uint32_t lanes = 4; lanes < 32; lanes *= 2) {
        const float other = device::shuffle_xor(most[j], lanes);
        most[j] = most[j] < other ? other : most[j];
      }
      factor[j] = device::exp2_approximate(state.most[j] - most[j]);  // 0 the first time; a tile has a visible token
      state.most[j] = most[j];
      state.sum[j] = device::multiply(state.sum[j], factor[j]);
    }
    KVCC_UNROLL
    for (int m = 0; m < Base::kSteps; ++m) {
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) state.out[m][e] = device::multiply(state.out[m][e], factor[e % 2]);
    }
    KVCC_UNROLL
    for (int m = 0; m < 4; ++m) {
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        score[m][e] = device::exp2_approximate(score[m][e] - most[e % 2]);
        state.sum[e % 2] = device::add(state.sum[e % 2], score[m][e]);
      }
    }
  }
};

/// Combines the splits of Fp16Attention. Grid fp16_merge_grid.
template <int D>
struct Fp16AttentionMerge {
  using Params = Fp16Params;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 1;
  struct Shared {
    uint32_t unused;
  };
  static KVCC_DEVICE void run(const Params& p, Shared&) {
    const Block b = device::block_index();
    const int64_t rows = static_cast<int64_t>(p.heads) * p.group;
    const float* from = p.partial + (b.z * static_cast<int64_t>(p.splits) * rows + b.x) * (D + 2);
    const int64_t step = rows * (D + 2);
    float most = negative_infinity();
    for (int32_t split = 0; split < p.splits; ++split) {
      const float other = from[split * step + D];
      most = most < other ? other : most;
    }
    for (uint32_t d = device::thread_index(); d < D; d += kThreads) {
      float sum = 0, out = 0;
      for (int32_t split = 0; split < p.splits; ++split) {
        const float* part = from + split * step;
        if (part[D + 1] == 0.0f) continue;
        const float factor = device::exp2_approximate(part[D] - most);
        sum = fused_multiply_add(part[D + 1], factor, sum);
        out = fused_multiply_add(part[d], factor, out);
      }
      p.out[(b.z * rows + b.x) * D + d] = sum == 0.0f ? 0.0f : out / sum;
    }
  }
};

}  // namespace kvcc::gpu
