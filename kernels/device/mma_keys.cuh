// Keys on tensor cores: S^T[token, query] = K Q^T, decoded keys as A operand straight from the layout, queries of the
// group, padded to 8, as B. A page's keys are turned by their offset r from t0, a multiple of 64; the queries by -t0,
// once a tile, in f32 from tables made in double, so that no angle grows with the context (KvccRope).
//   error of a score <= 2^-8 * multiplier * (factor * sum over rotary pairs of |q pair| |K pair| + sum over channels
//   past R of |q| K), where factor is the attention factor of scalings that have one (KvccRope), else 1, and K is the
//   channel's |scale| + |zero|, or the exact value, and at least 2^-14, below which fp16 thins out: levels, scales,
//   zeros, decoded keys, cosines, products, turned keys and queries are rounded to fp16 once each, 2^-11 each. Measured
//   over random configurations: below 2^-11 in that unit
#pragma once

#include "kernels/device/mma_patch.cuh"

namespace kvcc::device {

/// What a block keeps in shared memory to read keys. kGroup: queries, a multiple of 8. kRelative: the relative rotary
/// table lies here, else it is read from global memory.
template <class Config, int kGroup, Table kTable, bool kRelative>
struct KeyTables {
  static constexpr int D = Config::kHeadDim, R = Config::kRotaryDim, kSteps = D / 16, kTurned = R / 16;
  static constexpr bool kSparse = kMmaSparse<Config>, kChannel = Config::kAxis == Axis::channel;
  static constexpr bool kRelativeHere = kRelative && R > 0;
  static_assert(D % 16 == 0 && R % 16 == 0 && R <= D);
  static_assert(Config::kRope == Rope::none ? R == 0 : R > 0);
  /// Entries of two steps are loaded at once where there are pairs of steps. Rows are then padded to an odd number of
  /// 64 bytes, so that the rows of two tokens use different banks.
  static constexpr bool kTwo = kTurned % 2 == 0;
  static constexpr int kRowWords = kTurned * 8 + (kTwo && kTurned % 4 == 0 ? 16 : 0);

  LevelTable<Config::kBits, kTable> levels;
  /// [step, column]: scale and zero of the first octet's two channels, then of the second's. With a sparse part, whose
  /// zero-points come from a patch: [two steps, column] scales of the first step's octets, then of the second's; after
  /// all of them [step, column] the zero-points.
  alignas(16) uint32_t scale[kChannel ? (kSteps + kSparse) * 16 : 4];
  static KVCC_HD constexpr int scale_place(int step, int column, int second) {
    return kSparse ? (step / 2 * 4 + column) * 4 + step % 2 * 2 + second : (step * 4 + column) * 4 + second * 2;
  }
  static KVCC_HD constexpr int zero_place(int step, int column, int second) {
    return kSparse ? (kSteps + 1) / 2 * 16 + (step * 4 + column) * 2 + second : scale_place(step, column, second) + 1;
  }
  /// [tile of queries, step, lane]: channels of the first octet, then of the second, of query `row`; f32, with the
  /// multiplier, times a power of two a query that brings the largest into [2^12, 2^13).
  alignas(16) float query[kGroup / 8 * kSteps * 32 * 4];
  float back[kGroup];  ///< inverse of the powers of two
  /// [slot, step, column] as entry() has it.
  alignas(16) uint32_t relative[kRelativeHere ? KVCC_ROPE_BLOCK * kRowWords : 4];
  /// Scale and zero-point (channel axis), and where the patch has the channel of the first token.
  Words<2> channel[kSparse ? D : 1];

  /// Octets of a step: rotary partners meet in it.
  static KVCC_HD constexpr int octet(int step, int second) {
    if (Config::kRope == Rope::half && step < kTurned) return step + second * kTurned;
    return 2 * step + second;
  }
  /// Inverse of octet(): where the patch of zero-points has a channel of its first token.
  static KVCC_HD constexpr uint32_t patch_place(int channel) {
    const int octet = channel / 8;
    const bool apart = Config::kRope == Rope::half && octet < 2 * kTurned;
    const int step = apart ? octet % larger(kTurned, 1) : octet / 2;
    const int second = apart ? octet / larger(kTurned, 1) : octet % 2;
    return Patch<D>::place(static_cast<uint32_t>(step), static_cast<uint32_t>(channel % 8 / 2),
                           2u * static_cast<uint32_t>(second), static_cast<uint32_t>(channel % 2));
  }
};

/// The relative tables at one position r < 128, at the channels of a column.
template <class Config>
struct RelativeRow {
  static constexpr int kHalfR = Config::kRotaryDim / 2, kWide = Config::kRope == Rope::half ? 2 : 1;
  const uint16_t *cosine, *sine;

