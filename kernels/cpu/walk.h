// Which parts of the context a block of the readers walks, and where the parts of a page lie. The same division as the
// CUDA kernels', so that partial results of either mean the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "formats/layout/mma.h"
#include "formats/layout/mma_launch.h"
#include "kernels/cpu/config.h"

namespace kvcc::cpu {

constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kPage = KVCC_PAGE_TOKENS;

/// Visible slots of a page: [begin, end).
struct Slots {
  int32_t begin, end;
  bool all() const { return begin <= 0 && end >= kPage; }
  bool has(int32_t slot) const { return slot >= begin && slot < end; }
};

/// The visible part of a sequence: pages that hold visible packed tokens, and blocks of 64 positions that hold visible
/// exact ones (two runs: sinks, then the residual ring).
struct Context {
  int32_t length, visible;           ///< positions [visible, length) count
  int32_t packed_first, packed_end;  ///< of the visible packed tokens, counted from `sink`
  int32_t page_first, pages;
  int32_t sink_first, sink_tiles;
  int32_t ring_first, ring_tiles;
  int32_t ring_begin;  ///< least position of the residual ring

  Context(const KvccCache& c, int32_t tokens, int32_t window)
      : length(tokens),
        visible(window > 0 ? std::max(tokens - window, 0) : 0),
        ring_begin(std::max(c.sink, tokens - c.residual)) {
    packed_first = std::max(visible - c.sink, 0);
    packed_end = std::min(ring_begin, std::max(length, c.sink)) - c.sink;
    page_first = packed_first / kPage;
    pages = packed_end > packed_first ? (packed_end + kPage - 1) / kPage - page_first : 0;
    const int32_t sinks = std::min(c.sink, length), ring = std::max(ring_begin, visible);
    sink_first = visible / kPage;
    sink_tiles = sinks > visible ? (sinks + kPage - 1) / kPage - sink_first : 0;
    ring_first = ring / kPage;
    if (sink_tiles > 0) ring_first = std::max(ring_first, sink_first + sink_tiles);
    ring_tiles = length > ring ? std::max((length + kPage - 1) / kPage - ring_first, 0) : 0;
  }
  Slots slots(int32_t page) const { return {packed_first - page * kPage, packed_end - page * kPage}; }
  bool exact(const KvccCache& c, int32_t p) const {
    return p >= visible && p < length && (p < c.sink || p >= ring_begin);
  }
  /// Which block of 64 positions an exact tile is.
  int32_t exact_block(int32_t tile) const {
    return tile < sink_tiles ? sink_first + tile : ring_first + tile - sink_tiles;
  }
};

/// What block `index` of the readers' grid does: one split of the context, for queries [group_first, group_first +
/// queries) of a head's group.
struct Work {
  int32_t split, sequence, head, group_first, queries;
  Context context;
  int32_t page, page_end, tile, tile_end;  ///< pages, and exact tiles counted over both runs

  Work(const KvccCache& c, uint32_t index, int32_t group, int32_t splits, int32_t window) : context(c, 0, 0) {
    const int32_t width = kvcc_mma_group_tile(group), tiles_of_group = (group + width - 1) / width;
    const uint32_t rows = static_cast<uint32_t>(c.heads * tiles_of_group);
    split = static_cast<int32_t>(index % static_cast<uint32_t>(splits));
    const uint32_t y = index / static_cast<uint32_t>(splits) % rows;
    sequence = static_cast<int32_t>(index / static_cast<uint32_t>(splits) / rows);
    head = static_cast<int32_t>(y) / tiles_of_group;
    group_first = static_cast<int32_t>(y) % tiles_of_group * width;
    queries = std::min(group - group_first, width);
    context = Context(c, c.lengths[sequence], window);
    const int32_t tiles = context.pages + context.sink_tiles + context.ring_tiles;
    const int32_t each = tiles / splits + (tiles % splits != 0 ? 1 : 0);
    const int32_t first = static_cast<int32_t>(std::min<int64_t>(int64_t{split} * each, tiles));
    const int32_t last = static_cast<int32_t>(std::min<int64_t>(int64_t{split} * each + each, tiles));
    page = context.page_first + std::min(first, context.pages);
    page_end = context.page_first + std::min(last, context.pages);
    tile = std::max(first - context.pages, 0);
    tile_end = std::max(last - context.pages, 0);
  }
  /// Of the block's first query among all [S, H * group].
  int64_t row(const KvccCache& c, int32_t group) const {
    return (static_cast<int64_t>(sequence) * c.heads + head) * group + group_first;
  }
};

/// Row of `exact` of position p of one head; p is a visible exact position.
inline const uint16_t* exact_row(const KvccCache& c, const Work& work, int32_t head_dim, int32_t p) {
  const int64_t row = p < c.sink ? p : c.sink + (p - c.sink) % c.residual;
  return c.exact +
         ((static_cast<int64_t>(work.sequence) * (c.sink + c.residual) + row) * c.heads + work.head) * head_dim;
}

/// One head's part of a page.
struct TileParts {
  const uint32_t* codes;
  const linear::RangeRecord* ranges;  ///< meaningful on the token axis
  const uint16_t* ends;               ///< [kClasses]; null without sparse part
  const mma::Record* records;
};

/// Finds tiles of one head of one sequence.
template <class Tensor>
class Pages {
 public:
  Pages(const Tensor& tensor, const KvccCache& c, const Work& work, int32_t bits)
      : cache_(c), first_(static_cast<int64_t>(work.sequence) * c.max_pages) {
    const bool sparse = tensor.sparse() != KVCC_SPARSE_NONE;
    const mma::PageShape shape{static_cast<uint32_t>(c.code_words), tensor.axis() == KVCC_AXIS_TOKEN ? 1u : 0u,
                               sparse ? mma::kClasses : 0u, static_cast<uint32_t>(c.heads),
                               static_cast<uint32_t>(c.sparse_capacity)};
    const uint32_t word = c.head_words != nullptr ? c.head_words[work.head]
                                                  : mma::head_first_word(static_cast<uint32_t>(work.head),
                                                                         static_cast<uint32_t>(tensor.head_dim()),
                                                                         static_cast<uint32_t>(bits));
    codes_ = size_t{word} * 4;
    ranges_ = mma::ranges_offset(shape);
    ends_ = sparse ? mma::ends_offset(shape) + static_cast<size_t>(work.head) * mma::kClasses * 2 : 0;
    records_ = mma::records_offset(shape) + static_cast<size_t>(work.head) * shape.capacity * sizeof(mma::Record);
  }
  /// Page i of the sequence.
  TileParts at(int32_t i) const {
    const int64_t slot = first_ + i;
    const int64_t number = cache_.page_table != nullptr ? cache_.page_table[slot] : slot;
    const uint8_t* page = cache_.pages + number * cache_.page_bytes;
    return {reinterpret_cast<const uint32_t*>(page + codes_),
            reinterpret_cast<const linear::RangeRecord*>(page + ranges_),
            ends_ != 0 ? reinterpret_cast<const uint16_t*>(page + ends_) : nullptr,
            reinterpret_cast<const mma::Record*>(page + records_)};
  }

 private:
  const KvccCache& cache_;
  int64_t first_;
  size_t codes_, ranges_, ends_, records_;
};

}  // namespace kvcc::cpu
