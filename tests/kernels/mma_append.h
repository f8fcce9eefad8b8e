// What the tests of pack into mma-1 share: caches of 0xab bytes, appending in calls, comparison with the oracle. What a
// page holds must not show what was there before, and nothing may be written that the layout does not name.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "formats/layout/mma_launch.h"
#include "kernels/device/mma_pack.cuh"
#include "tests/kernels/mma_cases.h"

namespace kvcc::test {

using device::Axis;
using device::Dtype;
using device::Rope;
using linear::Sparse;
using mma::Tensor;
using reference::MmaCache;

inline constexpr uint8_t kUntouched = 0xab;

template <class C>
using Quantiser = std::conditional_t<C::kAxis == Axis::channel, ChannelQuantiser, TokenQuantiser>;

/// Levels reach beyond [-1, 1], so that it shows whether an outlier's code is that of its clamped value.
template <class C>
Quantiser<C> make_quantiser(int heads, const std::vector<uint8_t>& bits, int tail, std::mt19937& random) {
  const auto finish = [](auto q) {
    for (float& level : q.table.levels) level *= 1.5f;
    use_levels<C::kTensor>(q.table);
    return q;
  };
  if constexpr (C::kAxis == Axis::channel) {
    return finish(make_channel_quantiser(heads, C::kHeadDim, bits, C::kSparse == Sparse::csr, random));
  } else {
    return finish(make_token_quantiser(heads, C::kHeadDim, bits, tail, random));
  }
}

/// One launch of the family: select where it has one, then pack. p.x, p.first, p.count and p.cache are set.
template <class C>
void launch_pack(KvccPackParams p, uint32_t seed) {
  const size_t tokens = static_cast<size_t>(p.cache.sequences) * p.count;
  std::vector<uint32_t> selected(tokens * 2 * p.cache.tail, 0xabababab);
  std::vector<float> inliers(tokens * 2, bits_float(0x7fc00000u));
  if constexpr (C::kAxis == Axis::token) {
    p.selected = selected.data();
    p.inliers = inliers.data();
    device::run_on_host<device::MmaSelect<C>>(p, kvcc_grid_mma_pack_select(&p), seed);
  }
  device::run_on_host<device::MmaPack<C>>(p, kvcc_grid_mma_pack(&p), seed);
}

/// Appends rows of x [T, H, D] to a cache of one sequence that has `first` tokens, in calls of the given lengths.
/// Returns the status.
template <class C, class Q>
uint32_t append(const Q& q, const std::vector<float>& x, int32_t first, const std::vector<int>& calls, uint32_t seed,
                KvccCache cache, int32_t repeat_above = 0) {
  uint32_t status = 0;
  const size_t columns = static_cast<size_t>(q.heads) * q.dim;
  for (const int count : calls) {
    const std::vector<float> part(x.begin() + first * columns, x.begin() + (first + count) * columns);
    const std::vector<uint8_t> bytes = as_dtype(part, C::kDtype);
    KvccPackParams p{};
    p.cache = cache;
    set_constants(p.cache, q);
    p.x = bytes.data();
    p.first = &first;
    p.count = count;
    p.status = &status;
    p.repeat_above = repeat_above;
    launch_pack<C>(p, seed);
    first += count;
  }
  return status;
}

template <class Q>
MmaCache untouched_cache(const Q& q, Tensor tensor, int64_t tokens, const reference::CacheOptions& options) {
  MmaCache cache = reference::make_mma_cache(q, tensor, tokens, options);
  std::fill(cache.pages.begin(), cache.pages.end(), kUntouched);
  return cache;
}

/// For copy_pages: pairs of a page of `from` and a page of `to`, which live as long as the params.
inline KvccCopyPagesParams copy_params(MmaCache& from, MmaCache& to, const std::vector<int32_t>& pairs) {
  KvccCopyPagesParams p{};
  p.source = from.pages.data();
  p.target = to.pages.data();
  p.pairs = pairs.data();
  p.source_page_bytes = static_cast<int64_t>(mma::page_bytes(from.shape));
  p.target_page_bytes = static_cast<int64_t>(mma::page_bytes(to.shape));
  p.fixed_bytes = static_cast<int64_t>(mma::records_offset(from.shape));
  p.lists = from.shape.classes > 0 ? from.heads : 0;
  p.source_capacity = static_cast<int32_t>(from.shape.capacity);
  p.target_capacity = static_cast<int32_t>(to.shape.capacity);
  p.count = static_cast<int32_t>(pairs.size() / 2);
  return p;
}

/// Which bytes of a page of `tokens` tokens mean something.
inline std::vector<bool> meaning(const MmaCache& cache, int64_t page, int tokens) {
  const mma::PageShape& s = cache.shape;
  std::vector<bool> is(mma::page_bytes(s), false);
  const auto set = [&](uint64_t from, uint64_t bytes) { std::fill_n(is.begin() + from, bytes, true); };
  set(0, uint64_t{s.code_words} * 4);
  if (s.ranges) set(mma::ranges_offset(s), tokens * sizeof(linear::RangeRecord));
  set(mma::ends_offset(s), uint64_t{s.heads} * s.classes * 2);
  for (uint32_t h = 0; h < s.heads && s.classes > 0; ++h) {
    uint16_t end;
    std::memcpy(&end, cache.page(page) + mma::ends_offset(s) + ((h + 1) * s.classes - 1) * 2, 2);
    set(mma::records_offset(s) + uint64_t{h} * s.capacity * 4, std::min<uint32_t>(end, s.capacity) * 4);
  }
  return is;
}

/// Page i of `found` holds the first `tokens` tokens exactly as page j of `wanted`, and nothing else.
inline void expect_page(const MmaCache& wanted, int64_t j, const MmaCache& found, int64_t i, int tokens) {
  const std::vector<bool> is = meaning(wanted, j, tokens);
  for (size_t at = 0; at < is.size(); ++at) {
    ASSERT_EQ(found.page(i)[at], is[at] ? wanted.page(j)[at] : kUntouched) << "page " << i << ", byte " << at;
  }
}

/// `found` holds the first `tokens` positions of wanted.
inline void expect_cache(const MmaCache& wanted, const MmaCache& found, int64_t tokens) {
  for (int64_t i = 0; i < wanted.page_count(); ++i) {
    const int64_t left = tokens - wanted.sink - i * 64;
    if (left > 0) {
      ASSERT_NO_FATAL_FAILURE(expect_page(wanted, i, found, i, static_cast<int>(std::min<int64_t>(left, 64))));
    } else {
      ASSERT_TRUE(std::all_of(found.page(i), found.page(i) + mma::page_bytes(found.shape),
                              [](uint8_t byte) { return byte == kUntouched; }));
    }
  }
  ASSERT_EQ(found.needed, wanted.needed);
  const size_t sinks = std::min<int64_t>(tokens, wanted.sink) * wanted.heads * wanted.head_dim;
  ASSERT_TRUE(std::equal(wanted.exact.begin(), wanted.exact.begin() + sinks, found.exact.begin()));
}

}  // namespace kvcc::test
