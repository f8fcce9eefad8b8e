// dequantise of layout mma-1: positions [first, first + count) to f32 rows, for prefill over a packed prefix and for
// checks.
//   grid   (64 positions of the range, head, sequence); kvcc_grid_mma_dequantise
//   phases exact rows and the first page's codes; then for each of the one or two pages that the positions lie in: the
//          values; the outliers over them, and the next page's codes
#pragma once

#include "kernels/device/mma_page.cuh"

namespace kvcc::device {

template <class Config>
struct MmaDequantise {
  using Params = KvccDequantiseParams;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim;
  static constexpr uint32_t kClasses = kMmaClasses<Config>;
  static_assert(mma::supports(Config::kHeadDim, Config::kBits));

  struct Shared {
    TileCodes<Config> codes;
    float levels[1 << Config::kBits];
    uint32_t end[2][kClasses];  ///< of the page under work and the next one
  };

  static KVCC_HD int phases(const Params& p, const Block& b) {
    const Span span = positions(p, b);
    if (span.begin >= span.end || !serves<Config>(p.cache.layer, static_cast<int32_t>(b.y))) return 0;
    return 1 + 2 * pages(packed(p, b));
  }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    const Span tokens = packed(p, b);
    const int32_t first = tokens.begin / KVCC_PAGE_TOKENS, number = (k - 1) / 2;
    if (k == 0) {
      const float* const levels = Config::levels(p.cache.layer, head(b));
      for (int i = thread; i < 1 << Config::kBits; i += kThreads) shared.levels[i] = levels[i];
      write_exact(p, b, thread);
      if (pages(tokens) > 0) read_page(p, b, first, 0, thread, shared);
    } else if (k % 2 == 1) {
      write_values(p, b, first + number, thread, shared);
    } else {
      if constexpr (kMmaSparse<Config>) write_outliers(p, b, first + number, shared.end[number], thread);
      if (number + 1 < pages(tokens)) read_page(p, b, first + number + 1, number + 1, thread, shared);
    }
  }

 private:
  struct Span {
    int32_t begin, end;
  };
  /// Positions of the block.
  static KVCC_HD Span positions(const Params& p, const Block& b) {
    const int32_t begin = p.first[b.z] + static_cast<int32_t>(b.x) * KVCC_PAGE_TOKENS;
    const int32_t last = p.first[b.z] + p.count, length = p.cache.lengths[b.z];
    const int32_t end = begin + KVCC_PAGE_TOKENS < last ? begin + KVCC_PAGE_TOKENS : last;
    return {begin, end < length ? end : length};
  }
  /// Those that are packed, as packed tokens; empty or a run, as exact rows lie at either end of the sequence.
  static KVCC_HD Span packed(const Params& p, const Block& b) {
    const Span all = positions(p, b);
    const int32_t recent = p.cache.lengths[b.z] - p.cache.residual;
    const int32_t begin = all.begin > p.cache.sink ? all.begin : p.cache.sink;
    const int32_t end = all.end < recent ? all.end : recent;
    return {begin - p.cache.sink, (end > begin ? end : begin) - p.cache.sink};
  }
  static KVCC_HD int pages(const Span& tokens) {
    if (tokens.begin >= tokens.end) return 0;
    return (tokens.end - 1) / KVCC_PAGE_TOKENS - tokens.begin / KVCC_PAGE_TOKENS + 1;
  }
  static KVCC_HD int32_t head(const Block& b) { return static_cast<int32_t>(b.y); }
  static KVCC_HD float* out_row(const Params& p, const Block& b, int32_t position) {
    const int64_t token = static_cast<int64_t>(b.z) * p.count + position - p.first[b.z];
    return p.out + (token * p.cache.heads + head(b)) * D;
  }

  static KVCC_HD void write_exact(const Params& p, const Block& b, int thread) {
    if (p.cache.sink + p.cache.residual == 0) return;
    const Span all = positions(p, b);
    for (int32_t i = thread; i < (all.end - all.begin) * D; i += kThreads) {
      const int32_t position = all.begin + i / D, row = exact_row(p.cache, position, p.cache.lengths[b.z]);
      if (row < 0) continue;
      const int64_t from = static_cast<int64_t>(b.z) * (p.cache.sink + p.cache.residual) + row;
      out_row(p, b, position)[i % D] = half_to_float(p.cache.exact[(from * p.cache.heads + head(b)) * D + i % D]);
    }
  }

  static KVCC_HD void read_page(const Params& p, const Block& b, int32_t number, int which, int thread,
                                Shared& shared) {
    uint8_t* const base = page(p.cache, b.z, number);
    shared.codes.read(mma_tile<Config>(p.cache, base, head(b)), KVCC_PAGE_TOKENS, thread);
    if constexpr (kMmaSparse<Config>) {
      if (thread < static_cast<int>(kClasses)) {
        shared.end[which][thread] = mma_ends<Config>(p.cache, base, head(b))[thread];
      }
    }
  }

  /// The block's tokens of a page, as slots.
  static KVCC_HD Span slots(const Params& p, const Block& b, int32_t number) {
    const Span tokens = packed(p, b);
    const int32_t begin = tokens.begin - number * KVCC_PAGE_TOKENS, end = tokens.end - number * KVCC_PAGE_TOKENS;
    return {begin > 0 ? begin : 0, end < KVCC_PAGE_TOKENS ? end : KVCC_PAGE_TOKENS};
  }
  static KVCC_HD int32_t position_of(const Params& p, int32_t number, int32_t slot) {
    return p.cache.sink + number * KVCC_PAGE_TOKENS + slot;
  }

  static KVCC_HD void write_values(const Params& p, const Block& b, int32_t number, int thread, const Shared& shared) {
    const Span mine = slots(p, b, number);
    for (int32_t i = thread; i < (mine.end - mine.begin) * D; i += kThreads) {
      const int32_t slot = mine.begin + i / D, channel = i % D;
      float scale, zero;
      if constexpr (Config::kAxis == Axis::token) {
        const linear::RangeRecord range = mma_ranges<Config>(p.cache, page(p.cache, b.z, number))[slot];
        scale = half_to_float(range.scale);
        zero = half_to_float(range.zero);
      } else {
        scale = p.cache.scale[head(b) * D + channel];
        zero = p.cache.zero[head(b) * D + channel];
      }
      const float level = shared.levels[shared.codes.at(slot, channel)];
      out_row(p, b, position_of(p, number, slot))[channel] = decode_element(level, scale, zero);
    }
  }

  /// Each record has an element of its own, so their order does not matter.
  static KVCC_HD void write_outliers(const Params& p, const Block& b, int32_t number, const uint32_t* ends,
                                     int thread) {
    const mma::Record* const record = mma_records<Config>(p.cache, page(p.cache, b.z, number), head(b));
    const Span mine = slots(p, b, number);
    const uint32_t capacity = static_cast<uint32_t>(p.cache.sparse_capacity);
    const uint32_t end = ends[kClasses - 1u] < capacity ? ends[kClasses - 1u] : capacity;
    for (uint32_t i = thread; i < end; i += kThreads) {
      const mma::Element at = mma::record_element(Config::kTensor, record[i].place, class_of_record<Config>(ends, i));
      const int32_t slot = static_cast<int32_t>(at.token);
      if (slot < mine.begin || slot >= mine.end) continue;
      out_row(p, b, position_of(p, number, slot))[at.channel] = half_to_float(record[i].value);
    }
  }
};

}  // namespace kvcc::device
