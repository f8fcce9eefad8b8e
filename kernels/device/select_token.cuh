// The choice of one token's outliers and the range of its inliers, of the families with one online range a token: all
// its heads together, by one block.
//   tails  The `tail` first and last elements in the order (value, column) are stored exactly. A radix select over the
//          values' order-preserving bits, eight bits a pass, finds the value at either rank; among equal values columns
//          decide. Histograms count in shared integer atomics, so the result does not depend on the schedule.
//   phases with a tail: clear; four times count, sum and choose; ties; extremes; fold; range. Without: extremes; fold;
//          range. The row is read again in every phase (it stays in the L1 cache), so its length is bounded by 65,536
//          columns only. Each thread takes sums over threads for itself: when one token is appended the block's
//          latency is all that counts, and a chain of 128 dependent reads is the slowest way.
#pragma once

#include <type_traits>

#include "kernels/device/pack.cuh"

namespace kvcc::device {

/// Block b.x takes token b.x of sequence b.z of x.
template <class Config>
struct SelectToken {
  using Params = KvccPackParams;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr bool kTail = Config::kSparse == linear::Sparse::tail;
  static_assert(Config::kAxis == Axis::token && Config::kSparse != linear::Sparse::csr);

  /// Selection at one end. Keys at the upper end are inverted, so both ends look for the `tail` least.
  struct End {
    uint32_t histogram[2][256];    ///< of alternating passes
    alignas(16) uint32_t sum[64];  ///< of four bins each
    uint32_t prefix;               ///< bits of the sought key found so far
    uint32_t rank[2];  ///< elements still to be taken among those with this prefix, >= 1; of alternating passes
    alignas(16) uint32_t equal[kThreads];  ///< elements equal to the key in a chunk
    uint32_t before[kThreads];             ///< and in the chunks taken before it
  };
  struct NoEnds {};
  struct Shared {
    std::conditional_t<kTail, End[2], NoEnds> end;
    float low[kThreads], high[kThreads];      ///< inliers of a chunk
    alignas(16) uint32_t outliers[kThreads];  ///< of a chunk
    linear::RangeRecord range;
    float row_low, row_high;  ///< of the inliers
  };

  static constexpr int kPasses = 4, kSteps = 3, kTies = 1 + kPasses * kSteps;
  static constexpr int kExtremes = kTail ? kTies + 1 : 0, kPhases = kExtremes + 3;

  /// Phase k of kPhases. Afterwards shared has the range and the inliers' ends, and for_chunk finds the outliers.
  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    if constexpr (kTail) {
      if (k == 0) return clear(p, thread, shared);
      if (k < kTies) {
        const int pass = (k - 1) / kSteps, step = (k - 1) % kSteps;
        if (step == 0) return count(p, b, pass, thread, shared);
        return step == 1 ? sum(pass, thread, shared) : choose(pass, thread, shared);
      }
      if (k == kTies) return ties(p, b, thread, shared);
    }
    if (k == kExtremes) return extremes(p, b, thread, shared);
    if (k == kExtremes + 1) return fold(thread, shared);
    if (thread == 0) range(p, shared);
  }

  static KVCC_HD int32_t position(const Params& p, const Block& b) { return p.first[b.z] + static_cast<int32_t>(b.x); }
  static KVCC_HD int32_t columns(const Params& p) { return p.cache.heads * Config::kHeadDim; }
  static KVCC_HD float value(const Params& p, const Block& b, int32_t column) {
    return load<Config::kDtype>(p.x, (static_cast<int64_t>(b.z) * p.count + b.x) * columns(p) + column);
  }

  /// Outliers in the chunks before the thread's: the number of its first one.
  static KVCC_HD uint32_t first_outlier(int thread, const Shared& shared) {
    return sum_of(shared.outliers, 0, thread, kThreads);
  }

