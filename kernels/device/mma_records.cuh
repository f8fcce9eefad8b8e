// New records into a tile's list: earlier ones move up, new ones follow those of their class. A class lists its records
// by token and new tokens come after all earlier ones, so every place is known from counts: the list depends neither on
// the schedule nor on how tokens are divided into calls. When the list would be too long, it stays that of the earlier
// tokens.
//   phases mark new outliers by bits; count them by runs; sum over runs; sum over classes; move earlier records, two
//          phases a chunk, back to front; write new ones
#pragma once

#include "kernels/device/mma_page.cuh"

namespace kvcc::device {

/// One tile's list. Tokens [low, high) of the tile are new.
template <class Config>
struct MmaRecords {
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr bool kKey = Config::kTensor == mma::Tensor::key;
  static constexpr uint32_t kClasses = kMmaClasses<Config>;
  /// Threads share a class by runs of tokens: a token of a key tile, 16 tokens of a value tile.
  static constexpr uint32_t kRuns = kKey ? 8u : 4u;
  static constexpr uint32_t kRowWords = (Config::kHeadDim + 31u) / 32u;
  static constexpr uint32_t kChunk = 4u * KVCC_THREADS;  ///< records moved at a time

  struct Shared {
    uint32_t outlier[KVCC_PAGE_TOKENS * kRowWords];  ///< a bit an outlier, a row a token
    uint32_t count[kClasses * kRuns];                ///< new records of a run, then of the runs before it in its class
    uint32_t added[kClasses];                        ///< new records of a class
    uint32_t shift[kClasses];                        ///< new records of the classes before
    uint32_t end[kClasses];                          ///< earlier records up to and including the class
    mma::Record moved[kChunk];
  };
  struct Tokens {
    uint32_t low, high;
  };
  struct List {
    mma::Record* record;
    uint32_t capacity;
  };

  /// Chunks of `earlier` records that lie in a list: class ends of a page that no pack wrote may be above the capacity.
  static KVCC_HD int chunks(uint32_t earlier, uint32_t capacity) {
    return static_cast<int>(((earlier < capacity ? earlier : capacity) + kChunk - 1u) / kChunk);
  }

  /// ends: of the page's earlier tokens; null when there are none, whatever the page holds.
  static KVCC_HD void clear(const uint16_t* ends, int thread, Shared& shared) {
    for (uint32_t i = thread; i < KVCC_PAGE_TOKENS * kRowWords; i += kThreads) shared.outlier[i] = 0;
    if (thread < static_cast<int>(kClasses)) shared.end[thread] = ends != nullptr ? ends[thread] : 0u;
  }

  static KVCC_HD void mark(uint32_t token, uint32_t channel, Shared& shared) {
    set_bits(&shared.outlier[token * kRowWords + channel / 32u], 1u << channel % 32u);
  }

  static KVCC_HD void count(const Tokens& tokens, int thread, Shared& shared) {
    const uint32_t count = for_run(tokens, thread, shared, [](uint32_t, uint32_t, uint32_t) {});
    if (thread < static_cast<int>(kClasses * kRuns)) shared.count[class_of(thread) * kRuns + run_of(thread)] = count;
  }

  static KVCC_HD void sum_runs(int thread, Shared& shared) {
    if (thread >= static_cast<int>(kClasses)) return;
    uint32_t sum = 0;
    for (uint32_t r = 0; r < kRuns; ++r) {
      const uint32_t count = shared.count[thread * kRuns + r];
      shared.count[thread * kRuns + r] = sum;
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
      if (c == thread) shared.shift[thread] = before;
      before += shared.added[c];
    }
    const uint32_t all = shared.end[kClasses - 1u] + before;
    uint32_t end = shared.end[thread];
    if (all <= capacity) end += shared.shift[thread] + shared.added[thread];
    ends[thread] = static_cast<uint16_t>(end);
    if (thread == 0) *needed = all;
  }

  /// Whether the list can hold the new records; move() and write() are for those that can. After sum_classes().
  static KVCC_HD bool fits(const List& list, const Shared& shared) {
    constexpr uint32_t kLast = kClasses - 1u;
    return shared.end[kLast] + shared.shift[kLast] + shared.added[kLast] <= list.capacity;
  }

  /// Takes the records of a chunk to shared memory, and in the next phase from there to their new places, none of which
  /// lies before the chunk: what earlier chunks hold has not been touched.
  static KVCC_HD void move(const List& list, uint32_t chunk, bool take, int thread, Shared& shared) {
    for (uint32_t j = thread; j < kChunk; j += kThreads) {
      const uint32_t i = chunk * kChunk + j;
      if (i >= shared.end[kClasses - 1u] || i >= list.capacity) return;
      const uint32_t shift = shared.shift[class_of_record<Config>(shared.end, i)];
      if (shift == 0) continue;
      if (take) {
        shared.moved[j] = list.record[i];
      } else if (i + shift < list.capacity) {
        list.record[i + shift] = shared.moved[j];
      }
    }
  }

  /// make(token, channel) gives a new outlier's record. Class ends that no pack wrote can't lead past the list.
  template <class Make>
  static KVCC_HD void write(const List& list, const Tokens& tokens, int thread, const Shared& shared,
                            const Make& make) {
    for_run(tokens, thread, shared, [&](uint32_t number, uint32_t token, uint32_t channel) {
      const uint32_t c = class_of(thread);
      const uint32_t place = shared.end[c] + shared.shift[c] + shared.count[c * kRuns + run_of(thread)] + number;
      const mma::Record record = make(token, channel);
      if (place < list.capacity) list.record[place] = record;
    });
  }

 private:
  /// Values: a warp shares a run, so that its threads read the same word.
  static KVCC_HD uint32_t class_of(uint32_t thread) { return kKey ? thread / kRuns : thread % kClasses; }
  static KVCC_HD uint32_t run_of(uint32_t thread) { return kKey ? thread % kRuns : thread / kClasses; }

  /// Calls visit(number, token, channel) for the new outliers of the thread's run in their order. Returns their count.
  template <class Visit>
  static KVCC_HD uint32_t for_run(const Tokens& tokens, int thread, const Shared& shared, const Visit& visit) {
    uint32_t count = 0;
    if (thread >= static_cast<int>(kClasses * kRuns)) return count;
    if constexpr (kKey) {
      const uint32_t token = run_of(thread) * 8u + class_of(thread);
      if (token < tokens.low || token >= tokens.high) return count;
      for (uint32_t j = 0; j < kRowWords; ++j) {
        for (uint32_t bits = shared.outlier[token * kRowWords + j]; bits != 0; bits &= bits - 1u) {
          visit(count++, token, 32u * j + first_bit(bits));
        }
      }
    } else {
      const uint32_t begin = run_of(thread) * 16u, record_class = class_of(thread);
      const uint32_t last = begin + 16u < tokens.high ? begin + 16u : tokens.high;
      for (uint32_t token = tokens.low > begin ? tokens.low : begin; token < last; ++token) {
        for (uint32_t j = 0; j < kRowWords; ++j) {
          if (shared.outlier[token * kRowWords + j] >> record_class & 1u) visit(count++, token, 32u * j + record_class);
        }
      }
    }
    return count;
  }
};

}  // namespace kvcc::device