  KVCC_DEVICE RelativeRow(const KvccRope& rope, int32_t r, uint32_t column) : cosine(nullptr), sine(nullptr) {
    if constexpr (Config::kRope != Rope::none) {
      cosine = rope.relative_cosine + (r * kHalfR + kWide * static_cast<int32_t>(column));
      sine = rope.relative_sine + (r * kHalfR + kWide * static_cast<int32_t>(column));
    }
  }

  /// Cosine and sine of a step's two octets, `further` positions on. Half-split pairs: cosines of two pairs, then
  /// sines. Interleaved: cosine and sine of the first octet's pair, then of the second's.
  KVCC_DEVICE Words<2> entry(int further, int step) const {
    const int i = further * kHalfR + step * 8;
    if constexpr (Config::kRope == Rope::half) {
      return {{*reinterpret_cast<const uint32_t*>(cosine + i), *reinterpret_cast<const uint32_t*>(sine + i)}};
    } else {
      return {
          {cosine[i] | static_cast<uint32_t>(sine[i]) << 16, cosine[i + 4] | static_cast<uint32_t>(sine[i + 4]) << 16}};
    }
  }
};

/// Powers of two that bring a query row into the range of fp16: bf16 queries may be of any size.
KVCC_DEVICE int32_t query_exponent(float greatest) {
  const int32_t exponent = static_cast<int32_t>(float_bits(greatest) >> 23 & 255u) - 127;
  return larger(smaller(12 - exponent, 100), -100);
}

/// Fills in the queries: `queries` of the rows at `query` are real, the others 0. A barrier must follow.
template <class Config, class Tables>
KVCC_DEVICE void fill_queries(Tables& s, const void* query, int64_t first_row, int queries, int group, float multiplier,
                              const Lane& at) {
  constexpr int D = Tables::D;
  for (int q = static_cast<int>(at.warp); q < group; q += kMmaWarps) {
    float greatest = 0;
    for (int i = static_cast<int>(at.lane); i < D; i += 32) {
      const float x = q < queries ? load<Config::kDtype>(query, (first_row + q) * D + i) : 0.0f;
      greatest = maximum(greatest, magnitude(multiply(x, multiplier)));
    }
    for (uint32_t lanes = 16; lanes > 0; lanes /= 2) greatest = maximum(greatest, shuffle_xor(greatest, lanes));
    const int32_t exponent = query_exponent(greatest);
    const float scale = power_of_two(exponent);
    if (at.lane == 0) s.back[q] = power_of_two(-exponent);
    for (int i = static_cast<int>(at.lane); i < Tables::kSteps * 16; i += 32) {
      const int step = i / 16, column = i % 16 / 4, second = i % 4 / 2;
      const int channel = Tables::octet(step, second) * 8 + 2 * column + i % 2;
      const float x = q < queries ? load<Config::kDtype>(query, (first_row + q) * D + channel) : 0.0f;
      const float scaled = multiply(multiply(x, multiplier), scale);
      s.query[((q / 8 * Tables::kSteps + step) * 32 + q % 8 * 4 + column) * 4 + i % 4] = scaled;
    }
  }
}

/// Fills in the relative rotary table, where it lies in shared memory. A barrier must follow.
template <class Config, class Tables>
KVCC_DEVICE void fill_relative(Tables& s, const KvccCache& c, const KvccRope& rope, uint32_t thread) {
  if constexpr (Tables::kRelativeHere) {
    const int32_t first = c.sink % KVCC_ROPE_BLOCK;
    for (int i = static_cast<int>(thread); i < KVCC_ROPE_BLOCK * Tables::kTurned * 4; i += KVCC_THREADS) {
      const int slot = i / (Tables::kTurned * 4), step = i / 4 % Tables::kTurned, column = i % 4;
      const Words<2> entry = RelativeRow<Config>(rope, first + slot, static_cast<uint32_t>(column)).entry(0, step);
      uint32_t* to = s.relative + slot * Tables::kRowWords + (step * 4 + column) * 2;
      if constexpr (Tables::kTwo)
        to = s.relative + slot * Tables::kRowWords + (step / 2 * 4 + column) * 4 + step % 2 * 2;
      to[0] = entry.word[0];
      to[1] = entry.word[1];
    }
  }
}

/// Fills the tables of one head. `queries` of the rows at `query` are real, the others 0. A barrier must follow.
template <class Tables, class Config>
KVCC_DEVICE void fill_key_tables(Tables& s, const KvccCache& c, const KvccRope& rope, int32_t head, const void* query,
                                 int64_t first_row, int queries, int group, float multiplier) {
  constexpr int D = Tables::D;
  const Lane at = this_lane();
  const uint32_t thread = thread_index();
  s.levels.fill(Config::levels(c.layer, head), thread);
  if constexpr (Tables::kChannel) {
    const float* scale = c.scale + static_cast<int64_t>(head) * D;
    const float* zero = c.zero + static_cast<int64_t>(head) * D;
    for (int i = static_cast<int>(thread); i < Tables::kSteps * 8; i += KVCC_THREADS) {
      const int channel = Tables::octet(i / 8, i % 2) * 8 + i / 2 % 4 * 2;
      s.scale[s.scale_place(i / 8, i / 2 % 4, i % 2)] = pack_half2(scale[channel], scale[channel + 1]);
      s.scale[s.zero_place(i / 8, i / 2 % 4, i % 2)] = pack_half2(zero[channel], zero[channel + 1]);
    }
  }
  if constexpr (Tables::kSparse) {
    for (int i = static_cast<int>(thread); i < D; i += KVCC_THREADS) {
      s.channel[i] = {{0u, Tables::patch_place(i)}};
      if constexpr (Tables::kChannel) {
        const int64_t at = static_cast<int64_t>(head) * D + i;
        s.channel[i].word[0] = pack_half2(c.scale[at], c.zero[at]);
      }
    }
  }
  fill_queries<Config>(s, query, first_row, queries, group, multiplier, at);
  fill_relative<Config>(s, c, rope, thread);
}

/// B fragments of step k of the queries, turned by -64 positions times the number of the base tables' row at `cosine`
/// and `sine`.
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void turn_step(uint32_t (&out)[kTiles][2], const Tables& s, const float* cosine, const float* sine, int k,
                           const Lane& at) {
  float c[2] = {1, 1}, n[2] = {0, 0};
  if (k < Tables::kTurned) {
    if constexpr (Config::kRope == Rope::half) {
      const Float2 cosines = *reinterpret_cast<const Float2*>(cosine + (8 * k + 2 * at.column));
      const Float2 sines = *reinterpret_cast<const Float2*>(sine + (8 * k + 2 * at.column));
      KVCC_UNROLL
      for (int i = 0; i < 2; ++i) {
        c[i] = cosines.x[i];
        n[i] = sines.x[i];
      }
    } else {
      KVCC_UNROLL
      for (int i = 0; i < 2; ++i) {
        c[i] = cosine[8 * k + 4 * i + at.column];
        n[i] = sine[8 * k + 4 * i + at.column];
      }
    }
  }
  KVCC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    const float* from = s.query + ((j * Tables::kSteps + k) * 32 + at.lane) * 4;
    Float4 query = *reinterpret_cast<const Float4*>(from);
    float(&q)[4] = query.x;
    if (k < Tables::kTurned) {
      KVCC_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int a = Config::kRope == Rope::half ? i : 2 * i, b = Config::kRope == Rope::half ? i + 2 : 2 * i + 1;
        const float x = q[a], y = q[b];
        q[a] = fused_multiply_add(x, c[i], multiply(y, n[i]));
        q[b] = fused_multiply_add(y, c[i], -multiply(x, n[i]));
      }
    }
    out[j][0] = pack_half2(q[0], q[1]);
    out[j][1] = pack_half2(q[2], q[3]);
  }
}

