// Blocks that take each page together, for 9 to 16 queries of a head of more than 128 channels: what one warp would
// gather for all of them would not fit its registers. A warp decodes the keys of a run of 16 tokens and multiplies them
// by all queries; weights meet in shared memory; then it decodes a quarter of the values' channels, of all tokens, and
// multiplies them by all weights. No element is decoded twice, and no warp's sums are merged with another's.
#pragma once

#include <type_traits>

#include "kernels/device/mma_keys.cuh"
#include "kernels/device/mma_values.cuh"

namespace kvcc::device {

template <int D, int kGroup>
constexpr bool kByBlock = D > 128 && kGroup > kMmaQueries;

constexpr int kBlockTiles = 2;  ///< tiles of queries
constexpr int kBlockQueries = kBlockTiles * kMmaQueries;
static_assert(kMmaWarps == kMmaSteps);  // a run a warp

/// A lane's words of the codes of one run of a tile's tokens.
template <class Config>
struct RunCodes {
  static constexpr int kHeld = Config::kHeadDim * Config::kBits / 64;
  /// Runs begin within a plane of four words: the words of all planes that have some of them are loaded.
  static constexpr int kMostShift = kHeld % 4 == 0 ? 0 : kHeld % 2 == 0 ? 2 : 3, kPlanes = (kMostShift + kHeld + 3) / 4;
  uint32_t word[kHeld];

  KVCC_DEVICE void load(const uint32_t* tile, uint32_t run, uint32_t lane) {
    const uint32_t first = run * kHeld;
    const uint32_t* const from = tile + first / 4u * 128u + lane * 4u;
    if constexpr (kMostShift == 0) {
      KVCC_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        if (i % 4 != 0) continue;
        const Words<4> w = load_streamed<4>(from + i * 32);
        KVCC_UNROLL
        for (int j = 0; j < 4; ++j) word[i + j] = w.word[j];
      }
    } else {
      uint32_t all[4 * kPlanes];
      KVCC_UNROLL
      for (int plane = 0; plane < kPlanes; ++plane) {
        const Words<4> w = load_cached<4>(from + plane * 128);
        KVCC_UNROLL
        for (int j = 0; j < 4; ++j) all[4 * plane + j] = w.word[j];
      }
      if constexpr (kMostShift == 3) {
        KVCC_UNROLL
        for (int i = 0; i + 1 < 4 * kPlanes; ++i) all[i] = first % 2u != 0 ? all[i + 1] : all[i];
      }
      KVCC_UNROLL
      for (int i = 0; i < kHeld; ++i) word[i] = first % 4u >= 2u ? all[i + 2] : all[i];
    }
  }
};

/// A lane's words with codes of a quarter of the channels, run by run.
template <class Config>
struct QuarterCodes {
  static constexpr int kBits = Config::kBits, kBandPairs = Config::kHeadDim / 8, kOctets = kBandPairs / kMmaWarps;
  static constexpr int kRunWords = RunCodes<Config>::kHeld;
  static_assert(kRunWords <= 32 && kOctets % 2 == 0 && Config::kHeadDim * kBits % 64 == 0);

