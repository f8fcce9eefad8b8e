// What the families that read a cache of layout mma-1 share: which parts of the context a block walks, codes in
// registers, tables of levels in shared memory. A block is four warps; each takes whole tiles (a page of one head), and
// nothing but the tables is shared until the warps' results are merged; or all take each tile together (mma_block.cuh).
#pragma once

#include <type_traits>

#include "formats/layout/mma.h"
#include "formats/layout/mma_launch.h"
#include "kernels/device/common.cuh"
#include "kernels/device/mma_page.cuh"

namespace kvcc::device {

constexpr int kMmaWarps = KVCC_THREADS / 32;
constexpr int kMmaQueries = 8;  ///< columns of an mma
constexpr int kMmaSteps = 4;    ///< runs of 16 tokens in a tile: the rows of a key's mma, the depth of a value's

/// Greatest shared memory that a block may have on every architecture: 99 KiB on sm_86, 89 and 120.
constexpr uint32_t kMmaSharedLimit = 101376;
/// The first of some types, in order of preference, that this can hold; else the last.
template <class A, class... Others>
struct FitsShared : std::conditional_t<sizeof(A) <= kMmaSharedLimit, std::type_identity<A>, FitsShared<Others...>> {};
template <class A>
struct FitsShared<A> : std::type_identity<A> {};
template <class... Choices>
using FirstThatFits = typename FitsShared<Choices...>::type;

/// A thread's place in its block, and in fragments: row g and column t of lane 4 g + t.
struct Lane {
  uint32_t warp, lane, row, column;
};
KVCC_DEVICE Lane this_lane() {
  const uint32_t thread = thread_index();
  return {shuffle(thread / 32u, 0), thread % 32u, thread % 32u / 4u, thread % 4u};
}

/// The same, from shuffles: what follows from it is computed here and not, long before, held in registers that a loop
/// needs.
KVCC_DEVICE Lane fresh_lane() {
  const uint32_t thread = thread_index(), lane = shuffle(thread % 32u, thread % 32u);
  return {shuffle(thread / 32u, 0), lane, lane / 4u, lane % 4u};
}

KVCC_HD inline float maximum(float a, float b) {
#if defined(__CUDA_ARCH__)
  return fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}

KVCC_HD inline float magnitude(float x) {
#if defined(__CUDA_ARCH__)
  return fabsf(x);
#else
  return bits_float(float_bits(x) & 0x7fffffffu);
#endif
}

constexpr float kInfinity = __builtin_huge_valf();

KVCC_HD inline int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
KVCC_HD inline int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

KVCC_HD inline Half2 broadcast_low(Half2 x) { return byte_permute(x, x, 0x1010u); }
KVCC_HD inline Half2 broadcast_high(Half2 x) { return byte_permute(x, x, 0x3232u); }

/// Neighbours of shared or global memory that are loaded at once.
struct alignas(8) Float2 {
  float x[2];
};
struct alignas(16) Float4 {
  float x[4];
};

/// 2^exponent, exponent in [-126, 127].
KVCC_HD inline float power_of_two(int32_t exponent) { return bits_float(static_cast<uint32_t>(exponent + 127) << 23); }

/// The visible part of a sequence, in tiles: pages that hold visible packed tokens, and blocks of 64 positions that
/// hold visible exact ones (two runs: sinks, then the residual ring).
struct Context {
  int32_t length, visible;           ///< positions [visible, length) count
  int32_t packed_first, packed_end;  ///< of the visible packed tokens, counted from `sink`
  int32_t page_first, pages;
  int32_t sink_first, sink_tiles;  ///< blocks of 64 positions
  int32_t ring_first, ring_tiles;
  int32_t ring_begin;  ///< least position of the residual ring
};
KVCC_HD inline Context context_of(const KvccCache& c, int32_t length, int32_t window) {
  Context at;
  at.length = length;
  at.visible = window > 0 ? larger(length - window, 0) : 0;
  at.ring_begin = larger(c.sink, length - c.residual);
  at.packed_first = larger(at.visible - c.sink, 0);
  at.packed_end = smaller(at.ring_begin, larger(length, c.sink)) - c.sink;
  at.page_first = at.packed_first / KVCC_PAGE_TOKENS;
  at.pages =
      at.packed_end > at.packed_first ? (at.packed_end + KVCC_PAGE_TOKENS - 1) / KVCC_PAGE_TOKENS - at.page_first : 0;
  const int32_t sinks = smaller(c.sink, length), ring = larger(at.ring_begin, at.visible);
  at.sink_first = at.visible / KVCC_ROPE_BLOCK;
  at.sink_tiles = sinks > at.visible ? (sinks + KVCC_ROPE_BLOCK - 1) / KVCC_ROPE_BLOCK - at.sink_first : 0;
  at.ring_first = ring / KVCC_ROPE_BLOCK;
  if (at.sink_tiles > 0) at.ring_first = larger(at.ring_first, at.sink_first + at.sink_tiles);
  at.ring_tiles = length > ring ? larger((length + KVCC_ROPE_BLOCK - 1) / KVCC_ROPE_BLOCK - at.ring_first, 0) : 0;
  return at;
}
KVCC_HD inline bool is_exact(const KvccCache& c, const Context& at, int32_t p) {
  return p >= at.visible && p < at.length && (p < c.sink || p >= at.ring_begin);
}

/// Part `split` of the context: pages [page, page_end) and exact tiles [tile, tile_end), the latter counted over both
/// runs.
struct Part {
  int32_t page, page_end, tile, tile_end;
};
KVCC_HD inline Part part_of(const Context& at, int32_t split, int32_t splits) {
  const int32_t tiles = at.pages + at.sink_tiles + at.ring_tiles;
  const int32_t each = tiles / splits + (tiles % splits != 0 ? 1 : 0);
  const int64_t begin = static_cast<int64_t>(split) * each, end = begin + each;
  const int32_t first = begin < tiles ? static_cast<int32_t>(begin) : tiles;
  const int32_t last = end < tiles ? static_cast<int32_t>(end) : tiles;
  return {at.page_first + smaller(first, at.pages), at.page_first + smaller(last, at.pages),
          larger(first - at.pages, 0), larger(last - at.pages, 0)};
}
/// Which block of 64 positions an exact tile is.
KVCC_HD inline int32_t exact_block(const Context& at, int32_t tile) {
  return tile < at.sink_tiles ? at.sink_first + tile : at.ring_first + tile - at.sink_tiles;
}

/// Row of `exact` of position p, of one head; null where p is not a visible exact position.
template <class Config>
KVCC_HD inline const uint16_t* exact_values(const KvccCache& c, const Context& at, uint32_t sequence, int32_t head,
                                            int32_t p) {
  if (!is_exact(c, at, p)) return nullptr;
  const int64_t row = static_cast<int64_t>(sequence) * (c.sink + c.residual) + exact_row(c, p, at.length);
  return c.exact + (row * c.heads + head) * Config::kHeadDim;
}

/// Number in the pool of page i of a sequence. Warps look it up a round ahead: the page's address waits for it.
KVCC_DEVICE int32_t page_number(const KvccCache& c, uint32_t sequence, int32_t i) {
  const int64_t slot = static_cast<int64_t>(sequence) * c.max_pages + i;
  return c.page_table != nullptr ? c.page_table[slot] : static_cast<int32_t>(slot);
}
KVCC_DEVICE uint8_t* page_at(const KvccCache& c, int32_t number) { return c.pages + number * c.page_bytes; }
template <class Config>
KVCC_DEVICE uint32_t first_word(const KvccCache& c, int32_t head) {
  return c.head_words != nullptr ? c.head_words[head] : mma::head_first_word(head, Config::kHeadDim, Config::kBits);
}
KVCC_DEVICE const uint32_t* tile_at(uint8_t* page, uint32_t word) {
  return reinterpret_cast<const uint32_t*>(page) + word;
}

/// What a block does. Kept in shared memory as well, for what comes after the loop over pages: held in registers all
/// the while, it would not leave enough of them to the loop.
struct Work {
  Context context;
  Part part;
  int32_t head, group_first, queries;  ///< queries [group_first, group_first + queries) of the head's group
  KVCC_HD int64_t row(uint32_t sequence, int32_t heads, int32_t group) const {
    return (static_cast<int64_t>(sequence) * heads + head) * group + group_first;
  }
};
/// block: (split, head x group tile, sequence).
KVCC_HD inline Work work_of(const KvccCache& c, const Block& block, int32_t group, int32_t group_tile, int32_t splits,
                            int32_t window) {
  const int32_t group_tiles = (group + group_tile - 1) / group_tile;
  Work work;
  work.head = static_cast<int32_t>(block.y) / group_tiles;
  work.group_first = static_cast<int32_t>(block.y) % group_tiles * group_tile;
  work.queries = smaller(group - work.group_first, group_tile);
  work.context = context_of(c, c.lengths[block.z], window);
  work.part = part_of(work.context, static_cast<int32_t>(block.x), splits);
  return work;
}

/// Which slots of page i are visible: [begin, end).
struct Slots {
  int32_t begin, end;
  KVCC_HD bool all() const { return begin <= 0 && end >= KVCC_PAGE_TOKENS; }
  KVCC_HD bool has(int32_t slot) const {
    return static_cast<uint32_t>(slot - begin) < static_cast<uint32_t>(larger(end - begin, 0));
  }
};
KVCC_HD inline Slots visible_slots(const Context& at, int32_t page) {
  return {at.packed_first - page * KVCC_PAGE_TOKENS, at.packed_end - page * KVCC_PAGE_TOKENS};
}

/// What a warp holds of a tile's codes at a time: kRuns runs of 16 tokens, whole 128-bit planes of words, at most 36
/// registers; a whole tile where it fits.
template <class Config>
struct MmaCodes {
  static constexpr int kBits = Config::kBits, kWords = Config::kHeadDim * kBits / 16;
  /// Parts of whole planes; of three bits, whose sixteenth pair lies in three words, of whole groups too.
  static constexpr bool fits(int parts) {
    return kWords % parts == 0 && kWords / parts <= 36 && (parts == 1 || kWords / parts % 4 == 0) &&
           (kBits != 3 || kWords / parts % 3 == 0);
  }
  static constexpr int kParts = fits(1) ? 1 : fits(2) ? 2 : 4;
  static_assert(fits(kParts));
  static constexpr int kHeld = kWords / kParts, kRuns = kMmaSteps / kParts;

