// dequantise of layout mma-1: positions [first, first + count) to f32 rows, for prefill over a packed prefix and for
// checks. `out` is 8-byte aligned.
//   grid   (64 positions of the range, head, sequence); kvcc_grid_mma_dequantise
//   phases exact rows, and the tiles' words to shared memory (the positions lie in one or two pages); values, each lane
//          its own pairs in the tile's order, so that a warp writes whole sectors; the outliers over them
#pragma once

#include "kernels/device/mma_page.cuh"

namespace kvcc::device {

template <class Config>
struct MmaDequantise {
  using Params = KvccDequantiseParams;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, kBits = Config::kBits, kPages = 2;
  static constexpr uint32_t kWords = mma::tile_words(Config::kHeadDim, Config::kBits);
  static constexpr uint32_t kLaneWords = mma::lane_words(Config::kHeadDim, Config::kBits);
  static constexpr uint32_t kClasses = kMmaClasses<Config>;
  static constexpr bool kToken = Config::kAxis == Axis::token, kKey = Config::kTensor == mma::Tensor::key;
  static_assert(mma::supports(Config::kHeadDim, Config::kBits));

  struct Affine {
    float scale, zero;
  };
  struct Shared {
    alignas(16) uint32_t words[kPages][kWords];
    float levels[1 << kBits];
    Affine affine[kToken ? kPages * KVCC_PAGE_TOKENS : D];  ///< of the tokens of both pages, or of the channels
    uint32_t end[kPages][kClasses];
  };