  /// Calls visit(column, x, outlier) for the thread's columns in ascending order.
  template <class Visit>
  static KVCC_HD void for_chunk(const Params& p, const Block& b, int thread, const Shared& shared, const Visit& visit) {
    const Chunk mine = chunk(p, thread);
    if constexpr (kTail) {
      const End &lower = shared.end[0], &upper = shared.end[1];
      uint32_t lower_seen = lower.before[thread];
      uint32_t upper_left = upper.before[thread];  // equal ones at and after the column, later chunks included
      for (int32_t i = mine.begin; i < mine.end; ++i) upper_left += order_key(value(p, b, i), 1) == upper.prefix;
      for (int32_t i = mine.begin; i < mine.end; ++i) {
        const float x = value(p, b, i);
        const uint32_t low_key = order_key(x, 0), high_key = ~low_key;
        bool outlier = low_key < lower.prefix || high_key < upper.prefix;
        if (low_key == lower.prefix) outlier |= lower_seen++ < lower.rank[0];
        if (high_key == upper.prefix) outlier |= --upper_left < upper.rank[0];
        visit(i, x, outlier);
      }
    } else {
      for (int32_t i = mine.begin; i < mine.end; ++i) visit(i, value(p, b, i), false);
    }
  }

 private:
  /// Contiguous columns of a thread.
  struct Chunk {
    int32_t begin, end;
  };
  static KVCC_HD Chunk chunk(const Params& p, int thread) {
    const int32_t each = (columns(p) + kThreads - 1) / kThreads;
    const int32_t begin = thread * each < columns(p) ? thread * each : columns(p);
    return {begin, begin + each < columns(p) ? begin + each : columns(p)};
  }