  uint32_t word[kHeld];

  KVCC_DEVICE void load(const uint32_t* tile, int part, uint32_t lane) {
    constexpr int kQuads = kHeld / 4, kRest = kHeld % 4;
    KVCC_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      const Words<4> w = load_streamed<4>(tile + (part * kQuads + q) * 128 + lane * 4u);
      KVCC_UNROLL
      for (int i = 0; i < 4; ++i) word[4 * q + i] = w.word[i];
    }
    if constexpr (kRest >= 2) {
      const Words<2> w = load_streamed<2>(tile + kQuads * 128 + lane * 2u);
      word[4 * kQuads] = w.word[0];
      word[4 * kQuads + 1] = w.word[1];
    }
    if constexpr (kRest % 2 == 1) {
      word[kHeld - 1] = load_streamed<1>(tile + kQuads * 128 + (kRest >= 2 ? 64 : 0) + lane).word[0];
    }
  }
};

/// How levels lie in shared memory. Rows of 32 lanes are free of bank conflicts.
enum class Table {
  pairs,   ///< a row a pair of codes, both levels: one load a pair
  levels,  ///< a row a code
  shared   ///< one word a code for all lanes: lanes conflict
};
KVCC_HD constexpr Table fastest_table(int bits) { return bits <= 4 ? Table::pairs : Table::levels; }
KVCC_HD constexpr Table smallest_table(int bits) { return bits <= 4 ? Table::levels : Table::shared; }

