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
    const int64_t source_list = int64_t{p.source_capacity} * 4, target_list = int64_t{p.target_capacity} * 4;
    if (source_list == target_list) {  // one run
      copy(from, to, {1, p.fixed_bytes + p.lists * source_list, 0, 0}, thread);
    } else {
      copy(from, to, {1, p.fixed_bytes, 0, 0}, thread);
      const int64_t list = source_list < target_list ? source_list : target_list;
      copy(from + p.fixed_bytes, to + p.fixed_bytes, {p.lists, list, source_list, target_list}, thread);
    }
  }

 private:
  /// Runs of `bytes` each, and how far apart they begin. All multiples of 4.
  struct Runs {
    int32_t count;
    int64_t bytes, source_stride, target_stride;
  };

  static KVCC_DEVICE void copy(const uint8_t* from, uint8_t* to, const Runs& runs, int thread) {
    const uint64_t all = reinterpret_cast<uint64_t>(from) | reinterpret_cast<uint64_t>(to) |
                         static_cast<uint64_t>(runs.bytes | runs.source_stride | runs.target_stride);
    if (all % 16 == 0) {
      copy_words<4>(from, to, runs, thread);
    } else {
      copy_words<1>(from, to, runs, thread);
    }
  }

  /// Four loads of a thread are under way before its first store.
  template <int n>
  static KVCC_DEVICE void copy_words(const uint8_t* from, uint8_t* to, const Runs& runs, int thread) {
    const uint32_t each = static_cast<uint32_t>(runs.bytes / (4 * n));
    const uint32_t count = each * static_cast<uint32_t>(runs.count);
    KVCC_ROLLED
    for (uint32_t first = thread; first < count; first += 4u * kThreads) {
      Words<n> words[4];
      uint8_t* target[4];
      KVCC_UNROLL
      for (uint32_t j = 0; j < 4u; ++j) {
        const uint32_t i = first + j * kThreads < count ? first + j * kThreads : first;
        const uint32_t run = i / each, at = i % each * 4u * n;
        words[j] = load_streamed<n>(from + run * runs.source_stride + at);
        target[j] = to + run * runs.target_stride + at;
      }
      KVCC_UNROLL
      for (uint32_t j = 0; j < 4u; ++j) {
        if (first + j * kThreads < count) *reinterpret_cast<Words<n>*>(target[j]) = words[j];
      }
    }
  }
};

}  // namespace kvcc::device
