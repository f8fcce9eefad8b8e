// Blocks that take each page together, for 9 to 16 queries of a head of more than 128 channels: what one warp would
// gather for all of them would not fit its registers. A warp decodes the keys of a run of 16 tokens and multiplies them
// by all queries; weights meet in shared memory; then it decodes a quarter of the values' channels, of all tokens, and
// multiplies them by all weights. No element is decoded twice, and no warp's sums are merged with another's.
#pragma once

#include "kernels/device/mma_block_outliers.cuh"

namespace kvcc::device {

/// What the warps of a block tell each other of a page.
struct Exchange {
  alignas(16) float most[kMmaWarps][kBlockQueries];  ///< greatest score or weight of a warp's run; totals at the end
  float offset[kMmaWarps][kBlockQueries];            ///< as Mix::offset, when the pages are done
  alignas(16) uint32_t asks[kMmaWarps];              ///< whether a warp's run asks for a new reference
  alignas(16) uint32_t weight[kMmaSteps][32][4];     ///< [run, lane]: B fragments of both tiles of queries
  alignas(16) uint32_t outlier[kMmaSteps][32][4];    ///< the same, twice the weights, without scales of tokens
};

/// Over the warps, in order: greatest or sum of what each wrote, at the queries of a column.
template <class Join>
KVCC_DEVICE void join_warps(float (&out)[kBlockTiles][2], const float (&of)[kMmaWarps][kBlockQueries], const Lane& at,
                            const Join& join) {
  KVCC_UNROLL
  for (int j = 0; j < kBlockTiles; ++j) {
    KVCC_UNROLL
    for (int w = 0; w < kMmaWarps; ++w) {
      const Float2 both = *reinterpret_cast<const Float2*>(&of[w][j * kMmaQueries + 2 * at.column]);
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) out[j][q] = w == 0 ? both.x[q] : join(out[j][q], both.x[q]);
    }
  }
}
/// What the runs of a page ask for, of kAsks…: the warps' answers together, after a barrier.
constexpr uint32_t kAsksRise = 1, kAsksNoFactor = 2;  ///< a score or weight above the reference; a scale of 2 or more
KVCC_DEVICE uint32_t ask_warps(uint32_t (&asks)[kMmaWarps], bool rises, bool large, const Lane& at) {
  const uint32_t any_rises = ballot(rises), any_large = ballot(large);
  if (at.lane == 0) asks[at.warp] = (any_rises != 0 ? kAsksRise : 0u) | (any_large != 0 ? kAsksNoFactor : 0u);
  sync_block();
  const auto all = *reinterpret_cast<const Words<4>*>(asks);
  return all.word[0] | all.word[1] | all.word[2] | all.word[3];
}

/// A warp's numbers for join_warps: equal in all rows.
KVCC_DEVICE void tell_warps(float (&to)[kMmaWarps][kBlockQueries], const float (&x)[kBlockTiles][2], const Lane& at) {
  if (at.row != 0) return;
  KVCC_UNROLL
  for (int j = 0; j < kBlockTiles; ++j) {
    *reinterpret_cast<Float2*>(&to[at.warp][j * kMmaQueries + 2 * at.column]) = {{x[j][0], x[j][1]}};
  }
}

/// B fragments of a run's weights into shared memory, for all warps after a barrier; their own order.
KVCC_DEVICE void tell_weights(uint32_t (&to)[kMmaSteps][32][4], const float (&weight)[kBlockTiles][4], const Lane& at) {
  uint32_t b[kBlockTiles][2];
  weight_fragments(b, weight);
  *reinterpret_cast<Words<4>*>(to[at.warp][at.lane]) = {{b[0][0], b[0][1], b[1][0], b[1][1]}};
}
/// B fragments as the lane wrote them: of both tiles of queries.
KVCC_DEVICE void read_fragments(uint32_t (&b)[kBlockTiles][2], const uint32_t (&from)[32][4], const Lane& at) {
  const auto w = *reinterpret_cast<const Words<4>*>(from[at.lane]);
  KVCC_UNROLL
  for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = w.word[i];
}

/// The ranges of tokens row and row + 8 of a run, as load_ranges has them.
template <class Config>
KVCC_DEVICE void load_run_ranges(const KvccCache& c, uint8_t* page, const Slots& slots, const Lane& at,
                                 uint32_t (&range)[2]) {
  const auto* from = reinterpret_cast<const uint32_t*>(mma_ranges<Config>(c, page));
  KVCC_UNROLL
  for (int band = 0; band < 2; ++band) {
    const int32_t slot = static_cast<int32_t>(16 * at.warp + 8 * band + at.row);
    range[band] = slots.has(slot) ? from[slot] : 0u;
  }
}

