// What a pool of mma-1 pages goes through: pages moved to larger ones, values that cannot be stored. Tiles with more
// records than their lists hold: mma_repeat_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/device/copy_pages.cuh"
#include "tests/kernels/mma_append.h"

namespace kvcc::test {
namespace {

using SmallKey = MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr, Rope::half, 64, 8, Dtype::f32>;

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
