// New records into a tile's list: they follow the earlier ones, as a list has the order of tokens and new tokens come
// after all earlier ones. Every place is known from counts: the list depends neither on the schedule nor on how tokens
// are divided into calls. When the list would be too long, it stays that of the earlier tokens.
//   phases mark new outliers by bits; count them by tokens; sum over the tokens of a class; sum over classes; write
#pragma once

#include "kernels/device/mma_page.cuh"

namespace kvcc::device {

/// One tile's list. Tokens [low, high) of the tile are new.
template <class Config>
struct MmaRecords {
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr uint32_t kClasses = kMmaClasses<Config>;
  static constexpr uint32_t kRowWords = (Config::kHeadDim + 31u) / 32u;

  struct Shared {
    uint32_t outlier[KVCC_PAGE_TOKENS * kRowWords];  ///< a bit an outlier, a row a token
    uint32_t count[KVCC_PAGE_TOKENS];                ///< new records of a token, then of those before it in its class
    uint32_t added[kClasses];                        ///< new records of a class
    uint32_t before[kClasses];                       ///< new records of the classes before
    uint32_t end[kClasses];                          ///< earlier records up to and including the class
  };
  struct Tokens {
    uint32_t low, high;
  };
  struct List {
    mma::Record* record;
    uint32_t capacity;
  };

  /// ends: of the page's earlier tokens; null when there are none, whatever the page holds.
  static KVCC_HD void clear(const uint16_t* ends, int thread, Shared& shared) {
    for (uint32_t i = thread; i < KVCC_PAGE_TOKENS * kRowWords; i += kThreads) shared.outlier[i] = 0;
    if (thread < static_cast<int>(kClasses)) shared.end[thread] = ends != nullptr ? ends[thread] : 0u;
  }

  static KVCC_HD void mark(uint32_t token, uint32_t channel, Shared& shared) {
    set_bits(&shared.outlier[token * kRowWords + channel / 32u], 1u << channel % 32u);
  }

  static KVCC_HD void count(const Tokens& tokens, int thread, Shared& shared) {
    const uint32_t count = for_token(tokens, thread, shared, [](uint32_t, uint32_t) {});
    if (thread < KVCC_PAGE_TOKENS) shared.count[thread] = count;
  }

  static KVCC_HD void sum_tokens(int thread, Shared& shared) {
    if (thread >= static_cast<int>(kClasses)) return;
    uint32_t sum = 0;
    for (int i = 8 * thread; i < 8 * thread + 8; ++i) {
      const uint32_t count = shared.count[i];
      shared.count[i] = sum;
      sum += count;
    }
    shared.added[thread] = sum;
  }

  /// Writes the number of records that the tile needs, and the class ends: those of the earlier tokens when the list is
  /// too short.
  static KVCC_HD void sum_classes(uint16_t* ends, uint32_t* needed, uint32_t capacity, int thread, Shared& shared) {
    if (thread >= static_cast<int>(kClasses)) return;
    uint32_t before = 0;
    for (int c = 0; c < static_cast<int>(kClasses); ++c) {
      if (c == thread) shared.before[thread] = before;
      before += shared.added[c];
    }
    const uint32_t all = shared.end[kClasses - 1u] + before;
    uint32_t end = shared.end[thread];
    if (all <= capacity) end += shared.before[thread] + shared.added[thread];
    ends[thread] = static_cast<uint16_t>(end);
    if (thread == 0) *needed = all;
  }

  /// Whether the list can hold the new records; write() is for those that can. After sum_classes().
  static KVCC_HD bool fits(const List& list, const Shared& shared) {
    constexpr uint32_t kLast = kClasses - 1u;
    return shared.end[kLast] + shared.before[kLast] + shared.added[kLast] <= list.capacity;
  }

  /// make(token, channel) gives a new outlier's record. Class ends that no pack wrote can't lead past the list.
  template <class Make>
  static KVCC_HD void write(const List& list, const Tokens& tokens, int thread, const Shared& shared,
                            const Make& make) {
    for_token(tokens, thread, shared, [&](uint32_t number, uint32_t channel) {
      const uint32_t place = shared.end[kClasses - 1u] + shared.before[thread / 8] + shared.count[thread] + number;
      const mma::Record record = make(static_cast<uint32_t>(thread), channel);
      if (place < list.capacity) list.record[place] = record;
    });
  }

 private:
  /// Calls visit(number, channel) for the outliers of token `thread`, if it is new, by channel. Returns their count.
  template <class Visit>
  static KVCC_HD uint32_t for_token(const Tokens& tokens, int thread, const Shared& shared, const Visit& visit) {
    const uint32_t token = static_cast<uint32_t>(thread);
    uint32_t count = 0;
    if (token < tokens.low || token >= tokens.high) return count;
    for (uint32_t j = 0; j < kRowWords; ++j) {
      for (uint32_t bits = shared.outlier[token * kRowWords + j]; bits != 0; bits &= bits - 1u) {
        visit(count++, 32u * j + first_bit(bits));
      }
    }
    return count;
  }
};

}  // namespace kvcc::device