/// B fragments of the queries, turned by -64 `block` positions.
template <int kSteps, int kTiles>
struct QueryFragments {
  uint32_t b[kSteps][kTiles][2];

  KVCC_DEVICE void read(uint32_t (&out)[kTiles][2], int k, const Lane&) const {
    KVCC_UNROLL
    for (int i = 0; i < kTiles * 2; ++i) out[i / 2][i % 2] = b[k][i / 2][i % 2];
  }
};

template <class Config, class Tables, int kTiles>
KVCC_DEVICE void turn_queries(QueryFragments<Tables::kSteps, kTiles>& out, const Tables& s, const KvccRope& rope,
                              int32_t block, const Lane& at) {
  constexpr int kHalfR = Config::kRotaryDim / 2;
  const float* cosine = rope.base_cosine + static_cast<int64_t>(block) * kHalfR;
  const float* sine = rope.base_sine + static_cast<int64_t>(block) * kHalfR;
  KVCC_UNROLL
  for (int k = 0; k < Tables::kSteps; ++k) turn_step<Config>(out.b[k], s, cosine, sine, k, at);
}

/// Adds one step's products of 16 keys: a[0] and a[1] rows g and g + 8 of the first octet, a[2] and a[3] of the second;
/// turn[0] and turn[1] their cosines and sines. Half-split pairs are turned; of interleaved ones, products with cosine
/// and with sine meet (q_x, q_y) and (q_y, -q_x), which is the same sum without exchanging the pair's halves.
template <class Config, int kTiles>
KVCC_DEVICE void multiply_step(float (&score)[kTiles][4], uint32_t (&a)[4], const Words<2> (&turn)[2], bool turned,
                               const uint32_t (&b)[kTiles][2]) {
  if (Config::kRope == Rope::half && turned) {
    KVCC_UNROLL
    for (int i = 0; i < 2; ++i) {
      const Half2 x = a[i], y = a[i + 2];
      a[i] = fma_half2(x, turn[i].word[0], negate_half2(multiply_half2(y, turn[i].word[1])));
      a[i + 2] = fma_half2(x, turn[i].word[1], multiply_half2(y, turn[i].word[0]));
    }
  }
  if (Config::kRope == Rope::interleaved && turned) {
    uint32_t sine[4];
    KVCC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t entry = turn[i % 2].word[i / 2];
      sine[i] = multiply_half2(a[i], broadcast_high(entry));
      a[i] = multiply_half2(a[i], broadcast_low(entry));
    }
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      mma_16816(score[j], sine, byte_permute(b[j][0], b[j][0], 0x1032u) ^ 0x80000000u,
                byte_permute(b[j][1], b[j][1], 0x1032u) ^ 0x80000000u);
    }
  }
  KVCC_UNROLL
  for (int j = 0; j < kTiles; ++j) mma_16816(score[j], a, b[j][0], b[j][1]);
}

