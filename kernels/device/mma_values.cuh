// Values on tensor cores: O^T[channel, query] += V^T P, decoded values as A operand straight from the layout, weights
// as B. Token axis: a token's scale is folded into its weights before they become fp16, its zero-point summed a query,
// so that an element costs no arithmetic; channel axis: scale and zero-point are applied once, at the end.
//   weights carry a factor 2^14 where they can, so that the smallest of a long context are not lost in fp16
//   error of out[d], in units of max |value| of what a query sees, and at least 2^-14, below which fp16 thins out:
//   weights and levels are rounded to fp16 once each, 2^-11 each, and weights below 2^-39 / s of the greatest count as
//   0 (2^-25 / s where a token's scale is 2 or more, i.e. values are as large), s being the token's scale, on the
//   channel axis 1: together below 2^-8 for 128 K tokens
#pragma once

#include "kernels/device/mma_common.cuh"

namespace kvcc::device {

/// Weights lie in [0, 2^kWeightExponent] where scales of tokens stay below 2, else in [0, 1]: no product overflows.
constexpr int kWeightExponent = 14;

/// What a block keeps in shared memory to read values.
template <class Config, Table kTable>
struct ValueTables {
  static constexpr int D = Config::kHeadDim;
  static constexpr bool kSparse = kMmaSparse<Config>, kChannel = Config::kAxis == Axis::channel;
  static_assert(D % 16 == 0);
  LevelTable<Config::kBits, kTable> levels;
};

/// Below every reference that a query can have.
constexpr float kNoReference = -1e30f;

/// What a warp gathers: for queries 2 t and 2 t + 1 of each tile of queries. sum[j][channel / 16] are C fragments.
template <int D, int kTiles>
struct Mix {
  float reference[kTiles][2];  ///< log2 of the unit in which sums and totals are kept
  float total[kTiles][2];      ///< of weights, this lane's tokens only
  float offset[kTiles][2];     ///< token axis: weights times zero-points; this lane's tokens only
  float sum[kTiles][D / 16][4];

  KVCC_DEVICE void clear(float first_reference) {
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        reference[j][q] = first_reference;
        total[j][q] = 0;
        offset[j][q] = 0;
      }
      KVCC_UNROLL
      for (int i = 0; i < D / 16; ++i) {
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) sum[j][i][e] = 0;
      }
    }
  }
  /// Moves all but the sums, and `kFragments` of those, to shared memory and back, for a stretch that neither reads nor
  /// writes them and needs the registers. [parked(kFragments), 32] of the warp.
  static KVCC_HD constexpr int parked(int fragments) { return kTiles * 6 + fragments * 4; }
  template <int kFragments>
  KVCC_DEVICE void park(float* to, uint32_t lane) {
    each<kFragments>([&](float& x, int i) { to[i * 32 + static_cast<int>(lane)] = x; });
    sync_warp();  // or the compiler would see that nothing changes, and keep the registers
  }
  template <int kFragments>
  KVCC_DEVICE void unpark(const float* from, uint32_t lane) {
    sync_warp();
    each<kFragments>([&](float& x, int i) { x = from[i * 32 + static_cast<int>(lane)]; });
  }
  template <int kFragments, class Do>
  KVCC_DEVICE void each(const Do& action) {
    KVCC_UNROLL
    for (int i = 0; i < kTiles * 2; ++i) {
      action(reference[i / 2][i % 2], i);
      action(total[i / 2][i % 2], kTiles * 2 + i);
      action(offset[i / 2][i % 2], kTiles * 4 + i);
    }
    KVCC_UNROLL
    for (int i = 0; i < kFragments * 4; ++i) {
      action(sum[i / 4 / (D / 16)][i / 4 % (D / 16)][i % 4], kTiles * 6 + i);
    }
  }
  /// Everything times factor[tile][query].
  KVCC_DEVICE void scale(const float (&factor)[kTiles][2]) {
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        total[j][q] = multiply(total[j][q], factor[j][q]);
        offset[j][q] = multiply(offset[j][q], factor[j][q]);
      }
      KVCC_UNROLL
      for (int i = 0; i < D / 16; ++i) {
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) sum[j][i][e] = multiply(sum[j][i][e], factor[j][e % 2]);
      }
    }
  }
};

/// Greatest of the lanes that hold the same queries.
KVCC_DEVICE float maximum_over_rows(float x) {
  KVCC_UNROLL
  for (uint32_t lanes = 4; lanes < 32; lanes *= 2) x = maximum(x, shuffle_xor(x, lanes));
  return x;
}
/// Sum over the lanes that hold the same queries. The order is fixed, and every lane gets the same bits.
KVCC_DEVICE float sum_over_rows(float x) {
  KVCC_UNROLL
  for (uint32_t lanes = 4; lanes < 32; lanes *= 2) x = add(x, shuffle_xor(x, lanes));
  return x;
}

