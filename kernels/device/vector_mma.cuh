// Vector codebooks on tensor cores: codes of a page to fragments of 16 coordinates, and keys from them. A lane's column
// t of a fragment has four coordinates of a step; they are one quad's (a wide step) or those of two quads of at most
// two (a narrow one), so that a row of a table is a lane's part of an A operand, and nothing crosses lanes: for token g
// it is a[0] and a[2], for token g + 8 a[1] and a[3]. A lane's share of a page holds the codes of slots l and l + 32
// side by side, so that one field of bits gives two tokens.
//   bytes codes once, copied asynchronously a page ahead; the head's transform and rotary table lie in shared memory,
//   and
//         its tables where a block of every architecture has room for them, else they are read through the L1 cache
//   error of a key's channel: tables, transform and the key are rounded to fp16 once each, 2^-11 of the sum of
//   magnitudes
//         |inverse| |z| + |mean|; a score's is mma_keys.cuh's with that in place of |scale| + |zero|
#pragma once

#include "formats/layout/vector.h"
#include "formats/layout/vector_launch.h"
#include "kernels/device/mma_keys.cuh"

namespace kvcc::device {

/// Where word `word` of lane `lane`'s share lies among a page's staged words: lanes of a column that read different
/// words use different banks.
KVCC_HD constexpr uint32_t staged_word(uint32_t word, uint32_t lane) { return word * 32u + ((lane + 8u * word) & 31u); }

/// A page's codes of one head in shared memory, of one warp; twice, so that a page is under way while one is read.
template <class Config>
struct StagedCodes {
  static constexpr uint32_t kWords = (2 * Config::kTokenBits + 31) / 32;
  alignas(16) uint32_t word[2][(kWords + 1) * 32];  ///< and one of zeros, for codes at the end
  alignas(16) uint8_t rest[2][96];                  ///< planes of two and of one bytes

  KVCC_DEVICE void clear(uint32_t lane, uint32_t bytes) {
    KVCC_UNROLL
    for (uint32_t buffer = 0; buffer < 2u; ++buffer) word[buffer][(bytes + 3u) / 4u * 32u + lane] = 0;
  }
  /// Copies a tile of `bytes` bytes a lane, asynchronously.
  KVCC_DEVICE void copy(uint32_t buffer, const uint8_t* tile, uint32_t bytes, uint32_t lane) {
    const uint32_t words = bytes / 4u;
    KVCC_ROLLED
    for (uint32_t chunk = lane; chunk < words * 8u; chunk += 32u) {
      copy_async_16(word[buffer] + staged_word(chunk / 8u, chunk % 8u * 4u), tile + chunk * 16u);
    }
    if (lane < bytes % 4u * 2u) copy_async_16(rest[buffer] + lane * 16u, tile + words * 128u + lane * 16u);
  }
  /// After the copy: all lanes see it.
  KVCC_DEVICE void finish(uint32_t buffer, uint32_t bytes, uint32_t lane) {
    sync_warp();
    const uint32_t left = bytes % 4u;
    if (left == 0) return;
    uint32_t last = 0;
    if (left >= 2u) last = *reinterpret_cast<const uint16_t*>(rest[buffer] + 2u * lane);
    if (left % 2u == 1u)
      last |= static_cast<uint32_t>(rest[buffer][(left >= 2u ? 64u : 0u) + lane]) << (left >= 2u ? 16 : 0);
    word[buffer][staged_word(bytes / 4u, lane)] = last;
    sync_warp();
  }
};

/// Room for a head's tables in shared memory. Those of a head that needs more are read from global memory, through the
/// L1 cache.
template <uint32_t kBytes>
struct VectorRows {
  alignas(16) uint8_t row[kBytes > 0 ? kBytes : 16];

