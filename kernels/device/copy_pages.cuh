// copy_pages: pages of one pool to pages of another, whose record lists may have another capacity (repacking,
// defragmenting, handing a prefix on). No byte is decoded, so it serves every layout and configuration.
//   grid   (pairs, 1, 1); kvcc_grid_copy_pages: a block a page
//   phases one
#pragma once

#include "formats/layout/mma_launch.h"
#include "kernels/device/common.cuh"

namespace kvcc::device {

struct CopyPages {
  using Params = KvccCopyPagesParams;
  static constexpr int kThreads = KVCC_THREADS;
  struct Shared {};

  static KVCC_DEVICE int phases(const Params&, const Block&) { return 1; }

  static KVCC_DEVICE void phase(int, const Params& p, const Block& b, int thread, Shared&) {
    const uint8_t* const from = p.source + p.pairs[2 * b.x] * p.source_page_bytes;
    uint8_t* const to = p.target + p.pairs[2 * b.x + 1] * p.target_page_bytes;
    copy(from, to, p.fixed_bytes, thread);
    const int64_t source_list = int64_t{p.source_capacity} * 4, target_list = int64_t{p.target_capacity} * 4;
    const int64_t list = source_list < target_list ? source_list : target_list;
    // Lists of one capacity follow each other without a gap, so they are one run.
    const bool one_run = source_list == target_list && p.lists > 0;
    const int32_t runs = one_run ? 1 : p.lists;
    const int64_t run = one_run ? p.lists * list : list;
    for (int32_t i = 0; i < runs; ++i) {
      copy(from + p.fixed_bytes + i * source_list, to + p.fixed_bytes + i * target_list, run, thread);
    }
  }

 private:
  /// `bytes` a multiple of 4, both ends 4-byte aligned.
  static KVCC_DEVICE void copy(const uint8_t* from, uint8_t* to, int64_t bytes, int thread) {
    const uint64_t both = reinterpret_cast<uint64_t>(from) | reinterpret_cast<uint64_t>(to);
    int64_t done = 0;
    if (both % 16 == 0) {
      done = bytes / 16 * 16;
      copy_words<4>(from, to, done / 16, thread);
    }
    copy_words<1>(from + done, to + done, (bytes - done) / 4, thread);
  }

  /// Four loads of a thread are under way before its first store.
  template <int n>
  static KVCC_DEVICE void copy_words(const uint8_t* from, uint8_t* to, int64_t count, int thread) {
    Words<n>* const target = reinterpret_cast<Words<n>*>(to);
    int64_t i = thread;
    for (; i + 3 * kThreads < count; i += 4 * kThreads) {
      Words<n> words[4];
      KVCC_UNROLL
      for (int j = 0; j < 4; ++j) words[j] = load_streamed<n>(from + (i + j * kThreads) * int64_t{4 * n});
      KVCC_UNROLL
      for (int j = 0; j < 4; ++j) target[i + j * kThreads] = words[j];
    }
    for (; i < count; i += kThreads) target[i] = load_streamed<n>(from + i * int64_t{4 * n});
  }
};

}  // namespace kvcc::device