  /// Bits in the order of the values (zeros of either sign are one value), inverted for the upper end.
  static KVCC_HD uint32_t order_key(float x, int end) {
    const uint32_t bits = x == 0.0f ? 0u : float_bits(x);
    const uint32_t key = (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
    return end == 0 ? key : ~key;
  }

  static KVCC_HD void clear(const Params& p, int thread, Shared& shared) {
    for (int e = 0; e < 2; ++e) {
      for (int i = thread; i < 512; i += kThreads) shared.end[e].histogram[i / 256][i % 256] = 0;
      if (thread == 0) {
        shared.end[e].prefix = 0;
        shared.end[e].rank[0] = static_cast<uint32_t>(p.cache.tail);
      }
    }
  }

  static KVCC_HD void count(const Params& p, const Block& b, int pass, int thread, Shared& shared) {
    const uint32_t shift = 24u - 8u * static_cast<uint32_t>(pass);
    for (int32_t i = thread; i < columns(p); i += kThreads) {
      const float x = value(p, b, i);
      for (int e = 0; e < 2; ++e) {
        const uint32_t key = order_key(x, e);
        const bool candidate = pass == 0 || key >> (shift + 8u) == shared.end[e].prefix;
        if (candidate) atomic_increment(&shared.end[e].histogram[pass & 1][key >> shift & 255u]);
      }
    }
  }

  /// Sum of counts[begin .. end) out of `size`, a multiple of 4, 16-byte aligned. All threads of a warp read the same,
  /// and no read waits for another.
  static KVCC_HD uint32_t sum_of(const uint32_t* counts, int begin, int end, int size) {
    uint32_t sum = 0;
    for (int i = 0; i < size; i += 4) {
      const Words<4> four = *reinterpret_cast<const Words<4>*>(counts + i);
      KVCC_UNROLL
      for (int j = 0; j < 4; ++j) sum += i + j >= begin && i + j < end ? four.word[j] : 0u;
    }
    return sum;
  }

  static KVCC_HD void sum(int pass, int thread, Shared& shared) {
    End& end = shared.end[thread / 64];
    const uint32_t* bins = end.histogram[pass & 1] + thread % 64 * 4;
    end.sum[thread % 64] = bins[0] + bins[1] + bins[2] + bins[3];
    if (pass > 0) {  // the other buffer was last used in the pass before; the first pass left it clear
      for (int i = thread; i < 512; i += kThreads) shared.end[i / 256].histogram[(pass + 1) & 1][i % 256] = 0;
    }
  }

  /// Of the 64 threads of an end, one has the sought element in its four bins.
  static KVCC_HD void choose(int pass, int thread, Shared& shared) {
    End& end = shared.end[thread / 64];
    const int mine = thread % 64;
    uint32_t rank = end.rank[pass & 1], digit = static_cast<uint32_t>(mine) * 4u;
    const uint32_t before = sum_of(end.sum, 0, mine, 64);
    if (rank <= before || rank > before + end.sum[mine]) return;
    const uint32_t* bins = end.histogram[pass & 1];
    for (rank -= before; rank > bins[digit]; ++digit) rank -= bins[digit];
    end.rank[(pass + 1) & 1] = rank;
    end.prefix = end.prefix << 8 | digit;
  }

  static KVCC_HD void ties(const Params& p, const Block& b, int thread, Shared& shared) {
    const Chunk mine = chunk(p, thread);
    for (int e = 0; e < 2; ++e) {
      uint32_t equal = 0;
      for (int32_t i = mine.begin; i < mine.end; ++i) equal += order_key(value(p, b, i), e) == shared.end[e].prefix;
      shared.end[e].equal[thread] = equal;
    }
  }

  static KVCC_HD void extremes(const Params& p, const Block& b, int thread, Shared& shared) {
    if constexpr (kTail) {
      // The lower end takes equal values from the first column on, the upper end from the last one back.
      End &lower = shared.end[0], &upper = shared.end[1];
      lower.before[thread] = sum_of(lower.equal, 0, thread, kThreads);
      upper.before[thread] = sum_of(upper.equal, thread + 1, kThreads, kThreads);
    }
    float low = bits_float(0x7f800000u), high = bits_float(0xff800000u);
    uint32_t outliers = 0;
    for_chunk(p, b, thread, shared, [&](int32_t, float x, bool outlier) {
      if (!is_finite(x)) raise_status(p.status, KVCC_STATUS_RANGE);
      outliers += outlier;
      if (outlier) return;
      low = x < low ? x : low;
      high = x > high ? x : high;
    });
    shared.low[thread] = low;
    shared.high[thread] = high;
    shared.outliers[thread] = outliers;
  }

  /// Ends of 8 chunks to the place of the first. Of equal ends (zeros of either sign) the first one stays.
  static KVCC_HD void fold(int thread, Shared& shared) {
    if (thread < kThreads / 8) fold_run(shared, thread * 8, 1);
  }
  static KVCC_HD void fold_run(Shared& shared, int first, int step) {
    float low = shared.low[first], high = shared.high[first];
    KVCC_UNROLL
    for (int i = 1; i < 8; ++i) {
      const float other_low = shared.low[first + i * step], other_high = shared.high[first + i * step];
      low = other_low < low ? other_low : low;
      high = other_high > high ? other_high : high;
    }
    shared.low[first] = low;
    shared.high[first] = high;
  }

  static KVCC_HD void range(const Params& p, Shared& shared) {
    fold_run(shared, 0, 8);
    fold_run(shared, 64, 8);
    const float low = shared.low[64] < shared.low[0] ? shared.low[64] : shared.low[0];
    const float high = shared.high[64] > shared.high[0] ? shared.high[64] : shared.high[0];
    const TokenRange found = token_range(low, high);
    if ((found.scale & 0x7c00u) == 0x7c00u || (found.zero & 0x7c00u) == 0x7c00u) {
      raise_status(p.status, KVCC_STATUS_RANGE);
    }
    shared.range = {found.scale, found.zero};
    shared.row_low = low;
    shared.row_high = high;
  }
};

}  // namespace kvcc::device