/// B fragments of 16 tokens' weights, from their C fragments.
template <int kTiles>
KVCC_DEVICE void weight_fragments(uint32_t (&b)[kTiles][2], const float (&weight)[kTiles][4]) {
  KVCC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    KVCC_UNROLL
    for (int i = 0; i < 2; ++i) b[j][i] = transpose_8x8(pack_half2(weight[j][2 * i], weight[j][2 * i + 1]));
  }
}

/// Adds a page's 64 values, weighted: weight[m][j] the C fragment of tokens 16 m … and query tile j; range: of tokens 8
/// band + row (token axis). Codes of part 0 are loaded already.
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void mix_page(Mix<Config::kHeadDim, kTiles>& mix, MmaCodes<Config>& codes, const uint32_t* tile,
                          const float (&weight)[kMmaSteps][kTiles][4], const uint32_t (&range)[8], const Tables& s,
                          const Lane& at) {
  using Codes = MmaCodes<Config>;
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  KVCC_UNROLL
  for (int m = 0; m < kMmaSteps; ++m) {
    const int part = m / Codes::kRuns, run = m % Codes::kRuns;
    if (part > 0 && run == 0) codes.load(tile, part, at.lane);
    float scaled[kTiles][4];
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float w = weight[m][j][e];
        scaled[j][e] = w;
        if constexpr (!Tables::kChannel) {
          const uint32_t r = range[2 * m + e / 2];
          scaled[j][e] = multiply(w, low_half(r));
          mix.offset[j][e % 2] = fused_multiply_add(w, high_half(r), mix.offset[j][e % 2]);
        }
      }
    }
    uint32_t b[kTiles][2];
    weight_fragments(b, scaled);
    KVCC_UNROLL
    for (int i = 0; i < Config::kHeadDim / 16; ++i) {
      uint32_t a[4];
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) a[e] = level_pair(s.levels, codes, 2 * run + e / 2, 2 * i + e % 2, lane_at);
      KVCC_UNROLL
      for (int j = 0; j < kTiles; ++j) mma_16816(mix.sum[j][i], a, b[j][0], b[j][1]);
    }
  }
}

/// Adds 16 exact values, tokens row and row + 8 at value[0] and value[1] (null: 0), with weights b. After settle().
template <int D, int kTiles>
KVCC_DEVICE void mix_exact(Mix<D, kTiles>& mix, const uint32_t (&b)[kTiles][2], const uint16_t* const (&value)[2],
                           const Lane& at) {
  KVCC_UNROLL
  for (int i = 0; i < D / 16; ++i) {
    uint32_t a[4];
    KVCC_UNROLL
    for (int e = 0; e < 4; ++e) {
      const uint16_t* from = value[e / 2];
      const uint32_t channel = (2 * i + e % 2) * 8 + 2 * at.column;
      a[e] = transpose_8x8(from != nullptr ? *reinterpret_cast<const uint32_t*>(from + channel) : 0u);
    }
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) mma_16816(mix.sum[j][i], a, b[j][0], b[j][1]);
    if (i % 4 == 3) sync_warp();  // as in score_exact
  }
}

template <int D, int kTiles>
KVCC_DEVICE void mix_exact(Mix<D, kTiles>& mix, const float (&weight)[kTiles][4], const uint16_t* const (&value)[2],
                           const Lane& at) {
  uint32_t b[kTiles][2];
  weight_fragments(b, weight);
  mix_exact(mix, b, value, at);
}

/// Turns what mix_page gathered into values: scales and zero-points of the channel axis, or the tokens' zero-points.
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void settle(Mix<Config::kHeadDim, kTiles>& mix, const KvccCache& c, int32_t head, const Lane& at) {
  KVCC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    float all[2];
    KVCC_UNROLL
    for (int q = 0; q < 2; ++q) all[q] = sum_over_rows(Tables::kChannel ? mix.total[j][q] : mix.offset[j][q]);
    KVCC_UNROLL
    for (int i = 0; i < Config::kHeadDim / 16; ++i) {
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        float& sum = mix.sum[j][i][e];
        if constexpr (Tables::kChannel) {
          const int64_t channel = static_cast<int64_t>(head) * Config::kHeadDim + 16 * i + e / 2 * 8 + at.row;
          sum = fused_multiply_add(sum, c.scale[channel], multiply(all[e % 2], c.zero[channel]));
        } else {
          sum = add(sum, all[e % 2]);
        }
      }
    }
  }
}

/// Whether one of the lane's tokens has a scale of 2 or more: the weights must then leave their factor.
template <int kTokens>
KVCC_DEVICE bool large_scales(const uint32_t (&range)[kTokens]) {
  uint32_t any = 0;
  KVCC_UNROLL
  for (int i = 0; i < kTokens; ++i) any |= range[i];
  return (any & 0x4000u) != 0;
}

}  // namespace kvcc::device
