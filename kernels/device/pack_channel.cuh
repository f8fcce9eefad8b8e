// pack, static scale per channel (keys): a block packs the tokens of one page that x covers.
//   grid   (2 + pages, 1, sequence); kvcc_grid_pack_channel. Block 0 writes sink rows, block 1 + i page i of the range
//   phases count outliers of column chunks; sum over a token's chunks; sum over tokens and row ends; records; codes
//   order  records go to places known from counts, so their order is by token and column whatever the schedule
#pragma once

#include "kernels/device/pack.cuh"

namespace kvcc::device {

template <class Config>
struct PackChannel {
  using Params = KvccPackParams;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim;
  static constexpr bool kCsr = Config::kSparse == linear::Sparse::csr;
  static_assert(Config::kAxis == Axis::channel && Config::kSparse != linear::Sparse::tail);

  struct Shared {
    uint32_t count[kThreads];          ///< outliers of (token, chunk), then the exclusive sum over the token's chunks
    uint32_t total[KVCC_PAGE_TOKENS];  ///< outliers of a token, then its first record
  };

  /// Packed tokens [low, high) of one page.
  struct Place {
    int32_t page, low, high;
  };
  static KVCC_HD Place place(const Params& p, const Block& b) {
    const int32_t first = p.first[b.z] - p.cache.sink;  // packed number of x's first token, negative inside the sink
    const int32_t begin = first > 0 ? first : 0, end = first + p.count;
    Place at;
    at.page = begin / KVCC_PAGE_TOKENS + static_cast<int32_t>(b.x) - 1;
    const int32_t page_begin = at.page * KVCC_PAGE_TOKENS, page_end = page_begin + KVCC_PAGE_TOKENS;
    at.low = begin > page_begin ? begin : page_begin;
    at.high = end < page_end ? end : page_end;
    return at;
  }

  static KVCC_HD int phases(const Params& p, const Block& b) {
    if (b.x == 0) return writes_shared_part<Config>(p.cache) && p.first[b.z] < p.cache.sink ? 1 : 0;
    const Place at = place(p, b);
    if (at.low >= at.high) return 0;
    return kCsr && writes_shared_part<Config>(p.cache) ? 5 : 1;
  }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    if (b.x == 0) {
      const int32_t last = p.cache.sink - p.first[b.z];
      for (int32_t token = 0; token < p.count && token < last; ++token) {
        write_exact_row<Config>(p, b.z, token, p.first[b.z] + token, thread);
      }
      return;
    }
    const Place at = place(p, b);
    const bool sparse = kCsr && writes_shared_part<Config>(p.cache);
    if (k == (sparse ? 4 : 0)) {
      write_codes(p, b, at, thread);
      return;
    }
    uint8_t* const base = page(p.cache, b.z, at.page);
    const int32_t tokens = at.high - at.low;
    switch (k) {
      case 0:
        shared.count[thread] = for_outliers(p, b, at, thread, [](uint32_t, int32_t, float) {});
        break;
      case 1: {
        const int chunks = chunks_of(tokens);
        if (thread >= tokens) break;
        uint32_t sum = 0;
        for (int i = thread * chunks; i < (thread + 1) * chunks; ++i) {
          const uint32_t count = shared.count[i];
          shared.count[i] = sum;
          sum += count;
        }
        shared.total[thread] = sum;
        break;
      }
      case 2: {
        if (thread != 0) break;
        uint32_t* const row_end = row_ends<Config>(p.cache, base);
        const int32_t slot = at.low % KVCC_PAGE_TOKENS;
        uint32_t next = slot > 0 ? row_end[slot - 1] : 0u;  // appending goes on after the page's earlier tokens
        for (int32_t t = 0; t < tokens; ++t) {
          const uint32_t count = shared.total[t];
          shared.total[t] = next;
          next += count;
          row_end[slot + t] = next;
        }
        p.cache.needed[static_cast<int64_t>(b.z) * p.cache.max_pages + at.page] = next;
        break;
      }
      default: {
        linear::SparseRecord* const record = entries<Config>(p.cache, base);
        const uint32_t capacity = static_cast<uint32_t>(p.cache.sparse_capacity);
        const uint32_t token = static_cast<uint32_t>(thread / chunks_of(tokens));
        const uint32_t first = static_cast<int32_t>(token) < tokens ? shared.total[token] + shared.count[thread] : 0u;
        for_outliers(p, b, at, thread, [&](uint32_t i, int32_t column, float x) {
          const uint16_t half = record_half(x, p.status);
          if (first + i < capacity) record[first + i] = {static_cast<uint16_t>(column), half};
        });
      }
    }
  }

 private:
  /// Threads that share a token: the block's threads over the next power of two of the tokens.
  static KVCC_HD int chunks_of(int32_t tokens) {
    int chunks = kThreads;
    while (chunks * tokens > kThreads) chunks /= 2;
    return chunks;
  }

  static KVCC_HD int64_t x_row(const Params& p, const Block& b, int32_t packed) {
    const int32_t token = packed + p.cache.sink - p.first[b.z];
    return (static_cast<int64_t>(b.z) * p.count + token) * p.cache.heads * D;
  }

  /// Calls visit(number, column, x) for the outliers of this thread's token and column chunk in ascending order.
  /// Returns their count.
  template <class Visit>
  static KVCC_HD uint32_t for_outliers(const Params& p, const Block& b, const Place& at, int thread,
                                       const Visit& visit) {
    const int chunks = chunks_of(at.high - at.low);
    const int32_t token = thread / chunks, columns = p.cache.heads * D;
    if (token >= at.high - at.low) return 0;
    const int64_t row = x_row(p, b, at.low + token);
    const int32_t each = (columns + chunks - 1) / chunks, begin = thread % chunks * each;
    uint32_t count = 0;
    for (int32_t i = begin; i < begin + each && i < columns; ++i) {
      const float x = load<Config::kDtype>(p.x, row + i);
      if (outside_thresholds(x, p.cache.lower[i], p.cache.upper[i])) visit(count++, i, x);
    }
    return count;
  }

  static KVCC_HD void write_codes(const Params& p, const Block& b, const Place& at, int thread) {
    constexpr int32_t kWords = static_cast<int32_t>(linear::row_words(D, Config::kBits));
    uint8_t* const base = page(p.cache, b.z, at.page);
    for (int32_t head = 0; head < p.cache.heads; ++head) {
      if (!serves<Config>(p.cache.layer, head)) continue;
      const float* levels = Config::levels(p.cache.layer, head);
      for (int32_t item = thread; item < (at.high - at.low) * kWords; item += kThreads) {
        const int32_t packed = at.low + item / kWords, word = item % kWords;
        const int64_t row = x_row(p, b, packed) + head * D;
        code_row<Config>(p.cache, base, packed % KVCC_PAGE_TOKENS, head)[word] =
            linear::make_word(word, D, Config::kBits, [&](uint32_t channel) {
              const int32_t i = head * D + static_cast<int32_t>(channel);
              float x = load<Config::kDtype>(p.x, row + channel);
              if (!is_finite(x)) raise_status(p.status, KVCC_STATUS_RANGE);
              if constexpr (kCsr) x = clamp(x, p.cache.lower[i], p.cache.upper[i]);
              return nearest_level(levels, 1 << Config::kBits, normalise(x, p.cache.scale[i], p.cache.zero[i]));
            });
      }
    }
  }
};

}  // namespace kvcc::device