/// The levels of one head as fp16.
template <int kBits, Table kTable>
struct LevelTable {
  static constexpr uint32_t kRows = 1u << (kTable == Table::pairs ? 2 * kBits : kBits);
  static constexpr uint32_t kRowBytes = kTable == Table::shared ? 4u : 128u;
  static constexpr uint32_t kRowBit = kTable == Table::shared ? 2u : 7u;
  alignas(16) uint32_t row[kRows * kRowBytes / 4u];

  KVCC_DEVICE void fill(const float* levels, uint32_t thread) {
    constexpr uint32_t kEach = kRowBytes / 4u, kCodes = 1u << kBits;
    for (uint32_t i = thread; i < kRows * kEach; i += KVCC_THREADS) {
      const uint32_t at = i / kEach;
      row[i] = pack_half2(levels[at % kCodes], levels[kTable == Table::pairs ? at / kCodes : at]);
    }
  }

  /// What a lane adds to a row's address.
  static KVCC_DEVICE uint32_t lane_offset(uint32_t lane) {
    return kTable == Table::shared ? 0u : shuffle(lane * 4u, lane);
  }

  /// Both levels of pair e (0 to 15) of a group of `kBits` words.
  KVCC_DEVICE Half2 pair(const uint32_t* group, int e, uint32_t lane_offset) const {
    if constexpr (kTable == Table::pairs) {
      constexpr uint32_t kMask = ((1u << 2 * kBits) - 1u) << kRowBit;
      if (kBits == 3 && e == 15) {
        return at((rotate_right(group[0], 31u - kRowBit) & 3u << kRowBit) |
                  (rotate_right(group[1], 29u - kRowBit) & 12u << kRowBit) |
                  ((rotate_right(group[2], 27u - kRowBit) & 48u << kRowBit) | lane_offset));
      }
      const uint32_t turn = (mma::pair_bit(e, kBits) + 32u - kRowBit) % 32u;
      return at((rotate_right(group[mma::pair_word(e, kBits)], turn) & kMask) | lane_offset);
    } else {
      constexpr uint32_t kMask = ((1u << kBits) - 1u) << kRowBit;
      uint32_t word = group[mma::pair_word(e, kBits)], bit = mma::pair_bit(e, kBits);
      if (kBits == 3 && e == 15) {
        word = mma::get_pair(group, e, kBits);
        bit = 0;
      }
      const Half2 first = at((rotate_right(word, (bit + 32u - kRowBit) % 32u) & kMask) | lane_offset);
      const Half2 second = at((rotate_right(word, (bit + kBits + 32u - kRowBit) % 32u) & kMask) | lane_offset);
      return byte_permute(first, second, 0x5410u);
    }
  }
  /// The level of one code, in the low half.
  KVCC_DEVICE Half2 level(uint32_t code, uint32_t lane_offset) const { return at(code << kRowBit | lane_offset); }

