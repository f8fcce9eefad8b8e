// Which parts of the context a block of the readers walks. The same division as the CUDA kernels', so that partial
// results of either mean the same.
#pragma once

#include <algorithm>
#include <cstdint>

#include "formats/layout/mma_launch.h"
#include "kernels/cpu/page.h"

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
    const Block b = block_of(kvcc_grid_mma_read(&c, splits, group), index);
    const int32_t width = kvcc_mma_group_tile(group),
                  tiles_of_group = static_cast<int32_t>(kvcc_ceil_div(group, width));
    split = static_cast<int32_t>(b.x);
    sequence = static_cast<int32_t>(b.z);
    head = static_cast<int32_t>(b.y) / tiles_of_group;
    group_first = static_cast<int32_t>(b.y) % tiles_of_group * width;
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

}  // namespace kvcc::cpu
