// Made-up batches for the emulated tests: rows, what the reference packs of them, and a pool of pages behind a shuffled
// table. Everything follows from the seed.
#pragma once

#include <string>

#include "tests/kernels/emulated/rows.h"
#include "tests/kernels/emulated/schedules.h"

namespace kvcc::test {

enum class Outliers { few, none, full };  ///< full: many, and lists exactly as long as the fullest tile needs

struct Shape {
  const char* name;
  std::vector<int> lengths;  ///< of the sequences
  int sink = 0, residual = 0, window = 0, group = 1, splits = 1;
  Outliers outliers = Outliers::few;
  int heads = 2;
  bool contiguous = false;  ///< pages in order, without a table
};

/// The edges that every row is run over. `groups`: sizes that the row's group tile serves, the last not a multiple of
/// the tile.
inline std::vector<Shape> edge_shapes(const std::vector<int>& groups) {
  const int some = groups.front(), most = groups.back();
  if (kSmall) {
    // Few blocks, as each of their threads is one of ThreadSanitizer's; five tiles, so that a warp takes a second one.
    // Splits are merged where the group is small.
    return {{"one of everything", {20, 3}, 1, 2, 16, some > 8 ? 9 : 2, some > 8 ? 1 : 2, Outliers::few, 1},
            {"two heads", {9}, 1, 0, 0, some > 8 ? 9 : 1, 1, Outliers::few, 2},
            {"full lists, second tile of a warp", {5 * 64 + 17}, 0, 0, 0, some > 8 ? 9 : 3, 1, Outliers::full, 1}};
  }
  return {
      {"no token", {0}, 1, 4, 0, some, 2},
      {"one token", {1}, 0, 0, 0, some},
      {"sinks only", {3, 4}, 4, 0, 0, some},
      {"page boundary", {63, 64, 65}, 0, 0, 0, some, 1},
      {"page boundary after sinks", {68, 69, 70}, 5, 0, 0, some, 2},
      {"residual ring", {150, 40, 61, 12}, 1, 37, 0, some, 2},
      {"residual ring longer than two tiles", {260, 150}, 5, 150, 0, some, 2},
      {"no page table", {70, 0, 130}, 2, 0, 0, most, 1, Outliers::few, 2, true},
      {"ragged batch", {0, 1, 130, 70}, 2, 0, 0, most, 3},
      {"window", {150, 20}, 1, 10, 50, some, 2},
      {"window that begins at a page", {128 + 64}, 0, 0, 128, some, 1},
      {"window inside the residual ring", {100}, 3, 20, 5, some, 2},
      {"sinks longer than a tile", {75, 140, 66}, 70, 9, 0, some, 2},
      {"empty lists", {90}, 1, 0, 0, most, 1, Outliers::none},
      {"full lists", {100}, 1, 0, 0, most, 1, Outliers::full},
      {"more splits than tiles", {150}, 1, 3, 0, some, 7},
      {"one head, many tiles", {5 * 64 + 17}, 0, 0, 0, most, 1, Outliers::few, 1},
  };
}

/// The same for families to which windows, groups and splits mean nothing.
inline std::vector<Shape> edge_shapes_of_rows(Axis axis) {
  if (kSmall) {  // a block a token on the token axis
    return {{"one of everything", {20, 3}, 1, 2},
            {"full lists", {axis == Axis::token ? 30 : 70}, 0, 0, 0, 1, 1, Outliers::full, 1}};
  }
  std::vector<Shape> shapes = edge_shapes({1});
  std::erase_if(shapes, [](const Shape& shape) {
    return std::string(shape.name).starts_with("window") || std::string(shape.name) == "more splits than tiles";
  });
  return shapes;
}

template <class C>
using Quantiser = std::conditional_t<C::kAxis == Axis::channel, ChannelQuantiser, TokenQuantiser>;

template <class C>
Quantiser<C> make_quantiser(const Shape& shape, const std::vector<uint8_t>& bits, std::mt19937& random) {
  if constexpr (C::kAxis == Axis::channel) {
    auto q = make_channel_quantiser(shape.heads, C::kHeadDim, bits, C::kSparse == Sparse::csr, random);
    const float limit = shape.outliers == Outliers::few ? 2.2f : shape.outliers == Outliers::none ? 1e4f : 1.3f;
    for (float& x : q.threshold_lower) x = -limit;
    for (float& x : q.threshold_upper) x = limit;
    use_levels<C::kTensor>(q.table);
    return q;
  } else {
    const int tail = C::kSparse != Sparse::tail ? 0 : shape.outliers == Outliers::full ? 13 : 2;
    auto q = make_token_quantiser(shape.heads, C::kHeadDim, bits, tail, random);
    use_levels<C::kTensor>(q.table);
    return q;
  }
}

/// One tensor of a batch.
template <class C>
struct Packed {
  Quantiser<C> quantiser;
  std::vector<std::vector<float>> rows;      ///< [T, H, D] of each sequence
  std::vector<reference::MmaCache> caches;   ///< of one capacity
  std::vector<std::vector<float>> unpacked;  ///< [T, H, D] of each sequence
  MmaBatch batch;
  bool contiguous = false;