  /// Where the head's rows lie from now on. A barrier must follow.
  KVCC_DEVICE const uint8_t* fill(const uint8_t* from, uint32_t bytes, uint32_t thread) {
    if (bytes > kBytes) return from;
    for (uint32_t i = thread * 16u; i < bytes; i += KVCC_THREADS * 16u) {
      *reinterpret_cast<Words<4>*>(row + i) = load_cached<4>(from + i);
    }
    return row;
  }
};

/// How much room a tensor's tables are given: all that its largest head needs, or less where blocks have not as much.
constexpr uint32_t kAllRows = ~0u, kSomeRows[3] = {32768, 16384, 8192};
template <class Config>
constexpr uint32_t row_bytes(uint32_t most) {
  return Config::kTableBytes < most ? Config::kTableBytes : most;
}

/// What a warp needs of a head beside tables.
struct VectorHead {
  int32_t steps, wide;
  uint32_t lane_bytes;
  uint32_t word;  ///< of the head's tile in a page
  const uint8_t* rows;
};
KVCC_DEVICE VectorHead vector_head(const KvccVectorTensor& t, const KvccCache& c, int32_t head, const uint8_t* rows) {
  const KvccVectorHead& of = t.heads[head];
  return {of.steps, of.wide, vector_page::lane_bytes(static_cast<uint32_t>(t.token_bits[head])), c.head_words[head],
          rows};
}

/// Rows of a slot's codes, of the tokens of lanes lane[i] (row[0][i]) and of those 32 further on (row[1][i]): a wide
/// slot's two words are one quad's, a narrow one's two quads'.
template <bool kWide, int kTokens>
KVCC_DEVICE void decode_slot(Words<2> (&row)[2][kTokens], const uint32_t* words, const KvccVectorSlot& slot,
                             const uint8_t* rows, const uint32_t (&lane)[kTokens]) {
  KVCC_UNROLL
  for (int part = 0; part < (kWide ? 1 : 2); ++part) {
    const uint32_t place = slot.place[part], word = place & 255u, shift = place >> 8 & 255u, bits = place >> 16;
    const uint32_t mask = (1u << bits) - 1u;
    KVCC_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      const uint32_t both =
          funnel_right(words[staged_word(word, lane[i])], words[staged_word(word + 1u, lane[i])], shift);
      KVCC_UNROLL
      for (int later = 0; later < 2; ++later) {
        const uint32_t code = (later ? both >> bits : both) & mask;
        if constexpr (kWide) {
          row[later][i] = *reinterpret_cast<const Words<2>*>(rows + slot.table[0] + code * 8u);
        } else {
          row[later][i].word[part] = *reinterpret_cast<const uint32_t*>(rows + slot.table[part] + code * 4u);
        }
      }
    }
  }
}

/// Queries and the relative rotary table as KeyTables has them, and what decodes a head's keys.
template <class Config, int kGroup, bool kRelative, uint32_t kRowBytes>
struct VectorKeyTables {
  static constexpr int D = Config::kHeadDim, R = Config::kRotaryDim, kSteps = D / 16, kTurned = R / 16;
  static constexpr bool kRelativeHere = kRelative && R > 0;
  static_assert(D % 16 == 0 && R % 16 == 0 && R <= D);
  static_assert(Config::kRope == Rope::none ? R == 0 : R > 0);
  static constexpr bool kTwo = kTurned % 2 == 0;
  static constexpr int kRowWords = kTurned * 8 + (kTwo && kTurned % 4 == 0 ? 16 : 0);

  alignas(16) float query[kGroup / 8 * kSteps * 32 * 4];
  float back[kGroup];
  alignas(16) uint32_t relative[kRelativeHere ? KVCC_ROPE_BLOCK * kRowWords : 4];
  /// [step of coordinates, step of channels, lane]: B fragments of both octets of channels.
  alignas(16) uint32_t inverse[Config::kSteps * kSteps * 32 * 4];
  alignas(16) float mean[D];
  alignas(16) KvccVectorSlot slot[Config::kSteps * 4];
  VectorRows<kRowBytes> rows;

  static KVCC_HD constexpr int octet(int step, int second) {
    if (Config::kRope == Rope::half && step < kTurned) return step + second * kTurned;
    return 2 * step + second;
  }

  /// Codebooks of a head; where its rows lie. A barrier must follow.
  KVCC_DEVICE const uint8_t* fill_vectors(const KvccVectorTensor& t, int32_t head, uint32_t thread) {
    const KvccVectorHead& of_head = t.heads[head];
    const uint32_t* from = t.fragments + static_cast<int64_t>(head) * Config::kSteps * (D / 8) * 64;
    for (uint32_t i = thread; i < Config::kSteps * kSteps * 64u; i += KVCC_THREADS) {
      const uint32_t lane = i / 2u % 32u, second = i % 2u, k = i / 64u % kSteps, step = i / 64u / kSteps;
      const auto words = load_cached<2>(
          from + ((step * (D / 8) + static_cast<uint32_t>(octet(static_cast<int>(k), static_cast<int>(second)))) * 32u +
                  lane) *
                     2u);
      *reinterpret_cast<Words<2>*>(inverse + ((step * kSteps + k) * 32u + lane) * 4u + second * 2u) = words;
    }
    for (uint32_t i = thread; i < D; i += KVCC_THREADS) mean[i] = t.fragment_mean[head * D + i];
    for (uint32_t i = thread; i < Config::kSteps * 4u; i += KVCC_THREADS)
      slot[i] = t.slots[head * Config::kSteps * 4 + i];
    return rows.fill(t.rows + of_head.table, static_cast<uint32_t>(of_head.table_bytes), thread);
  }
};