/// Turns of the page's keys `slot` + row and `slot` + row + 8 at step k and as many after it as share a load.
template <class Config, class Tables, int kTogether>
KVCC_DEVICE void load_turns(Words<2> (&turn)[kTogether][2], const Tables& s, const RelativeRow<Config>& relative,
                            int slot, int k, const Lane& at) {
  if (k >= Tables::kTurned) return;
  KVCC_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t* row = s.relative + (slot + 8 * i + static_cast<int>(at.row)) * Tables::kRowWords;
    if constexpr (!Tables::kRelativeHere) {
      KVCC_UNROLL
      for (int j = 0; j < kTogether; ++j) turn[j][i] = relative.entry(slot + 8 * i, k + j);
    } else if constexpr (kTogether == 2) {
      [[maybe_unused]] const auto both = *reinterpret_cast<const Words<4>*>(row + (k / 2 * 4 + at.column) * 4);
      KVCC_UNROLL
      for (int j = 0; j < 2; ++j) turn[j][i] = {{both.word[2 * j], both.word[2 * j + 1]}};
    } else {
      turn[0][i] = *reinterpret_cast<const Words<2>*>(row + (k * 4 + at.column) * 2);
    }
  }
}

/// Adds the scores of a page's 64 keys: score[m][j] the C fragment of tokens 16 m … and query tile j. Codes of part 0
/// are loaded already. range: of tokens 8 band + row (token axis).
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void score_page(float (&score)[kMmaSteps][kTiles][4], MmaCodes<Config>& codes, const uint32_t* tile,
                            const uint32_t (&range)[8], const QueryFragments<Tables::kSteps, kTiles>& query,
                            const Tables& s, const KvccRope& rope, int32_t sink, const Lane& at) {
  using Codes = MmaCodes<Config>;
  constexpr int kTogether = Tables::kTwo && Tables::kTurned > 0 ? 2 : 1;  // steps that share a load of turns
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  // From a shuffle: the compiler would otherwise compute addresses of all rows once, and spill them.
  const uint32_t first = shuffle(static_cast<uint32_t>(sink) % KVCC_ROPE_BLOCK + at.row, at.lane);
  const RelativeRow<Config> relative(rope, static_cast<int32_t>(first), at.column);
  KVCC_UNROLL
  for (int part = 0; part < Codes::kParts; ++part) {
    if (part > 0) codes.load(tile, part, at.lane);
    KVCC_UNROLL
    for (int k0 = 0; k0 < Tables::kSteps; k0 += kTogether) {
      Words<4> scale[kTogether];
      if constexpr (Tables::kChannel) {
        KVCC_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          if (k0 + i < Tables::kSteps) {
            scale[i] = *reinterpret_cast<const Words<4>*>(s.scale + ((k0 + i) * 4 + at.column) * 4);
          }
        }
      }
      KVCC_UNROLL
      for (int run = 0; run < Codes::kRuns; ++run) {
        const int m = part * Codes::kRuns + run;
        Words<2> turn[kTogether][2];
        load_turns(turn, s, relative, 16 * m, k0, at);
        KVCC_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          const int k = k0 + i;
          if (k >= Tables::kSteps) continue;
          uint32_t a[4];
          KVCC_UNROLL
          for (int part_of_a = 0; part_of_a < 4; ++part_of_a) {
            const int band = part_of_a % 2, second = part_of_a / 2;
            const Half2 level = level_pair(s.levels, codes, 2 * run + band, Tables::octet(k, second), lane_at);
            if constexpr (Tables::kChannel) {
              a[part_of_a] = fma_half2(level, scale[i].word[2 * second], scale[i].word[2 * second + 1]);
            } else {
              const uint32_t r = range[2 * m + band];
              a[part_of_a] = fma_half2(level, broadcast_low(r), broadcast_high(r));
            }
          }
          multiply_step<Config>(score[m], a, turn[i], k < Tables::kTurned, query.b[k]);
        }
      }
    }
  }
}