  /// Bit w: word w of a run has codes of the quarter's.
  static KVCC_HD constexpr uint32_t mask(int quarter) {
    uint32_t words = 0;
    for (int i = 0; i < 2 * kOctets; ++i) {
      const int e = i / kOctets * kBandPairs + quarter * kOctets + i % kOctets, first = e / 16 * kBits;
      words |= kBits == 3 && e % 16 == 15 ? 7u << first : 1u << (first + mma::pair_word(e % 16, kBits));
    }
    return words;
  }
  static KVCC_HD constexpr int count(uint32_t words) {
    words = words - (words >> 1 & 0x55555555u);
    words = (words & 0x33333333u) + (words >> 2 & 0x33333333u);
    return static_cast<int>(((words + (words >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
  }
  static KVCC_HD constexpr int most() {
    int words = 0;
    for (int quarter = 0; quarter < kMmaWarps; ++quarter)
      words = words < count(mask(quarter)) ? count(mask(quarter)) : words;
    return words;
  }
  static constexpr int kHeld = most();
  uint32_t word[kMmaSteps][kHeld];

  template <int kQuarter>
  KVCC_DEVICE void load(const uint32_t* tile, uint32_t lane) {
    constexpr uint32_t kMask = mask(kQuarter);
    KVCC_UNROLL
    for (int plane = 0; plane < kMmaSteps * kRunWords / 4; ++plane) {
      uint32_t wanted = 0;
      KVCC_UNROLL
      for (int j = 0; j < 4; ++j) wanted |= (kMask >> (4 * plane + j) % kRunWords & 1u) << j;
      const uint32_t* const from = tile + plane * 128 + lane * 4u;
      uint32_t w[4] = {};
      if (wanted == 15u || count(wanted) == 3 || wanted == 9u || wanted == 5u || wanted == 10u || wanted == 6u) {
        const Words<4> four = load_cached<4>(from);
        KVCC_UNROLL
        for (int j = 0; j < 4; ++j) w[j] = four.word[j];
      } else if (wanted == 3u || wanted == 12u) {
        const int first = wanted == 3u ? 0 : 2;
        const Words<2> two = load_cached<2>(from + first);
        w[first] = two.word[0];
        w[first + 1] = two.word[1];
      } else {
        KVCC_UNROLL
        for (int j = 0; j < 4; ++j) {
          if (wanted == 1u << j) w[j] = load_cached<1>(from + j).word[0];
        }
      }
      KVCC_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int at = (4 * plane + j) % kRunWords;
        if (wanted >> j & 1u) word[(4 * plane + j) / kRunWords][count(kMask & ((1u << at) - 1u))] = w[j];
      }
    }
  }
  /// Both levels of the pair at `octet` of the quarter, of the run's first or second band.
  template <int kQuarter, Table kTable>
  KVCC_DEVICE Half2 pair(const LevelTable<kBits, kTable>& levels, int run, int band, int octet,
                         uint32_t lane_offset) const {
    constexpr uint32_t kMask = mask(kQuarter);
    const int e = band * kBandPairs + kQuarter * kOctets + octet;
    uint32_t group[kBits];
    KVCC_UNROLL
    for (int j = 0; j < kBits; ++j) {
      const int at = e / 16 * kBits + j;
      group[j] = kMask >> at & 1u ? word[run][count(kMask & ((1u << at) - 1u))] : 0u;
    }
    return levels.pair(group, e % 16, lane_offset);
  }
};

/// Calls action with the warp's number as a constant.
template <class Do>
KVCC_DEVICE void with_quarter(uint32_t warp, const Do& action) {
  if (warp < 2u) {
    if (warp == 0u) {
      action(std::integral_constant<int, 0>());
    } else {
      action(std::integral_constant<int, 1>());
    }
  } else if (warp == 2u) {
    action(std::integral_constant<int, 2>());
  } else {
    action(std::integral_constant<int, 3>());
  }
}

/// What the warps of a block tell each other of a page.
struct Exchange {
  alignas(16) float most[kMmaWarps][kBlockQueries];  ///< greatest score or weight of a warp's run; totals at the end
  float offset[kMmaWarps][kBlockQueries];            ///< as Mix::offset, when the pages are done
  alignas(16) uint32_t large[kMmaWarps];             ///< whether a token of the run has a scale of 2 or more
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
KVCC_DEVICE void read_weights(uint32_t (&b)[kBlockTiles][2], const uint32_t (&from)[32][4], const Lane& at) {
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

  KVCC_DEVICE void read(uint32_t (&out)[kBlockTiles][2], int k, const Lane& at) const {
    const auto w = *reinterpret_cast<const Words<4>*>(b[k][at.lane]);
    KVCC_UNROLL
    for (int i = 0; i < 4; ++i) out[i / 2][i % 2] = w.word[i];
  }
  /// The warp's share of the steps. A barrier of the block must be before and after.
  template <class Config, class Tables>
  KVCC_DEVICE void turn(const Tables& s, const KvccRope& rope, int32_t block, const Lane& at) {
    KVCC_UNROLL
    for (int i = 0; i < kSteps / kMmaWarps; ++i) {
      const int k = i * kMmaWarps + static_cast<int>(at.warp);
      uint32_t out[kBlockTiles][2];
      turn_step<Config>(out, s, rope, block, k, at);
      *reinterpret_cast<Words<4>*>(b[k][at.lane]) = {{out[0][0], out[0][1], out[1][0], out[1][1]}};
    }
  }
};

/// Halves of A fragments that outliers change: of a run of keys, zero-points with which a decoded outlier comes out as
/// recorded; of values, half of what each differs from its decoded value. [run]: [step, lane, 4] as mma takes them.
template <int D>
struct OutlierTiles {
  static constexpr int kSteps = D / 16;
  alignas(16) uint16_t half[kMmaWarps][kSteps * 32 * 4 * 2];

  KVCC_DEVICE OutlierTiles* get() { return this; }
  KVCC_DEVICE Words<4> read(int run, int step, uint32_t lane) const {
    return *reinterpret_cast<const Words<4>*>(half[run] + (step * 32 + lane) * 8);
  }
  KVCC_DEVICE void fill(uint32_t run, int step, uint32_t lane, const Words<4>& a) {
    *reinterpret_cast<Words<4>*>(half[run] + (step * 32 + lane) * 8) = a;
  }
};

template <int D>
struct NoOutlierTiles {
  KVCC_DEVICE OutlierTiles<D>* get() { return nullptr; }
};
template <int D, bool kSparse>
using OutlierTilesWhere = std::conditional_t<kSparse, OutlierTiles<D>, NoOutlierTiles<D>>;

/// Calls action(record, element) for each record of a run that the lane takes, of visible tokens.
template <class Config, class Do>
KVCC_DEVICE void each_record(const KvccCache& c, uint8_t* page, int32_t head, uint32_t run, const Slots& slots,
                             uint32_t lane, const Do& action) {
  const Records first = records_of<Config>(c, page, head, 2u * run);
  const Records second = records_of<Config>(c, page, head, 2u * run + 1u);
  const uint32_t of_first = first.end - first.begin, all = of_first + second.end - second.begin;
  KVCC_ROLLED
  for (uint32_t i = lane; i < all; i += 32) {
    const bool in_first = i < of_first;
    const mma::Record record = first.list[in_first ? first.begin + i : second.begin + (i - of_first)];
    const mma::Element element = mma::record_element(record.place, 2u * run + (in_first ? 0u : 1u));
    if (slots.has(static_cast<int32_t>(element.token)) && element.channel < static_cast<uint32_t>(Config::kHeadDim)) {
      action(record, element);
    }
  }
}

/// The nearest number that fp16 holds as finite.
KVCC_DEVICE float within_half(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

/// Zero-points of the warp's run of keys, for score_run.
template <class Config, class Tables>
KVCC_DEVICE void fill_zeros(OutlierTiles<Config::kHeadDim>& to, const Tables& s, const KvccCache& c, uint8_t* page,
                            const uint32_t* tile, int32_t head, const Slots& slots, const uint32_t (&range)[2],
                            const Lane& at) {
  KVCC_UNROLL
  for (int k = 0; k < Tables::kSteps; ++k) {
    Words<4> zero;
    if constexpr (Tables::kChannel) {
      const auto scale = *reinterpret_cast<const Words<4>*>(s.scale + (k * 4 + at.column) * 4);
      zero = {{scale.word[1], scale.word[1], scale.word[3], scale.word[3]}};
    } else {
      zero = {{broadcast_high(range[0]), broadcast_high(range[1]), broadcast_high(range[0]), broadcast_high(range[1])}};
    }
    to.fill(at.warp, k, at.lane, zero);
  }
  sync_warp();
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  each_record<Config>(c, page, head, at.warp, slots, at.lane, [&](mma::Record record, mma::Element element) {
    const float level = low_half(record_level<Config>(s.levels, tile, record.place, element, lane_at));
    uint32_t scale;
    if constexpr (Tables::kChannel) {
      scale = s.channel_scale[element.channel];
    } else {
      scale = reinterpret_cast<const uint32_t*>(mma_ranges<Config>(c, page))[element.token];
    }
    const float zero = fused_multiply_add(-level, low_half(scale), half_to_float(record.value));
    const uint32_t octet = element.channel / 8u, turned = static_cast<uint32_t>(Tables::kTurned);
    const bool apart = Config::kRope == Rope::half && octet < 2u * turned;  // partners meet in a step
    const uint32_t step = apart ? octet % (turned > 0 ? turned : 1u) : octet / 2u;
    const uint32_t second = apart ? octet / (turned > 0 ? turned : 1u) : octet % 2u;
    const uint32_t lane = element.token % 8u * 4u + element.channel % 8u / 2u;
    to.half[at.warp][((step * 32u + lane) * 4u + second * 2u + element.token / 8u % 2u) * 2u + element.channel % 2u] =
        float_to_half(within_half(zero));
  });
  sync_warp();
}

/// Adds the scores of the warp's run of keys: score[j] the C fragment of its tokens and query tile j. range: of tokens
/// row and row + 8 (token axis).
template <class Config, class Tables>
KVCC_DEVICE void score_run(float (&score)[kBlockTiles][4], const RunCodes<Config>& codes, const uint32_t (&range)[2],
                           const TurnedQueries<Tables::kSteps>& query, const OutlierTiles<Config::kHeadDim>* outliers,
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
      if constexpr (Tables::kChannel) {
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
      if constexpr (Tables::kSparse) zero = outliers->read(static_cast<int>(at.warp), k, at.lane);
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

/// Half of what the outliers of the warp's run of values differ from their decoded values, for mix_quarter.
template <class Config, class Tables>
KVCC_DEVICE void fill_differences(OutlierTiles<Config::kHeadDim>& to, const Tables& s, const KvccCache& c,
                                  uint8_t* page, const uint32_t* tile, int32_t head, const Slots& slots,
                                  const Lane& at) {
  KVCC_UNROLL
  for (int k = 0; k < Config::kHeadDim / 16; ++k) to.fill(at.warp, k, at.lane, {});
  sync_warp();
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  each_record<Config>(c, page, head, at.warp, slots, at.lane, [&](mma::Record record, mma::Element element) {
    const float level = low_half(record_level<Config>(s.levels, tile, record.place, element, lane_at));
    float scale, zero;
    if constexpr (Tables::kChannel) {
      const int64_t channel = static_cast<int64_t>(head) * Config::kHeadDim + element.channel;
      scale = c.scale[channel];
      zero = c.zero[channel];
    } else {
      const linear::RangeRecord range = mma_ranges<Config>(c, page)[element.token];
      scale = half_to_float(range.scale);
      zero = half_to_float(range.zero);
    }
    const float differs = add(half_to_float(record.value), -fused_multiply_add(level, scale, zero));
    const uint32_t lane = element.channel % 8u * 4u + element.token % 8u / 2u;
    const uint32_t part = element.token / 8u % 2u * 2u + element.channel / 8u % 2u;
    to.half[at.warp][((element.channel / 16u * 32u + lane) * 4u + part) * 2u + element.token % 2u] =
        float_to_half(multiply(0.5f, differs));
  });
}

/// Sums of the warp's channels.
template <int D>
using QuarterMix = Mix<D / kMmaWarps, kBlockTiles>;
/// Where the outliers' shares of them are added. Mix has levels where scales are the channels', so there they need sums
/// of their own.
template <class Config>
struct OutlierQuarter {
  static constexpr int D = Config::kHeadDim;
  static constexpr bool kOwn = kMmaSparse<Config> && Config::kAxis == Axis::channel;
  float sum[kOwn ? kBlockTiles : 1][kOwn ? D / 64 : 1][4];

  KVCC_DEVICE float (&of(QuarterMix<D>& mix, int tile, int block))[4] {
    if constexpr (kOwn) {
      return sum[tile][block];
    } else {
      return mix.sum[tile][block];
    }
  }
  template <class Do>
  KVCC_DEVICE void each(const Do& action) {
    if constexpr (kOwn) {
      KVCC_UNROLL
      for (int j = 0; j < kBlockTiles; ++j) {
        KVCC_UNROLL
        for (int i = 0; i < D / 64; ++i) {
          KVCC_UNROLL
          for (int e = 0; e < 4; ++e) action(sum[j][i][e], j, i, e);
        }
      }
    }
  }
};

/// Adds a page's 64 values of the warp's channels, with the weights that the warps told.
template <int kQuarter, class Config, class Tables>
KVCC_DEVICE void mix_quarter(QuarterMix<Config::kHeadDim>& mix, OutlierQuarter<Config>& own,
                             const QuarterCodes<Config>& codes, const Exchange& exchange,
                             const OutlierTiles<Config::kHeadDim>* outliers, const Tables& s, const Lane& at) {
  constexpr int kBlocks = Config::kHeadDim / 16 / kMmaWarps;
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  KVCC_UNROLL
  for (int m = 0; m < kMmaSteps; ++m) {
    uint32_t b[kBlockTiles][2], outlier[kBlockTiles][2];
    read_weights(b, exchange.weight[m], at);
    if constexpr (Tables::kSparse) read_weights(outlier, exchange.outlier[m], at);
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
        const Words<4> differs = outliers->read(m, kQuarter * kBlocks + i, at.lane);
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
    read_weights(b, exchange.weight[m], at);
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
