// pack, dequantise and copy_pages of layout mma-1 against the oracle, on the host: every phase of every block and
// thread in plain loops, in order and in shuffled orders. Caches start as 0xab bytes: what a page holds must not show
// what was there before, and nothing may be written that the layout does not name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/device/copy_pages.cuh"
#include "kernels/device/mma_dequantise.cuh"
#include "kernels/device/mma_pack.cuh"
#include "tests/kernels/mma_cases.h"

namespace kvcc::test {
namespace {

using device::Axis;
using device::Dtype;
using device::Rope;
using linear::Sparse;
using mma::Tensor;
using reference::MmaCache;

constexpr uint32_t kSeeds[] = {0, 1, 2};
constexpr uint8_t kUntouched = 0xab;

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
template <class C, class Q>
uint32_t append(const Q& q, const std::vector<float>& x, int32_t first, const std::vector<int>& calls, uint32_t seed,
                KvccCache cache) {
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

/// Which bytes of a page of `tokens` tokens mean something.
std::vector<bool> meaning(const MmaCache& cache, int64_t page, int tokens) {
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
void expect_page(const MmaCache& wanted, int64_t j, const MmaCache& found, int64_t i, int tokens) {
  const std::vector<bool> is = meaning(wanted, j, tokens);
  for (size_t at = 0; at < is.size(); ++at) {
    ASSERT_EQ(found.page(i)[at], is[at] ? wanted.page(j)[at] : kUntouched) << "page " << i << ", byte " << at;
  }
}

/// `found` holds the first `tokens` positions of wanted.
void expect_cache(const MmaCache& wanted, const MmaCache& found, int64_t tokens) {
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

template <class C, class Q>
void expect_dequantise(const Q& q, MmaCache& cache, int32_t first, int32_t count, uint32_t seed) {
  const std::vector<float> all = reference::unpack(q, cache);
  const int32_t length = static_cast<int32_t>(cache.tokens), columns = q.heads * q.dim;
  std::vector<float> out(static_cast<size_t>(count) * columns, 12345.0f), wanted = out;
  if (first < length)
    std::copy_n(all.begin() + first * columns, std::min(count, length - first) * columns, wanted.begin());
  KvccDequantiseParams p{};
  p.cache = view(cache, &length);
  set_constants(p.cache, q);
  p.out = out.data();
  p.first = &first;
  p.count = count;
  device::run_on_host<device::MmaDequantise<C>>(p, kvcc_grid_mma_dequantise(&p), seed);
  ASSERT_EQ(std::memcmp(out.data(), wanted.data(), out.size() * 4), 0) << "from " << first << ", " << count;
}

template <Tensor tensor, int bits, int dim, Axis axis, Sparse sparse, Dtype dtype = Dtype::f16>
void check(int heads, int tail, int sink, int residual, int tokens, uint32_t seed) {
  SCOPED_TRACE(testing::Message() << "bits " << bits << " dim " << dim << " heads " << heads << " tail " << tail
                                  << " sink " << sink << " residual " << residual << " seed " << seed);
  using C = MmaConfig<tensor, bits, dim, axis, sparse, Rope::none, 0, 8, dtype>;
  std::mt19937 random(seed);
  const auto q = make_quantiser<C>(heads, std::vector<uint8_t>(heads, bits), tail, random);
  const auto x = make_rows(tokens, heads * dim, random);
  MmaCache wanted = reference::pack_mma(q, tensor, x, {.sink = sink, .residual = residual});
  const int packed = std::max(tokens - residual, std::min(tokens, sink));
  std::vector<std::vector<int>> ways = {{packed}, std::vector<int>(packed, 1)};
  if (packed > 73) ways.push_back({1, 2, 70, packed - 73});
  for (const auto& calls : ways) {
    for (const uint32_t order : kSeeds) {
      if (calls.size() > 20 && order == 2) continue;
      auto cache =
          untouched_cache(q, tensor, tokens, {.sink = sink, .residual = residual, .capacity = wanted.shape.capacity});
      EXPECT_EQ((append<C>(q, x, 0, calls, order, view(cache, nullptr))), 0u);
      ASSERT_NO_FATAL_FAILURE(expect_cache(wanted, cache, packed)) << calls.size() << " calls, order " << order;
    }
  }
  for (const uint32_t order : kSeeds) {
    ASSERT_NO_FATAL_FAILURE((expect_dequantise<C>(q, wanted, 0, tokens, order)));
    ASSERT_NO_FATAL_FAILURE((expect_dequantise<C>(q, wanted, 7, tokens + 10, order)));
    ASSERT_NO_FATAL_FAILURE((expect_dequantise<C>(q, wanted, tokens / 2, 1, order)));
  }
}

TEST(MmaPackKey, Widths) {
  check<Tensor::key, 2, 64, Axis::channel, Sparse::csr>(3, 0, 1, 0, 135, 1);
  check<Tensor::key, 3, 64, Axis::channel, Sparse::csr>(3, 0, 1, 0, 135, 2);
  check<Tensor::key, 4, 64, Axis::channel, Sparse::csr>(3, 0, 1, 0, 135, 3);
  check<Tensor::key, 8, 64, Axis::channel, Sparse::csr>(3, 0, 1, 0, 135, 4);
}
TEST(MmaPackKey, HeadDimsAndSparseParts) {
  check<Tensor::key, 3, 80, Axis::channel, Sparse::csr, Dtype::f32>(1, 0, 0, 0, 129, 1);
  check<Tensor::key, 2, 96, Axis::channel, Sparse::none, Dtype::bf16>(2, 0, 4, 0, 100, 2);
  check<Tensor::key, 4, 128, Axis::channel, Sparse::csr, Dtype::bf16>(2, 0, 0, 0, 80, 3);
  check<Tensor::key, 3, 192, Axis::channel, Sparse::none>(1, 0, 1, 0, 75, 4);
  check<Tensor::key, 3, 256, Axis::channel, Sparse::csr>(1, 0, 1, 0, 75, 5);
  check<Tensor::key, 3, 80, Axis::token, Sparse::tail>(3, 3, 1, 0, 80, 6);  // the int baselines' keys
  check<Tensor::key, 8, 256, Axis::token, Sparse::tail>(1, 5, 0, 0, 70, 7);
}
TEST(MmaPackValue, Widths) {
  check<Tensor::value, 2, 64, Axis::token, Sparse::tail>(3, 1, 1, 0, 135, 1);
  check<Tensor::value, 3, 64, Axis::token, Sparse::tail>(3, 2, 1, 0, 135, 2);
  check<Tensor::value, 4, 64, Axis::token, Sparse::tail>(3, 2, 1, 0, 135, 3);
  check<Tensor::value, 8, 64, Axis::token, Sparse::tail>(3, 2, 1, 0, 135, 4);
}
TEST(MmaPackValue, HeadDimsAndSparseParts) {
  check<Tensor::value, 3, 80, Axis::token, Sparse::tail, Dtype::f32>(1, 7, 0, 0, 129, 1);
  check<Tensor::value, 2, 96, Axis::token, Sparse::none, Dtype::bf16>(2, 0, 4, 0, 100, 2);
  check<Tensor::value, 4, 128, Axis::token, Sparse::tail, Dtype::bf16>(8, 21, 1, 0, 70, 3);
  check<Tensor::value, 3, 192, Axis::token, Sparse::none>(1, 0, 1, 0, 75, 4);
  check<Tensor::value, 3, 256, Axis::token, Sparse::tail>(3, 4, 1, 0, 75, 5);
  check<Tensor::value, 3, 80, Axis::channel, Sparse::csr>(3, 0, 1, 0, 80, 6);
  check<Tensor::value, 8, 256, Axis::channel, Sparse::csr>(1, 0, 0, 0, 70, 7);
  check<Tensor::value, 4, 64, Axis::channel, Sparse::none>(1, 0, 0, 0, 70, 8);
}
TEST(MmaPack, EdgeLengths) {
  for (const int tokens : {1, 3, 63, 64, 65, 67, 68, 128}) {
    check<Tensor::key, 3, 64, Axis::channel, Sparse::csr>(1, 0, 3, 0, tokens, 10 + tokens);
    check<Tensor::value, 3, 64, Axis::token, Sparse::tail>(1, 1, 3, 0, tokens, 10 + tokens);
  }
}
TEST(MmaPack, ResidualWindow) {
  check<Tensor::key, 3, 64, Axis::channel, Sparse::csr>(2, 0, 1, 40, 135, 1);
  check<Tensor::value, 3, 64, Axis::token, Sparse::tail>(2, 2, 1, 40, 135, 2);
  check<Tensor::value, 2, 64, Axis::token, Sparse::tail>(2, 2, 1, 200, 135, 3);  // nothing is packed
}

/// A random division of `total` tokens into calls.
std::vector<int> random_calls(int total, std::mt19937& random) {
  std::vector<int> calls;
  for (int left = total; left > 0; left -= calls.back()) {
    const int most = random() % 3 == 0 ? 100 : 7;
    calls.push_back(std::min<int>(left, 1 + static_cast<int>(random() % most)));
  }
  return calls;
}
template <class C>
void check_divisions(uint32_t seed) {
  std::mt19937 random(seed);
  const int heads = 1 + static_cast<int>(random() % 3), sink = static_cast<int>(random() % 6);
  const int tokens = 1 + static_cast<int>(random() % 200), tail = 1 + static_cast<int>(random() % 9);
  const auto q = make_quantiser<C>(heads, std::vector<uint8_t>(heads, C::kBits), tail, random);
  const auto x = make_rows(tokens, heads * C::kHeadDim, random);
  const MmaCache wanted = reference::pack_mma(q, C::kTensor, x, {.sink = sink});
  auto cache = untouched_cache(q, C::kTensor, tokens, {.sink = sink, .capacity = wanted.shape.capacity});
  const auto calls = random_calls(tokens, random);
  EXPECT_EQ((append<C>(q, x, 0, calls, seed, view(cache, nullptr))), 0u);
  ASSERT_NO_FATAL_FAILURE(expect_cache(wanted, cache, tokens))
      << "seed " << seed << ", tokens " << tokens << ", sink " << sink << ", calls " << calls.size();
}
TEST(MmaPack, AnyDivisionIntoCallsGivesTheSame) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    check_divisions<MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr>>(seed);
    check_divisions<MmaConfig<Tensor::value, 2, 80, Axis::token, Sparse::tail>>(seed);
  }
}

// More records than are moved at a time (512): every fourth value is an outlier.
TEST(MmaPack, ManyRecordsMoveInSeveralChunks) {
  using C = MmaConfig<Tensor::value, 3, 256, Axis::token, Sparse::tail>;
  std::mt19937 random(3);
  const auto q = make_quantiser<C>(1, {3}, 32, random);
  const auto x = make_rows(64, 256, random);
  const MmaCache wanted = reference::pack_mma(q, Tensor::value, x, {});
  ASSERT_EQ(wanted.needed[0], 64u * 64u);
  for (const uint32_t order : kSeeds) {
    auto cache = untouched_cache(q, Tensor::value, 64, {.capacity = wanted.shape.capacity});
    EXPECT_EQ((append<C>(q, x, 0, {1, 9, 20, 1, 2, 31}, order, view(cache, nullptr))), 0u);
    ASSERT_NO_FATAL_FAILURE(expect_cache(wanted, cache, 64));
  }
}

// Heads of 2, 4, 3 and 2 bits in one layer: one unit a width, in any order, and together they give the reference's
// bytes.
template <Tensor tensor, Axis axis, Sparse sparse>
void check_mixed(int tail) {
  constexpr int heads = 4, dim = 64, tokens = 100;
  const std::vector<uint8_t> bits = {3, 2, 4, 2};
  std::mt19937 random(5);
  using Any = MmaConfig<tensor, 4, dim, axis, sparse>;
  const auto q = make_quantiser<Any>(heads, bits, tail, random);
  const auto x = make_rows(tokens, heads * dim, random);
  MmaCache wanted = reference::pack_mma(q, tensor, x, {.sink = 1});
  auto cache = untouched_cache(q, tensor, tokens, {.sink = 1, .capacity = wanted.shape.capacity});
  const auto unpacked = reference::unpack(q, wanted);
  std::vector<float> out(unpacked.size());
  const int32_t length = tokens, first = 0;
  const auto unit = [&]<int b>() {
    using C = MmaConfig<tensor, b, dim, axis, sparse, Rope::none, 0, 8, Dtype::f16, true>;
    EXPECT_EQ((append<C>(q, x, 0, {40, 60}, 7, view(cache, nullptr))), 0u);
    KvccDequantiseParams p{};
    p.cache = view(wanted, &length);
    set_constants(p.cache, q);
    p.out = out.data();
    p.first = &first;
    p.count = tokens;
    device::run_on_host<device::MmaDequantise<C>>(p, kvcc_grid_mma_dequantise(&p), 3);
  };
  unit.template operator()<2>();
  unit.template operator()<4>();
  EXPECT_NE(cache.needed, wanted.needed);
  unit.template operator()<3>();
  expect_cache(wanted, cache, tokens);
  EXPECT_EQ(std::memcmp(out.data(), unpacked.data(), out.size() * 4), 0);
}
TEST(MmaPack, MixedWidths) {
  check_mixed<Tensor::key, Axis::channel, Sparse::csr>(0);
  check_mixed<Tensor::value, Axis::token, Sparse::tail>(3);
}

// Two sequences of unequal lengths grow in one launch, their pages in one pool behind a table.
template <class C>
void check_ragged(int tail) {
  constexpr int heads = 2, dim = C::kHeadDim, count = 70;
  const int32_t first[2] = {90, 1};
  std::mt19937 random(13);
  const auto q = make_quantiser<C>(heads, {C::kBits, C::kBits}, tail, random);
  std::vector<std::vector<float>> x;
  std::vector<MmaCache> wanted, empty;
  std::vector<uint8_t> rows;
  for (const int32_t before : first) {
    x.push_back(make_rows(before + count, heads * dim, random));
    wanted.push_back(reference::pack_mma(q, C::kTensor, x.back(), {.sink = 3, .capacity = 4096}));
    empty.push_back(untouched_cache(q, C::kTensor, before + count, {.sink = 3, .capacity = 4096}));
    const auto bytes = as_dtype({x.back().begin() + before * heads * dim, x.back().end()}, C::kDtype);
    rows.insert(rows.end(), bytes.begin(), bytes.end());
  }
  MmaBatch batch = make_batch(empty, random);
  uint32_t status = 0;
  KvccPackParams p{};
  p.cache = batch.view();
  set_constants(p.cache, q);
  for (int s = 0; s < 2; ++s) {
    KvccCache one = p.cache;
    one.page_table += s * one.max_pages;
    one.needed += s * one.max_pages * heads;
    one.exact += s * 3 * heads * dim;
    one.sequences = 1;
    EXPECT_EQ((append<C>(q, x[s], 0, {first[s]}, 1, one)), 0u);
  }
  p.x = rows.data();
  p.first = first;
  p.count = count;
  p.status = &status;
  launch_pack<C>(p, 5);
  EXPECT_EQ(status, 0u);
  for (int s = 0; s < 2; ++s) {
    MmaCache found = empty[s];
    for (int64_t i = 0; i < found.page_count(); ++i) {
      std::memcpy(found.page(i), batch.page(s, i), mma::page_bytes(found.shape));
    }
    std::copy_n(batch.needed.begin() + s * p.cache.max_pages * heads, found.needed.size(), found.needed.begin());
    std::copy_n(batch.exact.begin() + s * 3 * heads * dim, found.exact.size(), found.exact.begin());
    ASSERT_NO_FATAL_FAILURE(expect_cache(wanted[s], found, wanted[s].tokens)) << "sequence " << s;
  }

  const int32_t lengths[2] = {first[0] + count, first[1] + count}, from[2] = {60, 0};
  std::vector<float> out(2 * 80 * heads * dim, -1.0f), expected = out;
  KvccDequantiseParams d{};
  d.cache = p.cache;
  d.cache.lengths = lengths;
  d.out = out.data();
  d.first = from;
  d.count = 80;
  device::run_on_host<device::MmaDequantise<C>>(d, kvcc_grid_mma_dequantise(&d), 3);
  for (int s = 0; s < 2; ++s) {
    const auto all = reference::unpack(q, wanted[s]);
    const int n = std::min(80, lengths[s] - from[s]);
    std::copy_n(all.begin() + from[s] * heads * dim, n * heads * dim, expected.begin() + s * 80 * heads * dim);
  }
  EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * 4), 0);
}
TEST(MmaPack, RaggedPagedBatch) {
  check_ragged<MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr>>(0);
  check_ragged<MmaConfig<Tensor::value, 3, 64, Axis::token, Sparse::tail>>(2);
  check_ragged<MmaConfig<Tensor::value, 4, 80, Axis::token, Sparse::none>>(0);
}

using SmallKey = MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr, Rope::half, 64, 8, Dtype::f32>;

// A tile with more outliers than its list holds is reported and never written past, however the tokens come; what fits
// is as if the list were cut; and packing again with a larger capacity is right.
TEST(MmaPackOverflow, TileIsReportedAndPackedAgain) {
  std::mt19937 random(9);
  const auto q = make_quantiser<SmallKey>(2, {3, 3}, 0, random);
  const auto x = make_rows(64, 128, random);
  const MmaCache wanted = reference::pack_mma(q, Tensor::key, x, {});
  ASSERT_GT(*std::min_element(wanted.needed.begin(), wanted.needed.end()), 33u);
  const mma::PageShape& w = wanted.shape;
  for (uint32_t capacity = 4; capacity < w.capacity; capacity += 100) {
    for (const auto& calls : {std::vector<int>{64}, std::vector<int>{5, 1, 40, 18}, std::vector<int>(64, 1)}) {
      auto small = untouched_cache(q, Tensor::key, 64, {.capacity = capacity});
      const mma::PageShape& s = small.shape;
      append<SmallKey>(q, x, 0, calls, 0, view(small, nullptr));
      ASSERT_EQ(small.needed, wanted.needed);
      ASSERT_EQ(std::memcmp(small.page(0), wanted.page(0), mma::records_offset(s)), 0);
      for (uint32_t h = 0; h < 2; ++h) {
        ASSERT_EQ(std::memcmp(small.page(0) + mma::records_offset(s) + h * capacity * 4,
                              wanted.page(0) + mma::records_offset(w) + h * w.capacity * 4,
                              std::min(capacity, wanted.needed[h]) * 4),
                  0)
            << "capacity " << capacity << ", head " << h << ", " << calls.size() << " calls";
      }
      ASSERT_TRUE(std::all_of(small.pages.begin() + mma::records_offset(s) + 2 * capacity * 4, small.pages.end(),
                              [](uint8_t byte) { return byte == kUntouched; }));
    }
  }
  auto grown = untouched_cache(q, Tensor::key, 64, {.capacity = wanted.shape.capacity});
  append<SmallKey>(q, x, 0, {64}, 0, view(grown, nullptr));
  expect_cache(wanted, grown, 64);
}

KvccCopyPagesParams copy_params(MmaCache& from, MmaCache& to, const std::vector<int32_t>& pairs) {
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

// Pages move to a pool with a larger capacity, in another order, and appending goes on there.
TEST(CopyPages, GrowsTheCapacityAndAppendingGoesOn) {
  std::mt19937 random(21);
  const auto q = make_quantiser<SmallKey>(2, {3, 3}, 0, random);
  const auto x = make_rows(120, 128, random);
  const MmaCache wanted = reference::pack_mma(q, Tensor::key, x, {});
  const std::vector<float> begun(x.begin(), x.begin() + 100 * 128);
  const MmaCache half = reference::pack_mma(q, Tensor::key, begun, {});
  auto small = untouched_cache(q, Tensor::key, 120, {.capacity = half.shape.capacity});
  append<SmallKey>(q, x, 0, {100}, 0, view(small, nullptr));
  auto large = untouched_cache(q, Tensor::key, 120, {.capacity = wanted.shape.capacity + 64});
  const std::vector<int32_t> pairs = {0, 1, 1, 0};
  const auto p = copy_params(small, large, pairs);
  device::run_on_host<device::CopyPages>(p, kvcc_grid_copy_pages(&p), 3);
  KvccCache cache = view(large, nullptr);
  const int32_t table[2] = {1, 0};
  cache.page_table = table;
  large.needed = small.needed;
  append<SmallKey>(q, x, 100, {1, 19}, 0, cache);
  EXPECT_EQ(large.needed, wanted.needed);
  const MmaCache roomy = reference::pack_mma(q, Tensor::key, x, {.capacity = large.shape.capacity});
  ASSERT_EQ(roomy.shape.capacity, large.shape.capacity);
  for (int64_t i = 0; i < 2; ++i) {
    const std::vector<bool> is = meaning(roomy, i, i == 0 ? 64 : 56);
    for (size_t at = 0; at < is.size(); ++at) {
      if (!is[at]) continue;
      ASSERT_EQ(large.page(table[i])[at], roomy.page(i)[at]) << "page " << i << ", byte " << at;
    }
  }
}

// Bytes for bytes: aligned or not, lists cut, one run or none, several rounds of the four-load loop.
TEST(CopyPages, CopiesWhatItShouldAndNoMore) {
  struct Case {
    int64_t fixed;
    int32_t lists, from, to, shift;
  };
  for (const Case& c :
       {Case{9000, 3, 12, 8, 0}, Case{9008, 3, 12, 12, 0}, Case{512, 2, 4, 40, 0}, Case{516, 1, 7, 5, 0},
        Case{20000, 0, 0, 0, 0}, Case{9008, 3, 12, 12, 4}, Case{0, 1, 3000, 2999, 0}}) {
    SCOPED_TRACE(testing::Message() << c.fixed << " bytes, " << c.lists << " lists of " << c.from << " to " << c.to);
    const auto page_of = [&](int32_t capacity) {
      return (c.fixed + int64_t{c.lists} * capacity * 4 + 127) / 128 * 128;
    };
    std::mt19937 random(3);
    std::vector<uint32_t> source(page_of(c.from) * 3 / 4 + 1), target(page_of(c.to) * 3 / 4 + 1, 0xabababab);
    for (uint32_t& word : source) word = random();
    const std::vector<int32_t> pairs = {2, 0, 0, 1};
    KvccCopyPagesParams p{};
    p.source = reinterpret_cast<const uint8_t*>(source.data()) + c.shift;
    p.target = reinterpret_cast<uint8_t*>(target.data()) + c.shift;
    p.pairs = pairs.data();
    p.source_page_bytes = page_of(c.from);
    p.target_page_bytes = page_of(c.to);
    p.fixed_bytes = c.fixed;
    p.lists = c.lists;
    p.source_capacity = c.from;
    p.target_capacity = c.to;
    p.count = 2;
    std::vector<uint32_t> wanted = target;
    const auto bytes = [&](std::vector<uint32_t>& v) { return reinterpret_cast<uint8_t*>(v.data()) + c.shift; };
    for (int i = 0; i < 2; ++i) {
      const uint8_t* from = bytes(source) + pairs[2 * i] * p.source_page_bytes;
      uint8_t* to = bytes(wanted) + pairs[2 * i + 1] * p.target_page_bytes;
      std::memcpy(to, from, c.fixed);
      for (int l = 0; l < c.lists; ++l) {
        std::memcpy(to + c.fixed + l * c.to * 4, from + c.fixed + l * c.from * 4, std::min(c.from, c.to) * 4);
      }
    }
    device::run_on_host<device::CopyPages>(p, kvcc_grid_copy_pages(&p), 1);
    EXPECT_EQ(target, wanted);
  }
}

TEST(MmaPackStatus, ValuesThatCannotBeStoredAreReported) {
  using V = MmaConfig<Tensor::value, 3, 64, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::f32>;
  using Dense = MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::none, Rope::none, 0, 8, Dtype::f32>;
  std::mt19937 random(11);
  const auto dense = make_quantiser<Dense>(2, {3, 3}, 0, random);
  const auto key = make_quantiser<SmallKey>(2, {3, 3}, 0, random);
  const auto value = make_quantiser<V>(2, {3, 3}, 1, random);
  const float nan = bits_float(0x7fc00000u), infinity = bits_float(0x7f800000u);
  const auto status_of = [&](float bad, int token, int sink) {
    auto x = make_rows(5, 128, random);
    x[token * 128 + 77] = bad;
    auto denses = untouched_cache(dense, Tensor::key, 5, {.sink = sink});
    auto keys = untouched_cache(key, Tensor::key, 5, {.sink = sink, .capacity = 4096});
    auto values = untouched_cache(value, Tensor::value, 5, {.sink = sink, .capacity = 4096});
    return std::vector<uint32_t>{append<Dense>(dense, x, 0, {5}, 0, view(denses, nullptr)),
                                 append<SmallKey>(key, x, 0, {5}, 0, view(keys, nullptr)),
                                 append<V>(value, x, 0, {5}, 0, view(values, nullptr))};
  };
  const std::vector<uint32_t> good(3, 0), bad(3, KVCC_STATUS_RANGE);
  EXPECT_EQ(status_of(1.0f, 2, 1), good);
  EXPECT_EQ(status_of(65504.0f, 2, 1), good);
  // Stored exactly as an outlier, where there are any.
  EXPECT_EQ(status_of(70000.0f, 2, 1), (std::vector<uint32_t>{0, KVCC_STATUS_RANGE, KVCC_STATUS_RANGE}));
  EXPECT_EQ(status_of(70000.0f, 0, 1), bad);  // stored exactly as a sink
  EXPECT_EQ(status_of(nan, 2, 1), bad);
  EXPECT_EQ(status_of(-infinity, 2, 0), bad);
}

}  // namespace
}  // namespace kvcc::test
