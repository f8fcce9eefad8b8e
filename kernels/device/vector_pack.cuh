// pack, vector codebooks: a block makes one head's tile of one page, of the tokens that x covers; earlier tokens' codes
// stay as they are.
//   grid   kvcc_grid_mma_pack. Block 0 writes sink rows, block 1 + i page i of the range
//   phases clear a page that begins; then, eight tokens at a time, coordinates and codes; last, bits
//   order  a thread owns one lane's share, so that no two write a byte
#pragma once

#include "kernels/device/vector_tile.cuh"

namespace kvcc::device {

template <class Config>
struct VectorPack {
  using Params = KvccVectorPackParams;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, kTokens = 8;

  struct Shared {
    float z[kTokens * D];
    uint16_t code[KVCC_PAGE_TOKENS * D];  ///< [slot, group]
  };
  /// Packed tokens [low, high) of one page, as slots.
  struct Place {
    int32_t page, low, high;
  };
  static KVCC_HD Place place(const Params& p, const Block& b) {
    const int32_t first = p.pack.first[b.z] - p.pack.cache.sink;  // negative inside the sink
    const int32_t begin = first > 0 ? first : 0, end = first + p.pack.count;
    Place at;
    at.page = begin / KVCC_PAGE_TOKENS + static_cast<int32_t>(b.x) - 1;
    const int32_t page_begin = at.page * KVCC_PAGE_TOKENS;
    at.low = begin > page_begin ? begin - page_begin : 0;
    at.high = end - page_begin < KVCC_PAGE_TOKENS ? end - page_begin : KVCC_PAGE_TOKENS;
    return at;
  }
  static KVCC_HD int32_t sinks(const Params& p, const Block& b) {
    const int32_t left = p.pack.cache.sink - p.pack.first[b.z];
    return left < p.pack.count ? left : p.pack.count;
  }
  static KVCC_HD int phases(const Params& p, const Block& b) {
    if (b.x == 0) return sinks(p, b) > 0 ? 1 : 0;
    const Place at = place(p, b);
    return at.low < at.high ? 2 + 2 * ((at.high - at.low + kTokens - 1) / kTokens) : 0;
  }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    if (b.x == 0) {
      write_sinks(p, b, thread);
      return;
    }
    const Place at = place(p, b);
    const int32_t head = static_cast<int32_t>(b.y);
    if (k == 0) {
      if (at.low > 0) return;
      auto* const words = reinterpret_cast<uint32_t*>(vector_tile(p.pack.cache, b.z, at.page, head));
      const uint32_t count = vector_page::tile_words(static_cast<uint32_t>(p.tensor.token_bits[head]));
      for (uint32_t i = static_cast<uint32_t>(thread); i < count; i += kThreads) words[i] = 0;
      return;
    }
    if (k == phases(p, b) - 1) {
      write_codes(p, b, at, thread, shared);
      return;
    }
    const int32_t slot = at.low + (k - 1) / 2 * kTokens;
    const int32_t tokens = at.high - slot < kTokens ? at.high - slot : kTokens;
    if ((k - 1) % 2 == 0) {
      coordinates(p, b, at, slot, tokens, thread, shared);
    } else {
      nearest(p, head, slot, tokens, thread, shared);
    }
  }

 private:
  static KVCC_HD void write_sinks(const Params& p, const Block& b, int thread) {
    const KvccCache& c = p.pack.cache;
    for (int32_t i = thread; i < sinks(p, b) * D; i += kThreads) {
      const int64_t token = static_cast<int64_t>(b.z) * p.pack.count + i / D;
      const int64_t row = static_cast<int64_t>(b.z) * (c.sink + c.residual) + p.pack.first[b.z] + i / D;
      c.exact[(row * c.heads + b.y) * D + i % D] =
          record_half(load<Config::kDtype>(p.pack.x, (token * c.heads + b.y) * D + i % D), p.pack.status);
    }
  }

  /// The codec's: sums over channels ascending, every product and sum rounded.
  static KVCC_HD void coordinates(const Params& p, const Block& b, const Place& at, int32_t slot, int32_t tokens,
                                  int thread, Shared& shared) {
    const KvccCache& c = p.pack.cache;
    for (int32_t item = thread; item < tokens * D; item += kThreads) {
      const int32_t token = item / D, i = item % D;
      const int64_t of_x = static_cast<int64_t>(b.z) * p.pack.count + at.page * KVCC_PAGE_TOKENS + slot + token +
                           c.sink - p.pack.first[b.z];
      const int64_t row = (of_x * c.heads + b.y) * D, column = static_cast<int64_t>(b.y) * D;
      float sum = 0;
      for (int j = 0; j < D; ++j) {
        const float x = load<Config::kDtype>(p.pack.x, row + j);
        if (i == 0 && !is_finite(x)) raise_status(p.pack.status, KVCC_STATUS_RANGE);
        sum = add(sum, multiply(p.tensor.forward[(column + j) * D + i], add(x, -p.tensor.forward_mean[column + j])));
      }
      shared.z[item] = sum;
    }
  }

  static KVCC_HD void nearest(const Params& p, int32_t head, int32_t slot, int32_t tokens, int thread, Shared& shared) {
    const int32_t first = p.tensor.first_group[head], groups = p.tensor.first_group[head + 1] - first;
    for (int32_t item = thread; item < tokens * groups; item += kThreads) {
      const int32_t token = item % tokens;
      const KvccVectorGroup group = p.tensor.groups[first + item / tokens];
      const float* const z = shared.z + token * D + group.first;
      const float* const planes = p.tensor.planes + group.planes;
      const int entries = 1 << group.bits, step = (entries + 15) / 16 * 16;
      float least = 0;
      int best = 0;
      for (int e = 0; e < entries; ++e) {
        float sum = 0;
        for (int i = 0; i < group.width; ++i) {
          const float difference = add(z[i], -planes[i * step + e]), square = multiply(difference, difference);
          sum = i == 0 ? square : add(sum, square);
        }
        if (e == 0 || sum < least) {
          least = sum;
          best = e;
        }
      }
      shared.code[(slot + token) * D + item / tokens] = static_cast<uint16_t>(best);
    }
  }

  static KVCC_HD void write_codes(const Params& p, const Block& b, const Place& at, int thread, Shared& shared) {
    if (thread >= static_cast<int>(vector_page::kLanes)) return;
    const int32_t head = static_cast<int32_t>(b.y), first = p.tensor.first_group[head];
    uint8_t* const tile = vector_tile(p.pack.cache, b.z, at.page, head);
    for (int32_t slot = thread; slot < KVCC_PAGE_TOKENS; slot += vector_page::kLanes) {
      if (slot < at.low || slot >= at.high) continue;
      for (int32_t g = first; g < p.tensor.first_group[head + 1]; ++g) {
        const KvccVectorGroup group = p.tensor.groups[g];
        vector_page::put_code(tile, static_cast<uint32_t>(p.tensor.token_bits[head]), static_cast<uint32_t>(slot),
                              static_cast<uint32_t>(group.first_bit), static_cast<uint32_t>(group.bits),
                              shared.code[slot * D + g - first]);
      }
    }
  }
};

}  // namespace kvcc::device