  KvccCache view() {
    KvccCache c = batch.view();
    if (contiguous) c.page_table = nullptr;
    set_constants(c, quantiser);
    return c;
  }
};

/// Which bytes of a page with `tokens` tokens mean something.
inline std::vector<bool> meaning(const reference::MmaCache& cache, int64_t page, int64_t tokens) {
  const mma::PageShape& s = cache.shape;
  std::vector<bool> is(mma::page_bytes(s), false);
  const auto set = [&](uint64_t from, uint64_t bytes) { std::fill_n(is.begin() + from, bytes, true); };
  set(0, uint64_t{s.code_words} * 4);
  if (s.ranges) set(mma::ranges_offset(s), tokens * sizeof(linear::RangeRecord));
  if (s.classes == 0) return is;
  set(mma::ends_offset(s), uint64_t{s.heads} * s.classes * 2);
  for (uint32_t h = 0; h < s.heads; ++h) {
    uint16_t end;
    std::memcpy(&end, cache.page(page) + mma::ends_offset(s) + ((h + 1) * s.classes - 1) * 2, 2);
    set(mma::records_offset(s) + uint64_t{h} * s.capacity * 4, std::min<uint32_t>(end, s.capacity) * 4);
  }
  return is;
}

/// Fills what no reader may take for something, in pages and exact rows, with ones: NaN as fp16.
template <class C>
void spoil_unspecified(Packed<C>& p, const Shape& shape) {
  const size_t row = static_cast<size_t>(shape.heads) * C::kHeadDim;
  for (size_t s = 0; s < p.caches.size(); ++s) {
    const reference::MmaCache& cache = p.caches[s];
    const int packed = std::max<int>(shape.lengths[s] - shape.residual - shape.sink, 0);
    for (int i = 0; i < cache.page_count(); ++i) {
      const std::vector<bool> is = meaning(cache, i, std::clamp(packed - i * 64, 0, 64));
      const size_t at = p.batch.page(s, i) - p.batch.pages.data();
      for (size_t b = 0; b < is.size(); ++b) {
        if (!is[b]) p.batch.pages[at + b] = 0xff;
      }
    }
    std::vector<bool> used(shape.sink + shape.residual, false);
    for (int position = 0; position < shape.lengths[s]; ++position) {
      if (cache.exact_row(position) >= 0) used[cache.exact_row(position)] = true;
    }
    for (size_t r = 0; r < used.size(); ++r) {
      if (!used[r]) std::fill_n(p.batch.exact.begin() + (s * used.size() + r) * row, row, 0xffff);
    }
  }
}

/// Page i of sequence s to place s * max_pages + i of the pool.
template <class C>
void put_in_order(Packed<C>& p) {
  MmaBatch& batch = p.batch;
  const size_t page_bytes = mma::page_bytes(batch.shape.shape);
  std::vector<uint8_t> pages(batch.page_table.size() * page_bytes, 0xff);
  for (size_t slot = 0; slot < batch.page_table.size(); ++slot) {
    int32_t& number = batch.page_table[slot];
    if (number < 0) continue;
    std::memcpy(pages.data() + slot * page_bytes, batch.pages.data() + number * page_bytes, page_bytes);
    number = static_cast<int32_t>(slot);
  }
  batch.pages = std::move(pages);
  p.contiguous = true;
}

/// Moves the only sequence `pages` pages further in its context, behind pages that the table does not have. The ring
/// keeps its rows where 64 * pages is a multiple of it; sinks are to lie outside the window.
inline void move_on(MmaBatch& batch, int32_t pages) {
  batch.page_table.insert(batch.page_table.begin(), pages, -1);
  batch.lengths.at(0) += pages * KVCC_PAGE_TOKENS;
}

template <class C>
Packed<C> make_packed(const Shape& shape, std::mt19937& random, std::vector<uint8_t> bits = {}) {
  if (bits.empty()) bits.assign(shape.heads, C::kBits);
  Packed<C> p;
  p.quantiser = make_quantiser<C>(shape, bits, random);
  const int columns = shape.heads * C::kHeadDim;
  uint32_t most = 0;
  for (const int length : shape.lengths) {
    p.rows.push_back(make_rows(length, columns, random));
    if (C::kAxis == Axis::token && shape.outliers == Outliers::none) {
      // Tails take a fixed number of outliers; what can be empty is a head's list, when all lie in the first head.
      for (size_t i = 0; i < p.rows.back().size(); ++i) {
        if (i % columns >= static_cast<size_t>(C::kHeadDim)) p.rows.back()[i] *= 0.0625f;
      }
    }
    const auto alone =
        reference::pack_mma(p.quantiser, C::kTensor, p.rows.back(), {.sink = shape.sink, .residual = shape.residual});
    for (const uint32_t needed : alone.needed) most = std::max(most, needed);
  }
  const uint32_t exactly = (most + 3) / 4 * 4;
  const uint32_t capacity = shape.outliers == Outliers::full && most > 0 ? exactly : exactly / 16 * 16 + 32;
  for (size_t s = 0; s < p.rows.size(); ++s) {
    p.caches.push_back(reference::pack_mma(p.quantiser, C::kTensor, p.rows[s],
                                           {.sink = shape.sink, .residual = shape.residual, .capacity = capacity}));
    p.unpacked.push_back(reference::unpack(p.quantiser, p.caches.back()));
  }
  p.batch = make_batch(p.caches, random);
  if (shape.contiguous) put_in_order(p);
  spoil_unspecified(p, shape);
  return p;
}

/// Class ends of the only head cut down to `capacity`, in all pages.
template <class C>
void cut_ends(Packed<C>& p, uint32_t capacity) {
  const mma::PageShape& shape = p.batch.shape.shape;
  for (size_t at = 0; at < p.batch.pages.size(); at += mma::page_bytes(shape)) {
    auto* const ends = reinterpret_cast<uint16_t*>(p.batch.pages.data() + at + mma::ends_offset(shape));
    for (uint32_t i = 0; i < shape.classes; ++i) ends[i] = std::min<uint32_t>(ends[i], capacity);
  }
}

/// Class ends of the only head, in all pages, made to fall: those of every second class become 0.
template <class C>
void set_falling_ends(Packed<C>& p) {
  const mma::PageShape& shape = p.batch.shape.shape;
  for (size_t at = 0; at < p.batch.pages.size(); at += mma::page_bytes(shape)) {
    auto* const ends = reinterpret_cast<uint16_t*>(p.batch.pages.data() + at + mma::ends_offset(shape));
    for (uint32_t i = 1; i < shape.classes; i += 2) ends[i] = 0;
  }
}

/// Runs a row over its shapes, each with a trace of its name.
template <class Check>
void over_shapes(const std::vector<Shape>& shapes, const Check& check) {
  uint32_t seed = 1;
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.name);
    std::mt19937 random(seed++);
    try {
      check(shape, random);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (testing::Test::HasFailure()) return;  // one report is enough
  }
}

}  // namespace kvcc::test
