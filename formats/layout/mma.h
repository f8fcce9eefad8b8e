// The packed cache layout `mma-1` (formats/spec/cache-mma.md): codes in the order in which tensor cores take them, so
// that a warp streams a tile with 128-bit loads and no shuffles. Plain inline functions, the same for host and device.
//
// A tile is one page (64 tokens) of one head: 8 x D/8 blocks of 8 tokens x 8 channels. In block (band, octet) lane
// 4 g + t of a warp owns one pair of codes,
//   keys    token 8 band + g,            channels 8 octet + 2 t, 8 octet + 2 t + 1;
//   values  channel 8 octet + g,         tokens   8 band + 2 t,  8 band + 2 t + 1,
// which is half a register of an A operand of mma.m16n8k16. RoPE partners (2 i, 2 i + 1) share a pair, and (i, i + R/2)
// lie in one lane when R is a multiple of 16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/layout/half.h"
#include "formats/layout/linear.h"

namespace kvcc::mma {

constexpr char kLayoutId[] = "mma-1";
constexpr uint32_t kPageTokens = 64;
constexpr uint32_t kPageAlign = 128;
constexpr uint32_t kLanes = 32;
constexpr uint32_t kClasses = 8;  ///< a tile's records are listed by bands of 8 tokens

enum class Tensor : uint32_t { key = 0, value = 1 };

/// Widths and head dimensions that the layout has.
KVCC_HD constexpr bool supports(uint32_t head_dim, uint32_t bits) {
  return head_dim % 16u == 0 && head_dim >= 16u && head_dim <= 256u &&
         (bits == 2u || bits == 3u || bits == 4u || bits == 8u);
}

/// 32-bit words of a tile, and of one lane's share of it.
KVCC_HD constexpr uint32_t tile_words(uint32_t head_dim, uint32_t bits) { return 2u * head_dim * bits; }
KVCC_HD constexpr uint32_t lane_words(uint32_t head_dim, uint32_t bits) { return head_dim * bits / 16u; }

/// Place of word `word` of lane `lane`'s share in the tile: planes of four words a lane, then at most one plane of two
/// and one of one, so that a warp reads each plane as one contiguous run.
KVCC_HD constexpr uint32_t word_place(uint32_t word, uint32_t lane, uint32_t words) {
  const uint32_t quads = words / 4u, rest = words % 4u;
  if (word < 4u * quads) return word / 4u * 128u + lane * 4u + word % 4u;
  const uint32_t base = quads * 128u, left = word - 4u * quads;
  if (rest >= 2u && left < 2u) return base + lane * 2u + left;
  return base + (rest >= 2u ? 64u : 0u) + lane;
}

/// Which lane owns an element, which of its pairs it belongs to, and whether it is the pair's first or second code.
struct Owner {
  uint32_t lane, pair, second;
};
KVCC_HD constexpr Owner owner(Tensor tensor, uint32_t head_dim, uint32_t token, uint32_t channel) {
  const uint32_t pair = token / 8u * (head_dim / 8u) + channel / 8u;
  const uint32_t row = (tensor == Tensor::key ? token : channel) % 8u;
  const uint32_t column = (tensor == Tensor::key ? channel : token) % 8u;
  return {row * 4u + column / 2u, pair, column % 2u};
}

/// Inverse of owner().
struct Element {
  uint32_t token, channel;
};
KVCC_HD constexpr Element element(Tensor tensor, uint32_t head_dim, uint32_t lane, uint32_t pair, uint32_t second) {
  const uint32_t row = lane / 4u, column = lane % 4u * 2u + second;
  const uint32_t band = pair / (head_dim / 8u), octet = pair % (head_dim / 8u);
  if (tensor == Tensor::key) return {band * 8u + row, octet * 8u + column};
  return {band * 8u + column, octet * 8u + row};
}

/// A pair is 2 b bits, first code low. Sixteen consecutive pairs of a lane fill exactly b words. Bit (mod 32) of word
/// pair_word() at which pair `e` (0 to 15) of its group begins; fields may wrap around their word. One field a word
/// lies at bit 7, where the address of a table of 128-byte rows wants it. Three bits: words 0, 1, 2 hold five pairs
/// each from bit 1 on; pair 15 takes bits 31 and 0 of the three.
KVCC_HD constexpr uint32_t pair_word(uint32_t e, uint32_t bits) {
  return bits == 2u ? e / 8u : bits == 3u ? e / 5u : bits == 4u ? e / 4u : e / 2u;
}
KVCC_HD constexpr uint32_t pair_bit(uint32_t e, uint32_t bits) {
  return bits == 2u   ? (4u * (e % 8u) + 3u) % 32u
         : bits == 3u ? 1u + 6u * (e % 5u)
         : bits == 4u ? (8u * (e % 4u) + 7u) % 32u
                      : 16u * (e % 2u);
}

KVCC_HD constexpr uint32_t rotate_left(uint32_t x, uint32_t n) {
  return n % 32u ? x << n % 32u | x >> (32u - n % 32u) : x;
}

/// Pair e of a group, from the group's `bits` words.
KVCC_HD inline uint32_t get_pair(const uint32_t* group, uint32_t e, uint32_t bits) {
  if (bits == 3u && e == 15u) {
    return (rotate_left(group[0], 1) & 3u) | (rotate_left(group[1], 1) & 3u) << 2 |
           (rotate_left(group[2], 1) & 3u) << 4;
  }
  return rotate_left(group[pair_word(e, bits)], 32u - pair_bit(e, bits)) & ((1u << 2u * bits) - 1u);
}

/// Word `word` of a lane's share, from pair_at(pair), pair in [0, D). Words are made independently of each other.
template <class PairAt>
KVCC_HD inline uint32_t make_word(uint32_t word, uint32_t bits, const PairAt& pair_at) {
  const uint32_t first = word / bits * 16u, j = word % bits;
  uint32_t out = 0;
  const uint32_t each = bits == 3u ? 5u : 16u / bits;
  for (uint32_t e = j * each; e < (j + 1u) * each; ++e) out |= rotate_left(pair_at(first + e), pair_bit(e, bits));
  if (bits == 3u) out |= rotate_left(pair_at(first + 15u) >> 2u * j & 3u, 31u);
  return out;
}

/// Code of (token, channel) of a tile.
KVCC_HD inline uint32_t get_code(const uint32_t* tile, Tensor tensor, uint32_t head_dim, uint32_t bits, uint32_t token,
                                 uint32_t channel) {
  const Owner at = owner(tensor, head_dim, token, channel);
  const uint32_t words = lane_words(head_dim, bits), first = at.pair / 16u * bits, e = at.pair % 16u;
  uint32_t pair;
  if (bits == 3u && e == 15u) {
    uint32_t group[3];
    for (uint32_t j = 0; j < 3u; ++j) group[j] = tile[word_place(first + j, at.lane, words)];
    pair = get_pair(group, e, bits);
  } else {
    const uint32_t word = tile[word_place(first + pair_word(e, bits), at.lane, words)];
    pair = rotate_left(word, 32u - pair_bit(e, bits)) & ((1u << 2u * bits) - 1u);
  }
  return (at.second ? pair >> bits : pair) & ((1u << bits) - 1u);
}

/// One outlier of a tile, kept exactly. It names the code that the tile holds in its place, so that a reader can take
/// the decoded value off without looking the code up; with 8-bit codes the field is 0.
/// A tile's records lie in the order of tokens, in a token by channel: those of a band of 8 tokens, their class, follow
/// one another, and appending moves none.
struct alignas(4) Record {
  uint16_t place;  ///< channel | token % 8 << 8 | code << 11
  uint16_t value;  ///< fp16
};
static_assert(sizeof(Record) == 4 && alignof(Record) == 4);

KVCC_HD constexpr uint32_t record_class(uint32_t token) { return token / 8u; }
KVCC_HD constexpr uint16_t record_place(uint32_t token, uint32_t channel, uint32_t code, uint32_t bits) {
  return static_cast<uint16_t>(channel | token % 8u << 8 | (bits <= 4u ? code : 0u) << 11);
}
/// Inverse of record_place() and record_class().
KVCC_HD constexpr Element record_element(uint32_t place, uint32_t record_class) {
  return {record_class * 8u + (place >> 8 & 7u), place & 255u};
}
/// Meaningful for bits <= 4.
KVCC_HD constexpr uint32_t record_code(uint32_t place) { return place >> 11 & 15u; }

/// What decides the size of a page and the place of its parts, in this order: tiles of codes (head by head), ranges,
/// class ends, records. All heads' record lists have the same capacity.
struct PageShape {
  uint32_t code_words;  ///< sum over heads of tile_words
  uint32_t ranges;      ///< 1: a linear::RangeRecord a token (token axis); 0: static scales outside the page
  uint32_t classes;     ///< 0 without sparse part, else kClasses
  uint32_t heads;
  uint32_t capacity;  ///< records of a tile, a multiple of 4; 0 without sparse part
};

KVCC_HD constexpr uint64_t ranges_offset(const PageShape& s) { return uint64_t{s.code_words} * 4u; }
/// Class ends: u16 [heads, classes]: records of the tile up to and including the class. Pack writes none above the
/// capacity.
KVCC_HD constexpr uint64_t ends_offset(const PageShape& s) {
  return ranges_offset(s) + (s.ranges ? kPageTokens * sizeof(linear::RangeRecord) : 0u);
}
/// Records: [heads, capacity], each list 16-byte aligned.
KVCC_HD constexpr uint64_t records_offset(const PageShape& s) {
  return ends_offset(s) + uint64_t{s.heads} * s.classes * sizeof(uint16_t);
}
KVCC_HD constexpr uint64_t page_bytes(const PageShape& s) {
  return (records_offset(s) + uint64_t{s.heads} * s.capacity * sizeof(Record) + kPageAlign - 1u) / kPageAlign *
         kPageAlign;
}

/// First word of head `head`'s tile in a page whose heads all have `bits`.
KVCC_HD constexpr uint32_t head_first_word(uint32_t head, uint32_t head_dim, uint32_t bits) {
  return head * tile_words(head_dim, bits);
}

/// Records that a tile is given by default: twice what the scheme's fraction expects, in steps of 16. Host only.
inline uint32_t default_capacity(double fraction, uint32_t head_dim) {
  return (static_cast<uint32_t>(2.0 * fraction * kPageTokens * head_dim) / 16u + 1u) * 16u;
}

}  // namespace kvcc::mma