 private:
  KVCC_DEVICE uint32_t at(uint32_t offset) const {
    return *reinterpret_cast<const uint32_t*>(reinterpret_cast<const unsigned char*>(row) + offset);
  }
};

/// Pair (band, octet) of what MmaCodes or RunCodes hold; bands counted from their first.
template <class Config, template <class> class Codes, Table kTable>
KVCC_DEVICE Half2 level_pair(const LevelTable<Config::kBits, kTable>& levels, const Codes<Config>& codes, int band,
                             int octet, uint32_t lane_offset) {
  const int e = band * (Config::kHeadDim / 8) + octet;
  return levels.pair(codes.word + e / 16 * Config::kBits, e % 16, lane_offset);
}

/// Level of the code that a record names.
template <class Config, Table kTable>
KVCC_DEVICE Half2 record_level(const LevelTable<Config::kBits, kTable>& levels, const uint32_t* tile, uint32_t place,
                               const mma::Element& at, uint32_t lane_offset) {
  uint32_t code;
  if constexpr (Config::kBits <= 4) {
    code = mma::record_code(place);
  } else {
    code = mma::get_code(tile, Config::kTensor, Config::kHeadDim, Config::kBits, at.token, at.channel);
  }
  return levels.level(code, lane_offset);
}

/// The ranges of tokens 8 band + row, 0 (which decodes to 0) of slots that are not visible: their bytes may be any.
template <class Config>
KVCC_DEVICE void load_ranges(const KvccCache& c, uint8_t* page, const Slots& slots, uint32_t row,
                             uint32_t (&range)[8]) {
  const auto* from = reinterpret_cast<const uint32_t*>(mma_ranges<Config>(c, page));
  KVCC_UNROLL
  for (int band = 0; band < 8; ++band) range[band] = from[8 * band + row];
  if (!slots.all()) [[unlikely]] {
    KVCC_UNROLL
    for (int band = 0; band < 8; ++band) {
      if (!slots.has(8 * band + static_cast<int32_t>(row))) range[band] = 0;
    }
  }
}

}  // namespace kvcc::device
