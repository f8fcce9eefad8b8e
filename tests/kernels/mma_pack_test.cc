// pack and dequantise of layout mma-1 against the oracle, on the host: every phase of every block and thread in plain
// loops, in order and in shuffled orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/device/mma_dequantise.cuh"
#include "tests/kernels/mma_append.h"

namespace kvcc::test {
namespace {

constexpr uint32_t kSeeds[] = {0, 1, 2};

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

}  // namespace
}  // namespace kvcc::test
