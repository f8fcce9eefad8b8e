// pack into layout mma-1, of both axes. A block makes the whole tile of one page and head: what the page's earlier
// tokens have there, and those that x brings, so that a tile is read and written at most once a call.
//   grid   (2 + pages, head, sequence); kvcc_grid_mma_pack. Block 0 writes sink rows, block 1 + i page i of the range.
//          On the token axis MmaSelect (mma_select.cuh) goes before
//   phases the earlier tokens' codes; the new ones'; words. With a sparse part also those of MmaRecords. A tile whose
//          list is too short keeps class ends and records of its earlier tokens
#pragma once

#include <type_traits>

#include "kernels/device/mma_records.cuh"
#include "kernels/device/mma_select.cuh"

namespace kvcc::device {

template <class Config>
struct MmaPack {
  using Params = KvccPackParams;
  using Records = MmaRecords<Config>;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim;
  static constexpr bool kSparse = kMmaSparse<Config>, kToken = Config::kAxis == Axis::token;
  static_assert(mma::supports(Config::kHeadDim, Config::kBits));
  static_assert(kToken ? Config::kSparse != linear::Sparse::csr : Config::kSparse != linear::Sparse::tail);

  struct NoRecords {};
  struct Range {
    float low, high, scale, zero;
  };
  struct Shared {
    TileCodes<Config> codes;
    float levels[1 << Config::kBits];
    Range range[kToken ? KVCC_PAGE_TOKENS : 1];  ///< of the new tokens
    std::conditional_t<kSparse, typename Records::Shared, NoRecords> records;
  };

  static KVCC_HD int phases(const Params& p, const Block& b) {
    if (!serves<Config>(p.cache.layer, head(b))) return 0;
    if (b.x == 0) return p.first[b.z] < p.cache.sink ? 1 : 0;
    const Place at = place(p, b);
    if (at.low >= at.high) return 0;
    if constexpr (kSparse) {
      // Read before the first barrier, written after it: all threads find the same.
      if (p.repeat_above > 0 && *needed(p, b, at) <= static_cast<uint32_t>(p.repeat_above)) return 0;
    }
    return kSparse ? 6 : 3;
  }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    if (b.x == 0) return write_sinks(p, b, thread);
    const Place at = place(p, b);
    if (k == 0) return begin(p, b, at, thread, shared);
    if (k == 1) return encode(p, b, at, thread, shared);
    if (k == 2) shared.codes.write(mma_tile<Config>(p.cache, base(p, b, at), head(b)), thread);
    if constexpr (kSparse) merge(k, p, b, at, thread, shared);
  }

 private:
  /// Tokens [low, high) of page `page` are new.
  struct Place {
    int32_t page, low, high;
  };
  static KVCC_HD Place place(const Params& p, const Block& b) {
    const int32_t first = p.first[b.z] - p.cache.sink;  // packed number of x's first token, negative inside the sink
    const int32_t begin = first > 0 ? first : 0, end = first + p.count;
    const int32_t page = begin / KVCC_PAGE_TOKENS + static_cast<int32_t>(b.x) - 1;
    const int32_t low = begin - page * KVCC_PAGE_TOKENS, high = end - page * KVCC_PAGE_TOKENS;
    return {page, low > 0 ? low : 0, high < KVCC_PAGE_TOKENS ? high : KVCC_PAGE_TOKENS};
  }
  static KVCC_HD int32_t head(const Block& b) { return static_cast<int32_t>(b.y); }
  static KVCC_HD uint8_t* base(const Params& p, const Block& b, const Place& at) { return page(p.cache, b.z, at.page); }
  /// Class ends of the page's earlier tokens. A page begun anew has none, whatever it holds.
  static KVCC_HD const uint16_t* earlier_ends(const Params& p, const Block& b, const Place& at) {
    return at.low > 0 ? mma_ends<Config>(p.cache, base(p, b, at), head(b)) : nullptr;
  }
  static KVCC_HD typename Records::List list(const Params& p, const Block& b, const Place& at) {
    return {mma_records<Config>(p.cache, base(p, b, at), head(b)), static_cast<uint32_t>(p.cache.sparse_capacity)};
  }
  static KVCC_HD uint32_t* needed(const Params& p, const Block& b, const Place& at) {
    return p.cache.needed + (static_cast<int64_t>(b.z) * p.cache.max_pages + at.page) * p.cache.heads + head(b);
  }
  /// Number of a page's token in x, over all sequences.
  static KVCC_HD int64_t x_token(const Params& p, const Block& b, const Place& at, int32_t token) {
    return static_cast<int64_t>(b.z) * p.count + at.page * KVCC_PAGE_TOKENS + token + p.cache.sink - p.first[b.z];
  }
  static KVCC_HD float value(const Params& p, const Block& b, const Place& at, int32_t token, int32_t channel) {
    return load<Config::kDtype>(p.x, (x_token(p, b, at, token) * p.cache.heads + head(b)) * D + channel);
  }