  static KVCC_HD int phases(const Params& p, const Block& b) {
    const Span all = positions(p, b);
    if (all.begin >= all.end || !serves<Config>(p.cache.layer, head(b))) return 0;
    const Span tokens = packed(p, b);
    return tokens.begin >= tokens.end ? 1 : kMmaSparse<Config> ? 3 : 2;
  }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    const Span tokens = packed(p, b);
    if (k == 0) {
      write_exact(p, b, thread);
      if (tokens.begin < tokens.end) read(p, b, tokens, thread, shared);
    } else if (k == 1) {
      write_values(p, b, tokens, thread, shared);
    } else if constexpr (kMmaSparse<Config>) {
      for (int32_t i = 0; i < pages(tokens); ++i) write_outliers(p, b, tokens, i, thread, shared.end[i]);
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
  /// Those that are packed, as packed tokens: a run, as exact rows lie at either end of the sequence.
  static KVCC_HD Span packed(const Params& p, const Block& b) {
    const Span all = positions(p, b);
    const int32_t recent = p.cache.lengths[b.z] - p.cache.residual;
    const int32_t begin = all.begin > p.cache.sink ? all.begin : p.cache.sink;
    return {begin - p.cache.sink, (all.end < recent ? all.end : recent) - p.cache.sink};
  }
  static KVCC_HD int32_t first_page(const Span& tokens) { return tokens.begin / KVCC_PAGE_TOKENS; }
  static KVCC_HD int32_t pages(const Span& tokens) {
    return (tokens.end - 1) / KVCC_PAGE_TOKENS - first_page(tokens) + 1;
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

  static KVCC_HD void read(const Params& p, const Block& b, const Span& tokens, int thread, Shared& shared) {
    const float* const levels = Config::levels(p.cache.layer, head(b));
    for (int i = thread; i < 1 << kBits; i += kThreads) shared.levels[i] = levels[i];
    if constexpr (!kToken) {
      for (int i = thread; i < D; i += kThreads) {
        shared.affine[i] = {p.cache.scale[head(b) * D + i], p.cache.zero[head(b) * D + i]};
      }
    }
    for (int32_t i = 0; i < pages(tokens); ++i) {
      uint8_t* const base = page(p.cache, b.z, first_page(tokens) + i);
      const auto* const from = reinterpret_cast<const Words<4>*>(mma_tile<Config>(p.cache, base, head(b)));
      auto* const to = reinterpret_cast<Words<4>*>(shared.words[i]);
      for (uint32_t j = thread; j < kWords / 4u; j += kThreads) to[j] = from[j];
      if constexpr (kToken) {
        if (thread < KVCC_PAGE_TOKENS) {
          const linear::RangeRecord range = mma_ranges<Config>(p.cache, base)[thread];
          shared.affine[i * KVCC_PAGE_TOKENS + thread] = {half_to_float(range.scale), half_to_float(range.zero)};
        }
      }
      if constexpr (kMmaSparse<Config>) {
        if (thread < static_cast<int>(kClasses)) {
          shared.end[i][thread] = mma_ends<Config>(p.cache, base, head(b))[thread];
        }
      }
    }
  }

  /// A warp takes 16 pairs of each of its lanes at a time: kBits words.
  static KVCC_HD void write_values(const Params& p, const Block& b, const Span& tokens, int thread, Shared& shared) {
    constexpr int kGroups = D / 16;
    const uint32_t lane = static_cast<uint32_t>(thread) % mma::kLanes;
    KVCC_ROLLED
    for (int item = thread / 32; item < pages(tokens) * kGroups; item += kThreads / 32) {
      const int32_t number = item / kGroups, from = number * KVCC_PAGE_TOKENS;
      const uint32_t group = static_cast<uint32_t>(item) % kGroups;  // so that compilers see its bound
      uint32_t words[kBits];
      KVCC_UNROLL
      for (int w = 0; w < kBits; ++w)
        words[w] = shared.words[number][mma::word_place(group * kBits + w, lane, kLaneWords)];
      const int32_t begin = tokens.begin - first_page(tokens) * KVCC_PAGE_TOKENS - from;  // of the page's slots
      const int32_t end = tokens.end - first_page(tokens) * KVCC_PAGE_TOKENS - from;
      float* const row = out_row(p, b, p.cache.sink + first_page(tokens) * KVCC_PAGE_TOKENS + from);
      const int64_t stride = static_cast<int64_t>(p.cache.heads) * D;
      KVCC_UNROLL
      for (uint32_t e = 0; e < 16u; ++e) {
        const uint32_t both = mma::get_pair(words, e, kBits);
        const mma::Element at = mma::element(Config::kTensor, D, lane, group * 16u + e, 0);
        const int32_t slot = static_cast<int32_t>(at.token);
        const float low = shared.levels[both & ((1u << kBits) - 1u)], high = shared.levels[both >> kBits];
        const Affine* const affine = shared.affine + (kToken ? from + slot : static_cast<int32_t>(at.channel));
        if constexpr (kKey) {
          if (slot < begin || slot >= end) continue;
          const Affine& other = affine[kToken ? 0 : 1];
          const Words<2> pair = {{float_bits(decode_element(low, affine->scale, affine->zero)),
                                  float_bits(decode_element(high, other.scale, other.zero))}};
          *reinterpret_cast<Words<2>*>(row + slot * stride + at.channel) = pair;
        } else {
          const Affine& other = affine[kToken ? 1 : 0];
          float* const first = row + slot * stride + at.channel;
          if (slot >= begin && slot < end) *first = decode_element(low, affine->scale, affine->zero);
          if (slot + 1 >= begin && slot + 1 < end) first[stride] = decode_element(high, other.scale, other.zero);
        }
      }
    }
  }

  /// Each record has an element of its own, so their order does not matter.
  static KVCC_HD void write_outliers(const Params& p, const Block& b, const Span& tokens, int32_t number, int thread,
                                     const uint32_t* ends) {
    const int32_t first = (first_page(tokens) + number) * KVCC_PAGE_TOKENS;
    const mma::Record* const record =
        mma_records<Config>(p.cache, page(p.cache, b.z, first / KVCC_PAGE_TOKENS), head(b));
    const uint32_t capacity = static_cast<uint32_t>(p.cache.sparse_capacity);
    const uint32_t end = ends[kClasses - 1u] < capacity ? ends[kClasses - 1u] : capacity;
    for (uint32_t i = thread; i < end; i += kThreads) {
      const mma::Element at = mma::record_element(record[i].place, class_of_record<Config>(ends, i));
      const int32_t token = first + static_cast<int32_t>(at.token);
      // Class ends that no pack wrote may count in what is no record of the head's.
      if (token < tokens.begin || token >= tokens.end || at.channel >= static_cast<uint32_t>(D)) continue;
      out_row(p, b, p.cache.sink + token)[at.channel] = half_to_float(record[i].value);
    }
  }
};

}  // namespace kvcc::device