/// B fragments of the queries, turned for a page: [step, lane]: of both tiles.
template <int kSteps>
struct TurnedQueries {
  alignas(16) uint32_t b[kSteps][32][4];

  KVCC_DEVICE void read(uint32_t (&out)[kBlockTiles][2], int k, const Lane& at) const { read_fragments(out, b[k], at); }
  /// The warp's share of the steps. A barrier of the block must be before and after.
  template <class Config, class Tables>
  KVCC_DEVICE void turn(const Tables& s, const KvccRope& rope, int32_t block, const Lane& at) {
    constexpr int kHalfR = Config::kRotaryDim / 2;
    const float* cosine = rope.base_cosine + static_cast<int64_t>(block) * kHalfR;
    const float* sine = rope.base_sine + static_cast<int64_t>(block) * kHalfR;
    KVCC_UNROLL
    for (int i = 0; i < kSteps / kMmaWarps; ++i) {
      const int k = i * kMmaWarps + static_cast<int>(at.warp);
      uint32_t out[kBlockTiles][2];
      turn_step<Config>(out, s, cosine, sine, k, at);
      *reinterpret_cast<Words<4>*>(b[k][at.lane]) = {{out[0][0], out[0][1], out[1][0], out[1][1]}};
    }
  }
};

/// Adds the scores of the warp's run of keys: score[j] the C fragment of its tokens and query tile j. range: of tokens
/// row and row + 8 (token axis).
template <class Config, class Tables>
KVCC_DEVICE void score_run(float (&score)[kBlockTiles][4], const RunCodes<Config>& codes, const uint32_t (&range)[2],
                           const TurnedQueries<Tables::kSteps>& query, const BlockPatch<Config::kHeadDim>* outliers,
                           const Tables& s, const KvccRope& rope, int32_t sink, const Lane& at) {
  constexpr int kTogether = Tables::kTwo && Tables::kTurned > 0 ? 2 : 1;
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  const RelativeRow<Config> relative(rope, sink % KVCC_ROPE_BLOCK + static_cast<int32_t>(at.row), at.column);
  KVCC_UNROLL
  for (int k0 = 0; k0 < Tables::kSteps; k0 += kTogether) {
    Words<2> turn[kTogether][2];
    load_turns(turn, s, relative, 16 * static_cast<int>(at.warp), k0, at);
    KVCC_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int k = k0 + i;
      if (k >= Tables::kSteps) continue;
      Words<4> scale, zero;
      if constexpr (Tables::kChannel && Tables::kSparse) {
        const auto of = *reinterpret_cast<const Words<2>*>(s.scale + s.scale_place(k, static_cast<int>(at.column), 0));
        scale = {{of.word[0], of.word[0], of.word[1], of.word[1]}};
      } else if constexpr (Tables::kChannel) {
        scale = *reinterpret_cast<const Words<4>*>(s.scale + (k * 4 + at.column) * 4);
        zero = {{scale.word[1], scale.word[1], scale.word[3], scale.word[3]}};
        scale = {{scale.word[0], scale.word[0], scale.word[2], scale.word[2]}};
      } else {
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) {
          scale.word[e] = broadcast_low(range[e % 2]);
          zero.word[e] = broadcast_high(range[e % 2]);
        }
      }
      if constexpr (Tables::kSparse) zero = outliers->at(static_cast<int>(at.warp), k, at.lane);
      uint32_t a[4], b[kBlockTiles][2];
      query.read(b, k, at);
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        const Half2 level = level_pair(s.levels, codes, e % 2, Tables::octet(k, e / 2), lane_at);
        a[e] = fma_half2(level, scale.word[e], zero.word[e]);
      }
      multiply_step<Config>(score, a, turn[i], k < Tables::kTurned, b);
    }
  }
}

/// Adds a page's 64 values of the warp's channels, with the weights that the warps told.
template <int kQuarter, class Config, class Tables>
KVCC_DEVICE void mix_quarter(QuarterMix<Config::kHeadDim>& mix, OutlierQuarter<Config>& own,
                             const QuarterCodes<Config>& codes, const Exchange& exchange,
                             const BlockPatch<Config::kHeadDim>* outliers, const Tables& s, const Lane& at) {
  constexpr int kBlocks = Config::kHeadDim / 16 / kMmaWarps;
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  KVCC_UNROLL
  for (int m = 0; m < kMmaSteps; ++m) {
    uint32_t b[kBlockTiles][2], outlier[kBlockTiles][2];
    read_fragments(b, exchange.weight[m], at);
    if constexpr (Tables::kSparse) read_fragments(outlier, exchange.outlier[m], at);
    KVCC_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      uint32_t a[4];
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        a[e] = codes.template pair<kQuarter>(s.levels, m, e / 2, 2 * i + e % 2, lane_at);
      }
      KVCC_UNROLL
      for (int j = 0; j < kBlockTiles; ++j) mma_16816(mix.sum[j][i], a, b[j][0], b[j][1]);
      if constexpr (Tables::kSparse) {
        const Words<4> differs = outliers->at(m, kQuarter * kBlocks + i, at.lane);
        KVCC_UNROLL
        for (int j = 0; j < kBlockTiles; ++j) {
          mma_16816(own.of(mix, j, i), differs.word, outlier[j][0], outlier[j][1]);
        }
      }
    }
  }
}

