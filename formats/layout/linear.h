// The packed cache layout `linear-1` (formats/spec/cache.md): how codes, ranges and outliers of one page lie in memory.
// Plain inline functions over plain types, the same text for host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/layout/half.h"

namespace kvcc::linear {

constexpr char kLayoutId[] = "linear-1";
constexpr uint32_t kPageTokens = 64;  ///< P: tokens of a page, all heads of one layer
constexpr uint32_t kPageAlign = 128;  ///< a page starts and ends at a multiple of this many bytes

/// One outlier, kept exactly. Entries of a token ascend by column.
struct alignas(4) SparseRecord {
  uint16_t column;  ///< head * head_dim + channel
  uint16_t value;   ///< fp16
};
static_assert(sizeof(SparseRecord) == 4 && alignof(SparseRecord) == 4);

/// Online scale and zero-point of one token, over all its heads.
struct alignas(4) RangeRecord {
  uint16_t scale;  ///< fp16, > 0
  uint16_t zero;   ///< fp16
};
static_assert(sizeof(RangeRecord) == 4 && alignof(RangeRecord) == 4);

/// Which sparse part a page has.
enum class Sparse : uint32_t {
  none = 0,
  csr = 1,   ///< a count that depends on the data: row ends and up to `entries` records a page (per-channel thresholds)
  tail = 2,  ///< exactly 2 * tail records a token, no pointers (per-token tails)
};

/// 32-bit words of one row, i.e. the codes of one token's head; rows are padded with zero bits to whole words.
KVCC_HD constexpr uint32_t row_words(uint32_t head_dim, uint32_t bits) { return (head_dim * bits + 31u) / 32u; }

/// Code i of a row: bits [i * bits, (i + 1) * bits) of the row's bit string, low bits first in little-endian words.
KVCC_HD inline uint32_t get_code(const uint32_t* row, uint32_t i, uint32_t bits) {
  const uint32_t first = i * bits;
  const uint32_t shift = first & 31u;
  uint32_t code = row[first >> 5] >> shift;
  if (shift + bits > 32u) code |= row[(first >> 5) + 1] << (32u - shift);  // straddles two words
  return code & ((1u << bits) - 1u);
}

/// Word `word` of a row, from code_at(i), i in [0, head_dim). Codes that straddle words are asked for in both, so that
/// words can be made independently of each other.
template <class CodeAt>
KVCC_HD inline uint32_t make_word(uint32_t word, uint32_t head_dim, uint32_t bits, const CodeAt& code_at) {
  const uint32_t first_bit = word * 32u;
  uint32_t out = 0;
  for (uint32_t i = first_bit / bits; i < head_dim && i * bits < first_bit + 32u; ++i) {
    const uint32_t code = code_at(i);
    if (i * bits >= first_bit) {
      out |= code << (i * bits - first_bit);
    } else {
      out |= code >> (first_bit - i * bits);
    }
  }
  return out;
}

/// What decides the size of a page and the place of its parts, in this order: codes, ranges, row ends, entries.
struct PageShape {
  uint32_t code_words;  ///< sum over heads of kPageTokens * row_words(head_dim, bits of the head)
  uint32_t ranges;      ///< 1: a RangeRecord a token (token axis); 0: static scales outside the page
  Sparse sparse;
  uint32_t entries;  ///< records a page can hold: the capacity (csr), kPageTokens * 2 * tail (tail), 0 (none)
};

/// Byte offsets inside a page. All parts consist of 4-byte records.
KVCC_HD constexpr uint64_t ranges_offset(const PageShape& s) { return uint64_t{s.code_words} * 4u; }
KVCC_HD constexpr uint64_t row_ends_offset(const PageShape& s) {
  return ranges_offset(s) + (s.ranges ? kPageTokens * sizeof(RangeRecord) : 0u);
}
KVCC_HD constexpr uint64_t entries_offset(const PageShape& s) {
  return row_ends_offset(s) + (s.sparse == Sparse::csr ? kPageTokens * sizeof(uint32_t) : 0u);
}
KVCC_HD constexpr uint64_t page_bytes(const PageShape& s) {
  return (entries_offset(s) + s.entries * sizeof(SparseRecord) + kPageAlign - 1u) / kPageAlign * kPageAlign;
}

/// First word of head `head`'s codes in a page whose heads all have `bits`. Inside a head, rows follow by token.
KVCC_HD constexpr uint32_t head_first_word(uint32_t head, uint32_t head_dim, uint32_t bits) {
  return head * kPageTokens * row_words(head_dim, bits);
}

/// Records that a page's csr part is given by default: twice what the scheme's fraction expects, as text other than the
/// calibration text exceeds thresholds more often, in steps of 32. Host only: pack reports pages that need more.
inline uint32_t default_capacity(double fraction, uint32_t heads, uint32_t head_dim) {
  const double expected = fraction * kPageTokens * heads * head_dim;
  return (static_cast<uint32_t>(2.0 * expected) / 32u + 1u) * 32u;
}

}  // namespace kvcc::linear