  static KVCC_HD void write_sinks(const Params& p, const Block& b, int thread) {
    const int32_t left = p.cache.sink - p.first[b.z], tokens = left < p.count ? left : p.count;
    for (int32_t i = thread; i < tokens * D; i += kThreads) {
      const int64_t token = static_cast<int64_t>(b.z) * p.count + i / D;
      const int64_t row = static_cast<int64_t>(b.z) * (p.cache.sink + p.cache.residual) + p.first[b.z] + i / D;
      const float x = load<Config::kDtype>(p.x, (token * p.cache.heads + head(b)) * D + i % D);
      p.cache.exact[(row * p.cache.heads + head(b)) * D + i % D] = record_half(x, p.status);
    }
  }

  static KVCC_HD void begin(const Params& p, const Block& b, const Place& at, int thread, Shared& shared) {
    const float* const levels = Config::levels(p.cache.layer, head(b));
    for (int i = thread; i < 1 << Config::kBits; i += kThreads) shared.levels[i] = levels[i];
    if (at.low > 0) {
      shared.codes.read(mma_tile<Config>(p.cache, base(p, b, at), head(b)), static_cast<uint32_t>(at.low), thread);
    } else if (at.high < KVCC_PAGE_TOKENS) {
      for (uint32_t i = thread; i < D * mma::kLanes; i += kThreads) shared.codes.pairs[i] = 0;
    }
    if constexpr (kToken) {
      if (thread < at.high - at.low) {
        const float* const ends = p.inliers + x_token(p, b, at, at.low + thread) * 2;
        const TokenRange range = token_range(ends[0], ends[1]);
        shared.range[thread] = {ends[0], ends[1], half_to_float(range.scale), half_to_float(range.zero)};
      }
    }
    if constexpr (kSparse) Records::clear(earlier_ends(p, b, at), thread, shared.records);
  }

  static KVCC_HD void encode(const Params& p, const Block& b, const Place& at, int thread, Shared& shared) {
    for (int32_t i = thread; i < (at.high - at.low) * D; i += kThreads) {
      const int32_t token = at.low + i / D, channel = i % D;
      float x = value(p, b, at, token, channel), scale, zero;
      if constexpr (kToken) {
        const Range& range = shared.range[token - at.low];
        x = clamp(x, range.low, range.high);
        scale = range.scale;
        zero = range.zero;
      } else {
        const int32_t column = head(b) * D + channel;
        if (!is_finite(x)) raise_status(p.status, KVCC_STATUS_RANGE);
        if constexpr (kSparse) {
          const float lower = p.cache.lower[column], upper = p.cache.upper[column];
          if (outside_thresholds(x, lower, upper)) Records::mark(token, channel, shared.records);
          x = clamp(x, lower, upper);
        }
        scale = p.cache.scale[column];
        zero = p.cache.zero[column];
      }
      shared.codes.set(token, channel, nearest_level(shared.levels, 1 << Config::kBits, normalise(x, scale, zero)));
    }
    if constexpr (kSparse && kToken) {
      const int32_t each = 2 * p.cache.tail;
      for (int32_t i = thread; i < (at.high - at.low) * each; i += kThreads) {
        const int32_t token = at.low + i / each;
        const uint32_t column = p.selected[x_token(p, b, at, token) * each + i % each] & 0xffffu;
        const uint32_t channel = column - static_cast<uint32_t>(head(b) * D);
        if (channel < D) Records::mark(token, channel, shared.records);
      }
    }
  }

  static KVCC_HD void merge(int k, const Params& p, const Block& b, const Place& at, int thread, Shared& shared) {
    typename Records::Shared& records = shared.records;
    const typename Records::Tokens tokens = {static_cast<uint32_t>(at.low), static_cast<uint32_t>(at.high)};
    if (k == 2) return Records::count(tokens, thread, records);
    if (k == 3) return Records::sum_tokens(thread, records);
    const typename Records::List to = list(p, b, at);
    if (k == 4) {
      return Records::sum_classes(mma_ends<Config>(p.cache, base(p, b, at), head(b)), needed(p, b, at), to.capacity,
                                  thread, records);
    }
    if (!Records::fits(to, records)) return;
    Records::write(to, tokens, thread, records, [&](uint32_t token, uint32_t channel) {
      const float x = value(p, b, at, static_cast<int32_t>(token), static_cast<int32_t>(channel));
      const uint32_t code = shared.codes.at(token, channel);
      return mma::Record{mma::record_place(token, channel, code, Config::kBits), record_half(x, p.status)};
    });
  }
};

}  // namespace kvcc::device
