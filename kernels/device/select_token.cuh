// The choice of one token's outliers and the range of its inliers, of the families with one online range a token: all
// its heads together, by one block.
//   tails  The `tail` first and last elements in the order (value, column) are stored exactly. A radix select over the
//          values' order-preserving bits, eight bits a pass, finds the value at either rank; among equal values columns
//          decide. Histograms count in shared integer atomics, so the result does not depend on the schedule.
//   phases with a tail: clear; four times count and choose; ties; ranks; extremes; range. Without: extremes; range.
//          The row is read again in every phase (it stays in the L1 cache), so its length is bounded by 65,536 columns
//          only.
#pragma once

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
    uint32_t histogram[2][256];  ///< of alternating passes
    uint32_t prefix;             ///< bits of the sought key found so far
    uint32_t rank;               ///< elements still to be taken among those with this prefix, >= 1
    uint32_t before[kThreads];   ///< elements equal to the key in a chunk, then in the chunks taken before it
  };
  struct Shared {
    End end[kTail ? 2 : 1];
    float low[kThreads], high[kThreads];
    uint32_t outliers[kThreads];  ///< of a chunk, then its first record
    linear::RangeRecord range;
    float row_low, row_high;  ///< of the inliers
  };

  static constexpr int kClear = 0, kPasses = 4, kFirst = kTail ? 1 + 2 * kPasses + 2 : 0;  // kFirst: phase "extremes"
  static constexpr int kPhases = kFirst + 2;

  /// Phase k of kPhases. Afterwards shared has the range, the inliers' ends, and each thread's first record.
  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    if constexpr (kTail) {
      if (k == kClear) return clear(p, thread, shared);
      if (k <= 2 * kPasses) {
        const int pass = (k - 1) / 2;
        return k % 2 == 1 ? count(p, b, pass, thread, shared) : choose(pass, thread, shared);
      }
      if (k == 1 + 2 * kPasses) return ties(p, b, thread, shared);
      if (k == 2 + 2 * kPasses) return ranks(thread, shared);
    }
    if (k == kFirst) return extremes(p, b, thread, shared);
    range(p, thread, shared);
  }

  static KVCC_HD int32_t position(const Params& p, const Block& b) { return p.first[b.z] + static_cast<int32_t>(b.x); }
  static KVCC_HD int32_t columns(const Params& p) { return p.cache.heads * Config::kHeadDim; }
  static KVCC_HD float value(const Params& p, const Block& b, int32_t column) {
    return load<Config::kDtype>(p.x, (static_cast<int64_t>(b.z) * p.count + b.x) * columns(p) + column);
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
        if (low_key == lower.prefix) outlier |= lower_seen++ < lower.rank;
        if (high_key == upper.prefix) outlier |= --upper_left < upper.rank;
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
        shared.end[e].rank = static_cast<uint32_t>(p.cache.tail);
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

  static KVCC_HD void choose(int pass, int thread, Shared& shared) {
    if (thread < 2) {  // one thread an end
      End& end = shared.end[thread];
      uint32_t digit = 0;
      while (digit < 255u && end.rank > end.histogram[pass & 1][digit]) end.rank -= end.histogram[pass & 1][digit++];
      end.prefix = end.prefix << 8 | digit;
    } else if (pass > 0) {
      // The other buffer was last used in the pass before; the first pass left it clear.
      for (int i = thread - 2; i < 512; i += kThreads - 2) shared.end[i / 256].histogram[(pass + 1) & 1][i % 256] = 0;
    }
  }

  static KVCC_HD void ties(const Params& p, const Block& b, int thread, Shared& shared) {
    const Chunk mine = chunk(p, thread);
    for (int e = 0; e < 2; ++e) {
      uint32_t equal = 0;
      for (int32_t i = mine.begin; i < mine.end; ++i) equal += order_key(value(p, b, i), e) == shared.end[e].prefix;
      shared.end[e].before[thread] = equal;
    }
  }

  /// The lower end takes equal values from the first column on, the upper end from the last one back.
  static KVCC_HD void ranks(int thread, Shared& shared) {
    if (thread >= 2) return;
    uint32_t sum = 0;
    KVCC_ROLLED
    for (int i = 0; i < kThreads; ++i) {
      uint32_t& before = shared.end[thread].before[thread == 0 ? i : kThreads - 1 - i];
      const uint32_t equal = before;
      before = sum;
      sum += equal;
    }
  }

  static KVCC_HD void extremes(const Params& p, const Block& b, int thread, Shared& shared) {
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

  static KVCC_HD void range(const Params& p, int thread, Shared& shared) {
    if (thread == 32 && kTail) {
      uint32_t sum = 0;
      KVCC_ROLLED
      for (int i = 0; i < kThreads; ++i) {
        const uint32_t outliers = shared.outliers[i];
        shared.outliers[i] = sum;
        sum += outliers;
      }
    }
    if (thread != 0) return;
    float low = shared.low[0], high = shared.high[0];
    KVCC_ROLLED
    for (int i = 1; i < kThreads; ++i) {
      low = shared.low[i] < low ? shared.low[i] : low;
      high = shared.high[i] > high ? shared.high[i] : high;
    }
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