/// Turns what mix_quarter gathered into values, as settle(). All warps of the block must come here.
template <class Config, class Tables>
KVCC_DEVICE void settle_quarter(QuarterMix<Config::kHeadDim>& mix, OutlierQuarter<Config>& own, Exchange& exchange,
                                const KvccCache& c, int32_t head, const Lane& at) {
  float all[kBlockTiles][2];
  KVCC_UNROLL
  for (int i = 0; i < kBlockTiles * 2; ++i) {
    all[i / 2][i % 2] = sum_over_rows(Tables::kChannel ? mix.total[i / 2][i % 2] : mix.offset[i / 2][i % 2]);
  }
  tell_warps(exchange.offset, all, at);
  sync_block();
  join_warps(all, exchange.offset, at, [](float a, float b) { return add(a, b); });
  const int64_t first = static_cast<int64_t>(head) * Config::kHeadDim + at.warp * (Config::kHeadDim / kMmaWarps);
  KVCC_UNROLL
  for (int j = 0; j < kBlockTiles; ++j) {
    KVCC_UNROLL
    for (int i = 0; i < Config::kHeadDim / 64; ++i) {
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        float& sum = mix.sum[j][i][e];
        if constexpr (Tables::kChannel) {
          const int64_t channel = first + 16 * i + e / 2 * 8 + at.row;
          sum = fused_multiply_add(sum, c.scale[channel], multiply(all[j][e % 2], c.zero[channel]));
        } else {
          sum = add(sum, all[j][e % 2]);
        }
      }
    }
  }
  own.each([&](float& x, int j, int i, int e) { mix.sum[j][i][e] = add(mix.sum[j][i][e], x); });
}

/// Adds 64 positions of which some are exact, from `first` on, of the warp's channels, with the weights that the warps
/// told. After settle_quarter().
template <class Config>
KVCC_DEVICE void mix_exact_quarter(QuarterMix<Config::kHeadDim>& mix, const Exchange& exchange, const KvccCache& c,
                                   const Context& context, uint32_t sequence, int32_t head, int32_t first,
                                   const Lane& at) {
  KVCC_ROLLED
  for (int m = 0; m < kMmaSteps; ++m) {
    const uint16_t* value[2];
    KVCC_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int32_t position = first + 16 * m + 8 * i + static_cast<int32_t>(at.row);
      value[i] = exact_values<Config>(c, context, sequence, head, position);
      if (value[i] != nullptr) value[i] += at.warp * (Config::kHeadDim / kMmaWarps);
    }
    if (ballot(value[0] != nullptr || value[1] != nullptr) == 0) continue;
    uint32_t b[kBlockTiles][2];
    read_fragments(b, exchange.weight[m], at);
    mix_exact(mix, b, value, at);
  }
}

/// Adds up the warps' totals of weights. All warps of the block must come here.
template <class Sums>
KVCC_DEVICE void join_totals(float (&total)[kBlockTiles][2], const Sums& mix, Exchange& exchange, const Lane& at) {
  KVCC_UNROLL
  for (int i = 0; i < kBlockTiles * 2; ++i) total[i / 2][i % 2] = sum_over_rows(mix.total[i / 2][i % 2]);
  tell_warps(exchange.most, total, at);
  sync_block();
  join_warps(total, exchange.most, at, [](float a, float b) { return add(a, b); });
}

/// Calls action(query, channel, sum, tile, column of the tile's pair) for each sum of the warp's.
template <int D, class Do>
KVCC_DEVICE void each_sum(const Mix<D, kBlockTiles>& mix, int queries, const Lane& at, const Do& action) {
  KVCC_UNROLL
  for (int j = 0; j < kBlockTiles; ++j) {
    KVCC_UNROLL
    for (int q = 0; q < 2; ++q) {
      const int query = j * kMmaQueries + 2 * static_cast<int>(at.column) + q;
      if (query >= queries) continue;
      KVCC_UNROLL
      for (int i = 0; i < D / 16; ++i) {
        KVCC_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int channel = static_cast<int>(at.warp) * D + 16 * i + 8 * half + static_cast<int>(at.row);
          action(query, channel, mix.sum[j][i][2 * half + q], j, q);
        }
      }
    }
  }
}

}  // namespace kvcc::device
