// pack into layout mma-1, of both axes. A block makes the whole tile of one page and head: what the page's earlier
// tokens have there, and those that x brings.
//   MmaSelect  token axis only, launched before MmaPack: a block a token, the outliers and the range of all its heads
//              grid (count, 1, sequence); kvcc_grid_mma_pack_select
//   MmaPack    grid (2 + pages, head, sequence); kvcc_grid_mma_pack. Block 0 writes sink rows, block 1 + i page i of
//              the range. Without sparse part three phases: the earlier tokens' codes; the new ones'; words. With one:
//              also a bit an outlier; their counts by run, class and before a class; the earlier records to their new
//              places, back to front; the new records
//   order      A class lists its records by token, so new ones follow all earlier ones of their class, and every place
//              is known from counts: the result depends neither on the schedule nor on how tokens are divided in calls.
#pragma once

#include <type_traits>

#include "kernels/device/mma_page.cuh"
#include "kernels/device/select_token.cuh"

namespace kvcc::device {

template <class Config>
struct MmaSelect {
  using Params = KvccPackParams;
  using Select = SelectToken<Config>;
  using Shared = typename Select::Shared;
  static constexpr int kThreads = KVCC_THREADS;

  static KVCC_HD int phases(const Params& p, const Block& b) {
    return Select::position(p, b) < p.cache.sink ? 0 : Select::kPhases + 1;
  }

  /// Every unit of a mixed artifact finds the same, so that units need no order among each other.
  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    if (k < Select::kPhases) return Select::phase(k, p, b, thread, shared);
    const int64_t token = static_cast<int64_t>(b.z) * p.count + b.x;
    if constexpr (Select::kTail) {
      uint32_t* const selected = p.selected + token * 2 * p.cache.tail;
      uint32_t next = Select::first_outlier(thread, shared);
      Select::for_chunk(p, b, thread, shared, [&](int32_t column, float x, bool outlier) {
        if (outlier) {
          selected[next++] = static_cast<uint32_t>(column) | static_cast<uint32_t>(record_half(x, p.status)) << 16;
        }
      });
    }
    if (thread != 0) return;
    p.inliers[token * 2] = shared.row_low;
    p.inliers[token * 2 + 1] = shared.row_high;
    if (!writes_shared_part<Config>(p.cache)) return;
    const int32_t packed = Select::position(p, b) - p.cache.sink;
    uint8_t* const base = page(p.cache, b.z, packed / KVCC_PAGE_TOKENS);
    mma_ranges<Config>(p.cache, base)[packed % KVCC_PAGE_TOKENS] = shared.range;
  }
};

template <class Config>
struct MmaPack {
  using Params = KvccPackParams;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim;
  static constexpr bool kSparse = kMmaSparse<Config>, kKey = Config::kTensor == mma::Tensor::key;
  static constexpr bool kToken = Config::kAxis == Axis::token;
  static_assert(mma::supports(Config::kHeadDim, Config::kBits));
  static_assert(kToken ? Config::kSparse != linear::Sparse::csr : Config::kSparse != linear::Sparse::tail);

  static constexpr uint32_t kClasses = kMmaClasses<Config>;
  /// Threads share a class by runs of tokens: a token of a key tile, 16 tokens of a value tile.
  static constexpr uint32_t kRuns = kKey ? 8u : 4u;
  static constexpr uint32_t kRowWords = (Config::kHeadDim + 31u) / 32u;
  static constexpr uint32_t kChunk = 4u * KVCC_THREADS;  ///< records moved at a time

  struct SparseShared {
    uint32_t outlier[KVCC_PAGE_TOKENS * kRowWords];  ///< a bit an outlier, a row a token
    uint32_t count[kClasses * kRuns];                ///< new records of a run, then of the runs before it in its class
    uint32_t added[kClasses];                        ///< new records of a class
    uint32_t shift[kClasses];                        ///< new records of the classes before
    uint32_t end[kClasses];                          ///< earlier records up to and including the class
    mma::Record moved[kChunk];
  };
  struct NoSparse {};
  struct Range {
    float low, high, scale, zero;
  };
  struct Shared {
    TileCodes<Config> codes;
    float levels[1 << Config::kBits];
    Range range[kToken ? KVCC_PAGE_TOKENS : 1];  ///< of the new tokens
    std::conditional_t<kSparse, SparseShared, NoSparse> sparse;
  };