/// Turns of the page's keys `slot` + row and `slot` + row + 8 at step k, when they are needed: load_turns() takes two
/// steps at a time, which would not leave the registers.
template <class Config, class Tables>
KVCC_DEVICE void load_turn(Words<2> (&turn)[2], const Tables& s, const RelativeRow<Config>& relative, int slot, int k,
                           const Lane& at) {
  if (k >= Tables::kTurned) return;
  KVCC_UNROLL
  for (int i = 0; i < 2; ++i) {
    if constexpr (Tables::kRelativeHere) {
      const uint32_t* row = s.relative + (slot + 8 * i + static_cast<int>(at.row)) * Tables::kRowWords;
      const uint32_t place = Tables::kTwo ? (k / 2 * 4 + at.column) * 4 + k % 2 * 2 : (k * 4 + at.column) * 2;
      turn[i] = *reinterpret_cast<const Words<2>*>(row + place);
    } else {
      turn[i] = relative.entry(slot + 8 * i, k);
    }
  }
}

/// Adds the scores of tokens 16 `half` … (score[0]) and 32 further on (score[1]) of a page, 16 each: C fragments.
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void score_half(float (&score)[2][kTiles][4], const Tables& s, const VectorHead& head,
                            const uint32_t* words, uint32_t half, const QueryFragments<Tables::kSteps, kTiles>& query,
                            const RelativeRow<Config>& relative, const Lane& at) {
  uint32_t a[Config::kSteps][2][4] =
      {};  // steps that the head has not multiply zeros: skipped, they cost more registers
  KVCC_UNROLL
  for (int step = 0; step < Config::kSteps; ++step) {
    if (step >= head.steps) continue;
    const KvccVectorSlot slot = s.slot[step * 4 + static_cast<int>(at.column)];
    const uint32_t lane[2] = {16u * half + at.row, 16u * half + 8u + at.row};
    Words<2> row[2][2];
    if (step < head.wide) {
      decode_slot<true>(row, words, slot, head.rows, lane);
    } else {
      decode_slot<false>(row, words, slot, head.rows, lane);
    }
    KVCC_UNROLL
    for (int e = 0; e < 4; ++e) {
      a[step][0][e] = row[0][e % 2].word[e / 2];
      a[step][1][e] = row[1][e % 2].word[e / 2];
    }
    sync_warp();  // as below
  }
  KVCC_UNROLL
  for (int k = 0; k < Tables::kSteps; ++k) {
    float key[2][2][4];  // [tokens, octet]
    KVCC_UNROLL
    for (int second = 0; second < 2; ++second) {
      const Float2 mean = *reinterpret_cast<const Float2*>(s.mean + Tables::octet(k, second) * 8 + 2 * at.column);
      KVCC_UNROLL
      for (int e = 0; e < 8; ++e) key[e / 4][second][e % 4] = mean.x[e % 2];
    }
    KVCC_UNROLL
    for (int step = 0; step < Config::kSteps; ++step) {
      const auto b = *reinterpret_cast<const Words<4>*>(s.inverse + ((step * Tables::kSteps + k) * 32 + at.lane) * 4);
      KVCC_UNROLL
      for (int second = 0; second < 2; ++second) {
        KVCC_UNROLL
        for (int later = 0; later < 2; ++later) {
          mma_16816(key[later][second], a[step][later], b.word[2 * second], b.word[2 * second + 1]);
        }
      }
    }
    KVCC_UNROLL
    for (int later = 0; later < 2; ++later) {
      uint32_t fragment[4];
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        fragment[e] = pack_half2(key[later][e / 2][e % 2 * 2], key[later][e / 2][e % 2 * 2 + 1]);
      }
      Words<2> turn[2];
      load_turn(turn, s, relative, static_cast<int>(16u * half) + 32 * later, k, at);
      multiply_step<Config>(score[later], fragment, turn, k < Tables::kTurned, query.b[k]);
    }
    sync_warp();  // no loads of later steps before: they would not fit the registers
  }
}

}  // namespace kvcc::device