/// Adds the scores of 16 exact keys, tokens row and row + 8 at key[0] and key[1] (null: 0), at offsets r and r + 8 from
/// their block's first position.
template <class Config, class Tables, int kTiles, class Queries>
KVCC_DEVICE void score_exact(float (&score)[kTiles][4], const uint16_t* const (&key)[2], int32_t r,
                             const Queries& query, const KvccRope& rope, const Lane& at) {
  const RelativeRow<Config> relative(rope, r, at.column);
  KVCC_UNROLL
  for (int k = 0; k < Tables::kSteps; ++k) {
    uint32_t a[4], b[kTiles][2];
    Words<2> turn[2];
    KVCC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t channel = Tables::octet(k, i / 2) * 8 + 2 * at.column;
      a[i] = key[i % 2] != nullptr ? *reinterpret_cast<const uint32_t*>(key[i % 2] + channel) : 0u;
    }
    if (k < Tables::kTurned) {
      KVCC_UNROLL
      for (int i = 0; i < 2; ++i) turn[i] = relative.entry(8 * i, k);
    }
    query.read(b, k, at);
    multiply_step<Config>(score, a, turn, k < Tables::kTurned, b);
    if (k % 4 == 3) sync_warp();  // no more loads than those of four steps at a time: they would not fit the registers
  }
}

}  // namespace kvcc::device