  static KVCC_HD int phases(const Params& p, const Block& b) {
    if (!serves<Config>(p.cache.layer, static_cast<int32_t>(b.y))) return 0;
    if (b.x == 0) return p.first[b.z] < p.cache.sink ? 1 : 0;
    const Place at = place(p, b);
    if (at.low >= at.high) return 0;
    if constexpr (kSparse) {
      return kFixed + 2 * static_cast<int>(chunks(p, earlier_end(p, b, at, kClasses - 1u))) + 1;
    } else {
      return 3;
    }
  }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    if (b.x == 0) return write_sinks(p, b, thread);
    const Place at = place(p, b);
    switch (k) {
      case 0:
        return begin(p, b, at, thread, shared);
      case 1:
        return encode(p, b, at, thread, shared);
      case 2:
        shared.codes.write(mma_tile<Config>(p.cache, base(p, b, at), head(b)), thread);
        if constexpr (kSparse) count_runs(at, thread, shared.sparse);
        return;
      default:
        if constexpr (kSparse) {
          if (k == 3) return sum_runs(thread, shared.sparse);
          if (k == 4) return sum_classes(p, b, at, thread, shared.sparse);
          const int step = k - kFixed, count = static_cast<int>(chunks(p, shared.sparse.end[kClasses - 1u]));
          if (step == 2 * count) return write_records(p, b, at, thread, shared);
          const uint32_t first = static_cast<uint32_t>(count - 1 - step / 2) * kChunk;
          move_records(p, b, at, first, step % 2 == 0, thread, shared.sparse);
        }
    }
  }

 private:
  static constexpr int kFixed = 5;  ///< phases before records move

  /// Tokens [low, high) of page `page` are new; packed token page * 64 is low = 0.
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
  /// Number of a page's token in x, over all sequences.
  static KVCC_HD int64_t x_token(const Params& p, const Block& b, const Place& at, int32_t token) {
    return static_cast<int64_t>(b.z) * p.count + at.page * KVCC_PAGE_TOKENS + token + p.cache.sink - p.first[b.z];
  }
  static KVCC_HD float value(const Params& p, const Block& b, const Place& at, int32_t token, int32_t channel) {
    return load<Config::kDtype>(p.x, (x_token(p, b, at, token) * p.cache.heads + head(b)) * D + channel);
  }
  /// Records of the page's earlier tokens up to and including a class. A page begun anew has none, whatever it holds.
  static KVCC_HD uint32_t earlier_end(const Params& p, const Block& b, const Place& at, uint32_t record_class) {
    return at.low > 0 ? mma_ends<Config>(p.cache, base(p, b, at), head(b))[record_class] : 0u;
  }
  /// Chunks of the records that lie in the list: an end may be above the capacity.
  static KVCC_HD uint32_t chunks(const Params& p, uint32_t end) {
    const uint32_t capacity = static_cast<uint32_t>(p.cache.sparse_capacity);
    return ((end < capacity ? end : capacity) + kChunk - 1u) / kChunk;
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
    if constexpr (kSparse) {
      for (uint32_t i = thread; i < KVCC_PAGE_TOKENS * kRowWords; i += kThreads) shared.sparse.outlier[i] = 0;
      if (thread < static_cast<int>(kClasses)) shared.sparse.end[thread] = earlier_end(p, b, at, thread);
    }
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
          if (outside_thresholds(x, lower, upper)) mark(token, channel, shared.sparse);
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
        if (channel < D) mark(token, static_cast<int32_t>(channel), shared.sparse);
      }
    }
  }
  static KVCC_HD void mark(int32_t token, int32_t channel, SparseShared& shared) {
    set_bits(&shared.outlier[token * kRowWords + channel / 32], 1u << channel % 32);
  }

  /// Calls visit(number, token, channel) for the new outliers of the thread's run in their order. Returns their count.
  template <class Visit>
  static KVCC_HD uint32_t for_run(const Place& at, int thread, const SparseShared& shared, const Visit& visit) {
    uint32_t count = 0;
    if (thread >= static_cast<int>(kClasses * kRuns)) return count;
    const uint32_t low = static_cast<uint32_t>(at.low), high = static_cast<uint32_t>(at.high);
    if constexpr (kKey) {
      const uint32_t token = thread % 8u * 8u + thread / 8u;
      if (token < low || token >= high) return count;
      for (uint32_t j = 0; j < kRowWords; ++j) {
        for (uint32_t bits = shared.outlier[token * kRowWords + j]; bits != 0; bits &= bits - 1u) {
          visit(count++, token, 32u * j + first_bit(bits));
        }
      }
    } else {
      const uint32_t begin = run_of(thread) * 16u, record_class = class_of(thread);
      for (uint32_t token = low > begin ? low : begin; token < high && token < begin + 16u; ++token) {
        for (uint32_t j = 0; j < kRowWords; ++j) {
          if (shared.outlier[token * kRowWords + j] >> record_class & 1u) visit(count++, token, 32u * j + record_class);
        }
      }
    }
    return count;
  }
  /// Values: a warp shares a run, so that its threads read the same word.
  static KVCC_HD uint32_t class_of(uint32_t thread) { return kKey ? thread / kRuns : thread % kClasses; }
  static KVCC_HD uint32_t run_of(uint32_t thread) { return kKey ? thread % kRuns : thread / kClasses; }

  static KVCC_HD void count_runs(const Place& at, int thread, SparseShared& shared) {
    const uint32_t count = for_run(at, thread, shared, [](uint32_t, uint32_t, uint32_t) {});
    if (thread < static_cast<int>(kClasses * kRuns)) shared.count[class_of(thread) * kRuns + run_of(thread)] = count;
  }
  static KVCC_HD void sum_runs(int thread, SparseShared& shared) {
    if (thread >= static_cast<int>(kClasses)) return;
    uint32_t sum = 0;
    for (uint32_t r = 0; r < kRuns; ++r) {
      const uint32_t count = shared.count[thread * kRuns + r];
      shared.count[thread * kRuns + r] = sum;
      sum += count;
    }
    shared.added[thread] = sum;
  }
  static KVCC_HD void sum_classes(const Params& p, const Block& b, const Place& at, int thread, SparseShared& shared) {
    if (thread >= static_cast<int>(kClasses)) return;
    uint32_t before = 0;
    for (int c = 0; c < thread; ++c) before += shared.added[c];
    shared.shift[thread] = before;
    const uint32_t end = shared.end[thread] + before + shared.added[thread];
    mma_ends<Config>(p.cache, base(p, b, at), head(b))[thread] = static_cast<uint16_t>(end);
    if (thread == static_cast<int>(kClasses) - 1) {
      const int64_t slot = static_cast<int64_t>(b.z) * p.cache.max_pages + at.page;
      p.cache.needed[slot * p.cache.heads + head(b)] = end;
    }
  }

  /// Takes records [first, first + kChunk) to shared memory, and in the next phase from there to their new places, none
  /// of which lies before `first`: what earlier chunks hold has not been touched.
  static KVCC_HD void move_records(const Params& p, const Block& b, const Place& at, uint32_t first, bool take,
                                   int thread, SparseShared& shared) {
    mma::Record* const record = mma_records<Config>(p.cache, base(p, b, at), head(b));
    const uint32_t capacity = static_cast<uint32_t>(p.cache.sparse_capacity), end = shared.end[kClasses - 1u];
    for (uint32_t j = thread; j < kChunk; j += kThreads) {
      const uint32_t i = first + j;
      if (i >= end || i >= capacity) return;
      const uint32_t shift = shared.shift[class_of_record<Config>(shared.end, i)];
      if (shift == 0) continue;
      if (take) {
        shared.moved[j] = record[i];
      } else if (i + shift < capacity) {
        record[i + shift] = shared.moved[j];
      }
    }
  }

  static KVCC_HD void write_records(const Params& p, const Block& b, const Place& at, int thread, Shared& shared) {
    mma::Record* const record = mma_records<Config>(p.cache, base(p, b, at), head(b));
    const SparseShared& sparse = shared.sparse;
    for_run(at, thread, sparse, [&](uint32_t number, uint32_t token, uint32_t channel) {
      const uint32_t c = class_of(thread);
      const uint32_t place = sparse.end[c] + sparse.shift[c] + sparse.count[c * kRuns + run_of(thread)] + number;
      const float x = value(p, b, at, static_cast<int32_t>(token), static_cast<int32_t>(channel));
      const uint16_t half = record_half(x, p.status);
      if (place >= static_cast<uint32_t>(p.cache.sparse_capacity)) return;
      const uint32_t code = shared.codes.at(token, channel);
      record[place] = {mma::record_place(Config::kTensor, token, channel, code, Config::kBits), half};
    });
  }
};

}  // namespace kvcc::device
