// The packed cache layout `vector-1` (formats/spec/cache-vector.md): codes of vector codebooks, whose groups of
// coordinates have widths of their own that are the same for every token. Plain inline functions, the same for host and
// device.
//
// A tile is one page (64 tokens) of one head. Lane l of 32 owns tokens l and l + 32. Its share is a string of bits: for
// every group, in order, the code of token l and above it that of token l + 32. A group lies at the same bits in every
// lane, so that a warp or a vector cuts its codes out with the same shifts.
#pragma once

#include <cstdint>

#include "formats/layout/linear.h"

namespace kvcc::vector_page {

constexpr char kLayoutId[] = "vector-1";
constexpr uint32_t kPageTokens = 64;
constexpr uint32_t kPageAlign = 128;
constexpr uint32_t kLanes = 32;
constexpr uint32_t kMostCodeBits = 12;  ///< of a group

/// Head dimensions that the layout has.
KVCC_HD constexpr bool supports(uint32_t head_dim) {
  return head_dim % 16u == 0 && head_dim >= 16u && head_dim <= 256u;
}

/// Bytes of a lane's share of a tile whose tokens take `bits` bits each, and 32-bit words of the tile.
KVCC_HD constexpr uint32_t lane_bytes(uint32_t bits) { return (2u * bits + 7u) / 8u; }
KVCC_HD constexpr uint32_t tile_words(uint32_t bits) { return 8u * lane_bytes(bits); }

/// Place in the tile of byte `byte` of lane `lane`'s share, which has `bytes`: planes of four bytes a lane, then at
/// most one plane of two and one of one, so that a warp reads each plane as one contiguous run.
KVCC_HD constexpr uint32_t byte_place(uint32_t byte, uint32_t lane, uint32_t bytes) {
  const uint32_t words = bytes / 4u, rest = bytes % 4u;
  if (byte < 4u * words) return byte / 4u * 128u + lane * 4u + byte % 4u;
  const uint32_t base = words * 128u, left = byte - 4u * words;
  if (rest >= 2u && left < 2u) return base + lane * 2u + left;
  return base + (rest >= 2u ? 64u : 0u) + lane;
}

/// Where a group's code of a token lies in the share of the lane that owns the token. `first`: bits of the groups
/// before it; `bits`: of its code.
KVCC_HD constexpr uint32_t code_bit(uint32_t token, uint32_t first, uint32_t bits) {
  return 2u * first + token / kLanes * bits;
}

/// Code of `token` in a tile whose tokens take `token_bits` bits each.
KVCC_HD inline uint32_t get_code(const uint8_t* tile, uint32_t token_bits, uint32_t token, uint32_t first,
                                 uint32_t bits) {
  const uint32_t bytes = lane_bytes(token_bits), lane = token % kLanes, at = code_bit(token, first, bits);
  uint32_t code = 0;
  for (uint32_t byte = at / 8u; 8u * byte < at + bits; ++byte) {
    const uint32_t value = tile[byte_place(byte, lane, bytes)];
    code |= 8u * byte < at ? value >> at % 8u : value << (8u * byte - at);
  }
  return code & ((1u << bits) - 1u);
}
/// Sets a code that is 0 so far.
KVCC_HD inline void put_code(uint8_t* tile, uint32_t token_bits, uint32_t token, uint32_t first, uint32_t bits,
                             uint32_t code) {
  const uint32_t bytes = lane_bytes(token_bits), lane = token % kLanes, at = code_bit(token, first, bits);
  uint32_t value = code << at % 8u;
  for (uint32_t byte = at / 8u; value != 0; ++byte, value >>= 8) {
    uint8_t& to = tile[byte_place(byte, lane, bytes)];
    to = static_cast<uint8_t>(to | (value & 255u));
  }
}

/// Bytes of a page whose tiles take `code_words` 32-bit words together; one without codes has 128 all the same.
KVCC_HD constexpr uint64_t page_bytes(uint32_t code_words) {
  const uint64_t bytes = uint64_t{code_words} * 4u;
  return bytes == 0 ? kPageAlign : (bytes + kPageAlign - 1u) / kPageAlign * kPageAlign;
}

}  // namespace kvcc::vector_page
