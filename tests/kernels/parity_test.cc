// The device text against the oracle, on the host: every phase of every block and thread in plain loops, in order and
// in shuffled orders. What is stored must be equal to the byte, sums within their rounding, and every order must give
// the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/device/dequantise.cuh"
#include "kernels/device/key_scores.cuh"
#include "kernels/device/pack_channel.cuh"
#include "kernels/device/pack_token.cuh"
#include "kernels/device/value_mix.cuh"
#include "tests/kernels/cases.h"

namespace kvcc::test {
namespace {

using device::Axis;
using device::Dtype;
using device::Rope;
using linear::Sparse;

constexpr uint32_t kSeeds[] = {0, 1, 2};

/// Appends x [T, H, D] to an empty cache by the kernel, in calls of the given lengths.
template <class Body, class Quantiser>
uint32_t pack_on_host(const Quantiser& q, const std::vector<float>& x, Dtype dtype, const std::vector<int>& calls,
                      uint32_t seed, reference::LinearCache& cache) {
  uint32_t status = 0;
  int32_t first = 0;
  const size_t columns = static_cast<size_t>(q.heads) * q.dim;
  for (const int count : calls) {
    const std::vector<float> part(x.begin() + first * columns, x.begin() + (first + count) * columns);
    const std::vector<uint8_t> bytes = as_dtype(part, dtype);
    KvccPackParams p{};
    p.cache = view(cache, nullptr);
    set_constants(p.cache, q);
    p.x = bytes.data();
    p.first = &first;
    p.count = count;
    p.status = &status;
    const bool channel = std::is_same_v<Quantiser, ChannelQuantiser>;
    device::run_on_host<Body>(p, channel ? kvcc_grid_pack_channel(&p) : kvcc_grid_pack_token(&p), seed);
    first += count;
  }
  return status;
}

template <class Body, class Quantiser>
void expect_pack_equals_reference(const Quantiser& q, const std::vector<float>& x, Dtype dtype, int sink) {
  const auto wanted = reference::pack(q, x, {.sink = sink});
  const int tokens = static_cast<int>(wanted.tokens);
  const std::vector<std::vector<int>> ways = {{tokens}, {1, 2, 70, tokens - 73}, std::vector<int>(tokens, 1)};
  for (const auto& calls : ways) {
    for (const uint32_t seed : kSeeds) {
      auto cache = reference::make_cache(q, tokens, {.sink = sink, .capacity = wanted.shape.entries});
      EXPECT_EQ(pack_on_host<Body>(q, x, dtype, calls, seed, cache), 0u);
      ASSERT_EQ(cache.exact, wanted.exact);
      ASSERT_EQ(cache.needed, wanted.needed);  // zeros without csr part
      ASSERT_EQ(cache.pages, wanted.pages) << calls.size() << " calls, seed " << seed;
    }
  }
}

template <class C, class Quantiser>
void expect_dequantise_equals_unpack(const Quantiser& q, reference::LinearCache& cache, uint32_t seed) {
  const auto wanted = reference::unpack(q, cache);
  const int32_t length = static_cast<int32_t>(cache.tokens), first = 0;
  std::vector<float> out(wanted.size(), 12345.0f);
  KvccDequantiseParams p{};
  p.cache = view(cache, &length);
  set_constants(p.cache, q);
  p.out = out.data();
  p.first = &first;
  p.count = length;
  device::run_on_host<device::Dequantise<C>>(p, kvcc_grid_dequantise(&p, C::kHeadDim), seed);
  ASSERT_EQ(std::memcmp(out.data(), wanted.data(), out.size() * 4), 0);
}

void expect_within_rounding(const std::vector<float>& found, const reference::Sums& wanted, int terms,
                            const char* what) {
  ASSERT_EQ(found.size(), wanted.value.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const double bound = std::ldexp(terms, -23) * wanted.magnitude[i] + 1e-37;
    ASSERT_NEAR(found[i], wanted.value[i], bound) << what << " " << i;
  }
}

template <class C>
std::vector<float> key_scores_on_host(const ChannelQuantiser& q, reference::LinearCache& cache,
                                      const std::vector<uint8_t>& query, const reference::RopeTable& rope, int group,
                                      uint32_t seed) {
  const int32_t length = static_cast<int32_t>(cache.tokens);
  std::vector<float> scores(static_cast<size_t>(q.heads) * group * length, -1.0f);
  KvccKeyScoresParams p{};
  p.cache = view(cache, &length);
  set_constants(p.cache, q);
  p.query = query.data();
  p.cosine = rope.cosine.data();
  p.sine = rope.sine.data();
  p.scores = scores.data();
  p.scores_stride = length;
  p.multiplier = 0.125f;
  p.group = group;
  p.max_length = length;
  device::run_on_host<device::KeyScores<C>>(p, kvcc_grid_key_scores(&p, C::kHeadDim), seed);
  return scores;
}

template <int bits, int dim, Sparse sparse, Rope rope_kind, int rotary, int group_tile, Dtype dtype>
void check_key(int heads, int group, int sink, int residual, int tokens, uint32_t seed) {
  SCOPED_TRACE(testing::Message() << "bits " << bits << " dim " << dim << " heads " << heads << " group " << group
                                  << " sink " << sink << " residual " << residual << " seed " << seed);
  using C = Config<bits, dim, Axis::channel, sparse, rope_kind, rotary, group_tile, dtype>;
  std::mt19937 random(seed);
  const auto q = make_channel_quantiser(heads, dim, std::vector<uint8_t>(heads, bits), sparse == Sparse::csr, random);
  const auto x = make_rows(tokens, heads * dim, random);
  if (residual == 0) expect_pack_equals_reference<device::PackChannel<C>>(q, x, dtype, sink);
  auto cache = reference::pack(q, x, {.sink = sink, .residual = residual});
  for (const uint32_t order : kSeeds) expect_dequantise_equals_unpack<C>(q, cache, order);

  const auto query = make_rows(heads * group, dim, random);
  const auto rope = make_rope(rotary, rope_kind == Rope::interleaved, tokens);
  const auto wanted = reference::key_scores(reference::unpack(q, cache), query, heads, dim, group, rope, 0.125f);
  const auto bytes = as_dtype(query, dtype);
  const auto scores = key_scores_on_host<C>(q, cache, bytes, rope, group, 0);
  expect_within_rounding(scores, wanted, dim + 2, "score");
  for (const uint32_t order : kSeeds) {
    ASSERT_EQ(key_scores_on_host<C>(q, cache, bytes, rope, group, order), scores) << "order " << order;
  }
}

template <int bits, int dim, Sparse sparse, int group_tile, Dtype dtype>
void check_value(int heads, int group, int tail, int sink, int residual, int tokens, uint32_t seed) {
  SCOPED_TRACE(testing::Message() << "bits " << bits << " dim " << dim << " heads " << heads << " tail " << tail
                                  << " sink " << sink << " seed " << seed);
  using C = Config<bits, dim, Axis::token, sparse, Rope::none, 0, group_tile, dtype>;
  std::mt19937 random(seed);
  const auto q = make_token_quantiser(heads, dim, std::vector<uint8_t>(heads, bits), tail, random);
  const auto x = make_rows(tokens, heads * dim, random);
  if (residual == 0) expect_pack_equals_reference<device::PackToken<C>>(q, x, dtype, sink);
  auto cache = reference::pack(q, x, {.sink = sink, .residual = residual});
  for (const uint32_t order : kSeeds) expect_dequantise_equals_unpack<C>(q, cache, order);

  const auto weights = make_rows(heads * group, tokens, random);
  const auto wanted = reference::value_mix(reference::unpack(q, cache), weights, heads, dim, group);
  const auto bytes = as_dtype(weights, dtype);
  const int32_t length = tokens;
  for (const int splits : {1, 2, 7}) {
    std::vector<float> first_result;
    for (const uint32_t order : kSeeds) {
      std::vector<float> out(static_cast<size_t>(heads) * group * dim, -1.0f), partial(out.size() * splits, -1.0f);
      KvccValueMixParams p{};
      p.cache = view(cache, &length);
      p.weights = bytes.data();
      p.weights_stride = tokens;
      p.partial = partial.data();
      p.out = out.data();
      p.group = group;
      p.splits = splits;
      device::run_on_host<device::ValueMix<C>>(p, kvcc_grid_value_mix(&p), order);
      if (splits > 1) device::run_on_host<device::ValueMerge<C>>(p, kvcc_grid_value_merge(&p, dim), order);
      expect_within_rounding(out, wanted, tokens + splits, "sum");
      if (order == 0) first_result = out;
      ASSERT_EQ(out, first_result) << "order " << order << ", splits " << splits;
    }
  }
}

TEST(KeyParity, Widths) {
  check_key<1, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f16>(3, 3, 1, 0, 131, 1);
  check_key<2, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f16>(3, 3, 1, 0, 131, 2);
  check_key<3, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f16>(3, 3, 1, 0, 131, 3);
  check_key<4, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f16>(3, 3, 1, 0, 131, 4);
  check_key<5, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f16>(3, 3, 1, 0, 131, 5);
  check_key<6, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f16>(3, 3, 1, 0, 131, 6);
  check_key<7, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f16>(3, 3, 1, 0, 131, 7);
  check_key<8, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f16>(3, 3, 1, 0, 131, 8);
}
TEST(KeyParity, HeadDims) {
  check_key<3, 16, Sparse::csr, Rope::half, 16, 1, Dtype::f32>(1, 1, 0, 0, 100, 1);
  check_key<3, 80, Sparse::csr, Rope::half, 80, 2, Dtype::f32>(2, 2, 4, 0, 100, 2);
  check_key<5, 96, Sparse::csr, Rope::half, 96, 4, Dtype::f32>(2, 4, 0, 0, 100, 3);
  check_key<3, 128, Sparse::csr, Rope::half, 128, 8, Dtype::f32>(2, 8, 1, 0, 100, 4);
  check_key<3, 192, Sparse::csr, Rope::half, 192, 1, Dtype::f32>(1, 1, 1, 0, 100, 5);
  check_key<4, 256, Sparse::csr, Rope::half, 256, 2, Dtype::f32>(1, 2, 1, 0, 100, 6);
}
TEST(KeyParity, RopeKindsAndDtypes) {
  check_key<3, 64, Sparse::none, Rope::none, 0, 3, Dtype::bf16>(2, 3, 1, 0, 90, 1);
  check_key<3, 64, Sparse::csr, Rope::interleaved, 64, 3, Dtype::bf16>(2, 3, 1, 0, 90, 2);
  check_key<3, 64, Sparse::csr, Rope::half, 32, 3, Dtype::bf16>(2, 3, 1, 0, 90, 3);
  check_key<2, 80, Sparse::none, Rope::interleaved, 20, 3, Dtype::f16>(2, 3, 0, 0, 90, 4);
}
TEST(KeyParity, GroupsLargerThanATile) {  // 20 query heads a KV head: tiles of 8, 8 and 4
  check_key<2, 32, Sparse::csr, Rope::half, 32, 8, Dtype::f32>(2, 20, 1, 0, 90, 1);
}
TEST(F64_KeyParity, NineQueryHeadsOverThreeKeyHeads) {
  check_key<4, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f16>(3, 3, 1, 0, 200, 64);
}
TEST(KeyParity, ResidualWindow) {
  check_key<3, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f32>(2, 3, 1, 40, 131, 1);
  check_key<3, 64, Sparse::csr, Rope::half, 64, 3, Dtype::f32>(2, 3, 4, 40, 30, 2);  // all of it in the window
  check_key<3, 64, Sparse::none, Rope::half, 64, 3, Dtype::f32>(2, 3, 0, 7, 131, 3);
}

TEST(ValueParity, Widths) {
  check_value<1, 64, Sparse::tail, 3, Dtype::f16>(3, 3, 1, 1, 0, 131, 1);
  check_value<2, 64, Sparse::tail, 3, Dtype::f16>(3, 3, 1, 1, 0, 131, 2);
  check_value<3, 64, Sparse::tail, 3, Dtype::f16>(3, 3, 1, 1, 0, 131, 3);
  check_value<4, 64, Sparse::tail, 3, Dtype::f16>(3, 3, 1, 1, 0, 131, 4);
  check_value<5, 64, Sparse::tail, 3, Dtype::f16>(3, 3, 1, 1, 0, 131, 5);
  check_value<8, 64, Sparse::tail, 3, Dtype::f16>(3, 3, 1, 1, 0, 131, 8);
}
TEST(ValueParity, HeadDimsAndTails) {
  check_value<3, 16, Sparse::tail, 1, Dtype::f32>(1, 1, 7, 0, 0, 100, 1);  // 2 inliers of 16
  check_value<3, 80, Sparse::tail, 2, Dtype::f32>(2, 2, 3, 4, 0, 100, 2);
  check_value<5, 96, Sparse::none, 4, Dtype::bf16>(2, 4, 0, 0, 0, 100, 3);
  check_value<3, 128, Sparse::tail, 8, Dtype::bf16>(8, 8, 21, 1, 0, 100, 4);
  check_value<3, 192, Sparse::tail, 1, Dtype::f32>(1, 1, 5, 1, 0, 100, 5);
  check_value<4, 256, Sparse::tail, 2, Dtype::f32>(3, 2, 4, 1, 0, 100, 6);
}
TEST(ValueParity, ResidualWindow) {
  check_value<3, 64, Sparse::tail, 3, Dtype::f32>(2, 3, 2, 1, 40, 131, 1);
  check_value<3, 64, Sparse::none, 3, Dtype::f32>(2, 3, 0, 0, 200, 131, 2);
}

// Heads of 2, 4 and 3 bits in one layer: one unit a width, and together they give the reference's bytes.
TEST(MixedWidths, UnitsTogetherEqualTheReference) {
  const std::vector<uint8_t> bits = {3, 2, 4, 2};
  constexpr int heads = 4, dim = 64, tokens = 100;
  std::mt19937 random(5);
  const auto keys = make_channel_quantiser(heads, dim, bits, true, random);
  const auto x = make_rows(tokens, heads * dim, random);
  auto wanted = reference::pack(keys, x, {.sink = 1});
  auto cache = reference::make_cache(keys, tokens, {.sink = 1, .capacity = wanted.shape.entries});
  const auto pack_key = [&]<int b>() {
    using C = Config<b, dim, Axis::channel, Sparse::csr, Rope::none, 0, 1, Dtype::f32, true>;
    pack_on_host<device::PackChannel<C>>(keys, x, Dtype::f32, {tokens}, 7, cache);
  };
  pack_key.operator()<2>();
  pack_key.operator()<4>();
  EXPECT_NE(cache.pages, wanted.pages);
  pack_key.operator()<3>();
  EXPECT_EQ(cache.pages, wanted.pages);
  EXPECT_EQ(cache.exact, wanted.exact);

  const auto unpacked = reference::unpack(keys, wanted);
  std::vector<float> out(unpacked.size());
  const int32_t length = tokens, first = 0;
  KvccDequantiseParams p{};
  p.cache = view(wanted, &length);
  set_constants(p.cache, keys);
  p.out = out.data();
  p.first = &first;
  p.count = tokens;
  const auto dequantise = [&]<int b>() {
    using C = Config<b, dim, Axis::channel, Sparse::csr, Rope::none, 0, 1, Dtype::f32, true>;
    device::run_on_host<device::Dequantise<C>>(p, kvcc_grid_dequantise(&p, dim), 3);
  };
  dequantise.operator()<2>();
  dequantise.operator()<3>();
  dequantise.operator()<4>();
  EXPECT_EQ(std::memcmp(out.data(), unpacked.data(), out.size() * 4), 0);

  const auto values = make_token_quantiser(heads, dim, bits, 3, random);
  wanted = reference::pack(values, x, {});
  cache = reference::make_cache(values, tokens, {});
  const auto pack_value = [&]<int b>() {
    using C = Config<b, dim, Axis::token, Sparse::tail, Rope::none, 0, 1, Dtype::f32, true>;
    pack_on_host<device::PackToken<C>>(values, x, Dtype::f32, {tokens}, 7, cache);
  };
  pack_value.operator()<2>();
  pack_value.operator()<3>();
  pack_value.operator()<4>();
  EXPECT_EQ(cache.pages, wanted.pages);
}

using SmallKey = Config<3, 64, Axis::channel, Sparse::csr, Rope::half, 64, 3, Dtype::f32>;

// A page with more outliers than it can hold is reported, never written past, and right after growing.
TEST(Overflow, PageIsReportedAndPackedAgain) {
  std::mt19937 random(9);
  const auto q = make_channel_quantiser(2, 64, {3, 3}, true, random);
  const auto x = make_rows(64, 128, random);
  const auto wanted = reference::pack(q, x, {});
  ASSERT_GT(wanted.needed[0], 33u);
  auto small = reference::make_cache(q, 64, {.capacity = 32});
  const std::vector<uint8_t> guard(256, 0xab);
  small.pages.insert(small.pages.end(), guard.begin(), guard.end());
  pack_on_host<device::PackChannel<SmallKey>>(q, x, Dtype::f32, {64}, 0, small);
  EXPECT_TRUE(std::equal(guard.begin(), guard.end(), small.pages.end() - 256));
  EXPECT_EQ(small.needed[0], wanted.needed[0]);  // the host sees it, and makes the pages larger
  auto grown = reference::make_cache(q, 64, {.capacity = wanted.shape.entries});
  pack_on_host<device::PackChannel<SmallKey>>(q, x, Dtype::f32, {64}, 0, grown);
  EXPECT_EQ(grown.pages, wanted.pages);
}

TEST(Status, ValuesThatCannotBeStoredAreReported) {
  std::mt19937 random(11);
  const auto key = make_channel_quantiser(2, 64, {3, 3}, true, random);
  const auto value = make_token_quantiser(2, 64, {3, 3}, 1, random);
  using V = Config<3, 64, Axis::token, Sparse::tail, Rope::none, 0, 1, Dtype::f32>;
  const float nan = bits_float(0x7fc00000u), infinity = bits_float(0x7f800000u);
  const auto status_of = [&](float bad, int token, int sink) {
    auto x = make_rows(5, 128, random);
    x[token * 128 + 77] = bad;
    auto keys = reference::make_cache(key, 5, {.sink = sink, .capacity = 4096});
    auto values = reference::make_cache(value, 5, {.sink = sink});
    return std::pair(pack_on_host<device::PackChannel<SmallKey>>(key, x, Dtype::f32, {5}, 0, keys),
                     pack_on_host<device::PackToken<V>>(value, x, Dtype::f32, {5}, 0, values));
  };
  const std::pair<uint32_t, uint32_t> bad(KVCC_STATUS_RANGE, KVCC_STATUS_RANGE), good(0, 0);
  EXPECT_EQ(status_of(1.0f, 2, 1), good);
  EXPECT_EQ(status_of(65504.0f, 2, 1), good);
  EXPECT_EQ(status_of(70000.0f, 2, 1), bad);  // stored exactly as an outlier
  EXPECT_EQ(status_of(70000.0f, 0, 1), bad);  // stored exactly as a sink
  EXPECT_EQ(status_of(nan, 2, 1), bad);
  EXPECT_EQ(status_of(-infinity, 2, 0), bad);
}

// Two sequences of unequal lengths in one launch, their pages in one pool in an order given by a table.
TEST(Batch, PagedSequencesEqualSeparateOnes) {
  constexpr int heads = 2, dim = 64, group = 3, pages = 3;
  std::mt19937 random(13);
  const auto q = make_channel_quantiser(heads, dim, {3, 3}, true, random);
  const int32_t lengths[2] = {150, 70}, first[2] = {0, 0};
  std::vector<float> x[2], query[2], wanted;
  const auto rope = make_rope(dim, false, 150);
  std::vector<uint8_t> queries;
  for (int s = 0; s < 2; ++s) {
    x[s] = make_rows(lengths[s], heads * dim, random);
    query[s] = make_rows(heads * group, dim, random);
    const auto bytes = as_dtype(query[s], Dtype::f32);
    queries.insert(queries.end(), bytes.begin(), bytes.end());
  }
  auto cache = reference::make_cache(q, 2 * pages * 64, {.sink = 1, .capacity = 8192});
  cache.exact.resize(2 * heads * dim);
  cache.needed.assign(2 * pages, 0);
  const int32_t table[2 * pages] = {4, 1, 2, 0, 5, 3};
  for (int s = 0; s < 2; ++s) {  // pack one sequence at a time into its pages of the pool
    uint32_t status = 0;
    KvccPackParams p{};
    p.cache = view(cache, nullptr);
    set_constants(p.cache, q);
    p.cache.page_table = table + s * pages;
    p.cache.max_pages = pages;
    p.cache.exact += s * heads * dim;
    p.cache.needed += s * pages;
    p.x = x[s].data();
    p.first = first;
    p.count = lengths[s];
    p.status = &status;
    device::run_on_host<device::PackChannel<SmallKey>>(p, kvcc_grid_pack_channel(&p), 5);
  }
  std::vector<float> scores(2 * heads * group * 160, -1.0f);
  KvccKeyScoresParams p{};
  p.cache = view(cache, lengths);
  set_constants(p.cache, q);
  p.cache.page_table = table;
  p.cache.max_pages = pages;
  p.cache.sequences = 2;
  p.query = queries.data();
  p.cosine = rope.cosine.data();
  p.sine = rope.sine.data();
  p.scores = scores.data();
  p.scores_stride = 160;
  p.multiplier = 1.0f;
  p.group = group;
  p.max_length = 150;
  device::run_on_host<device::KeyScores<SmallKey>>(p, kvcc_grid_key_scores(&p, dim), 3);
  for (int s = 0; s < 2; ++s) {
    auto alone = reference::pack(q, x[s], {.sink = 1});
    const auto sums = reference::key_scores(reference::unpack(q, alone), query[s], heads, dim, group, rope, 1.0f);
    for (int row = 0; row < heads * group; ++row) {
      for (int t = 0; t < 160; ++t) {
        const float found = scores[(s * heads * group + row) * 160 + t];
        if (t >= lengths[s]) {
          ASSERT_EQ(found, -1.0f);
        } else {
          const size_t i = static_cast<size_t>(row) * lengths[s] + t;
          ASSERT_NEAR(found, sums.value[i], std::ldexp(dim + 2, -23) * sums.magnitude[i]);
        }
      }
    }
  }
}

// unpack(pack(x)) is what eval simulates.
TEST(Reference, UnpackEqualsRoundTrip) {
  std::mt19937 random(17);
  for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const auto key = make_channel_quantiser(3, 80, std::vector<uint8_t>(3, bits), true, random);
    const auto x = make_rows(150, 240, random);
    std::vector<float> simulated(x.size());
    round_trip(key, x, simulated);
    const auto keys = reference::unpack(key, reference::pack(key, x, {}));
    EXPECT_EQ(std::memcmp(keys.data(), simulated.data(), x.size() * 4), 0) << bits;
    const auto value = make_token_quantiser(3, 80, std::vector<uint8_t>(3, bits), 2, random);
    round_trip(value, x, simulated);
    const auto values = reference::unpack(value, reference::pack(value, x, {}));
    EXPECT_EQ(std::memcmp(values.data(), simulated.data(), x.size() * 4), 0) << bits;
  }
}

}  // namespace
}  // namespace kvcc::test
