// Tiles of layout mma-1 that need more records than their lists hold: what a call of pack leaves of them, and the same
// call repeated on larger pages, as a host does it in the middle of decoding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/device/copy_pages.cuh"
#include "kernels/device/mma_dequantise.cuh"
#include "tests/kernels/mma_append.h"

namespace kvcc::test {
namespace {

constexpr int kSink = 1;

/// A tile's class ends, then its list as far as bytes of `capacity` records go.
std::vector<uint8_t> lists_of(const MmaCache& cache, int64_t page, uint32_t head, uint32_t capacity) {
  const mma::PageShape& s = cache.shape;
  const uint8_t* const ends = cache.page(page) + mma::ends_offset(s) + head * s.classes * 2;
  const uint8_t* const records = cache.page(page) + mma::records_offset(s) + uint64_t{head} * s.capacity * 4;
  std::vector<uint8_t> bytes(ends, ends + s.classes * 2);
  bytes.insert(bytes.end(), records, records + std::min(capacity, s.capacity) * 4);
  return bytes;
}

/// Decoding of tensors whose heads have the widths of the Units, which are alike otherwise.
template <class... Units>
class Decoding {
 public:
  using Any = std::tuple_element_t<0, std::tuple<Units...>>;

  /// Head 1 has most of the outliers.
  Decoding(std::vector<uint8_t> bits, int tail, const std::vector<int>& calls, uint32_t seed)
      : random_(seed), seed_(seed), calls_(calls) {
    columns_ = static_cast<int>(bits.size()) * Any::kHeadDim;
    q_ = make_quantiser<Any>(static_cast<int>(bits.size()), bits, tail, random_);
    x_ = make_rows(std::accumulate(calls.begin(), calls.end(), 0), columns_, random_);
    for (size_t i = 0; i < x_.size(); ++i) {
      const bool hot = i % columns_ / Any::kHeadDim == 1;
      if (Any::kAxis == Axis::channel && hot) x_[i] *= 4.0f;
      if (Any::kAxis == Axis::token && !hot) x_[i] *= 0.5f;
    }
    cache_ = empty(4);
  }

  void run() {
    int first = 0;
    for (const int count : calls_) {
      MmaCache before = cache_;
      pack(first, count, 0);
      for (int tries = 0; overflows(); ++tries) {
        ASSERT_LT(tries, 12);
        ASSERT_NO_FATAL_FAILURE(expect_kept(before, first, count));
        ASSERT_NO_FATAL_FAILURE(expect_readable(first));
        const int32_t above = fullest_that_fits();
        grow();
        before = cache_;
        pack(first, count, above);
      }
      first += count;
    }
    MmaCache at_once = empty(cache_.shape.capacity);
    (append<Units>(q_, x_, 0, {first}, 0, view(at_once, nullptr)), ...);
    ASSERT_EQ(at_once.needed, cache_.needed);
    ASSERT_GT(cache_.needed[0], 0u);  // so that it shows when a tile that had room is packed twice
    ASSERT_EQ(at_once.pages, cache_.pages);
    ASSERT_NO_FATAL_FAILURE(expect_cache(prefix(first), cache_, first));
  }

  int alone = 0, begun = 0, too_small = 0;  ///< overflows of one tile of several; of pages begun; again when repeated

 private:
  MmaCache empty(uint32_t capacity) {
    return untouched_cache(q_, Any::kTensor, static_cast<int64_t>(x_.size()) / columns_,
                           {.sink = kSink, .capacity = capacity});
  }
  MmaCache prefix(int tokens) {
    const std::vector<float> part(x_.begin(), x_.begin() + static_cast<int64_t>(tokens) * columns_);
    return reference::pack_mma(q_, Any::kTensor, part, {.sink = kSink, .capacity = cache_.shape.capacity});
  }
  bool overflows() const {
    return *std::max_element(cache_.needed.begin(), cache_.needed.end()) > cache_.shape.capacity;
  }
  /// Records of the fullest tile that had room: as if the list had just held them, or else the capacity.
  int32_t fullest_that_fits() const {
    uint32_t most = 0;
    for (const uint32_t needed : cache_.needed) most = std::max(most, needed <= cache_.shape.capacity ? needed : 0u);
    return static_cast<int32_t>(most > 0 ? most : cache_.shape.capacity);
  }
  void pack(int first, int count, int32_t repeat_above) {
    ASSERT_EQ((0u | ... | append<Units>(q_, x_, first, {count}, seed_, view(cache_, nullptr), repeat_above)), 0u);
    too_small += repeat_above > 0 && overflows();
  }
  void grow() {
    MmaCache larger = empty(2 * cache_.shape.capacity);
    larger.exact = cache_.exact;
    larger.needed = cache_.needed;
    std::vector<int32_t> pairs;
    for (int32_t i = 0; i < cache_.page_count(); ++i) pairs.insert(pairs.end(), {i, i});
    const auto p = copy_params(cache_, larger, pairs);
    device::run_on_host<device::CopyPages>(p, kvcc_grid_copy_pages(&p), seed_);
    cache_ = std::move(larger);
  }

  /// Tiles without room hold what they held before the call, all others the call's tokens; `needed` is true of both.
  void expect_kept(const MmaCache& before, int first, int count) {
    const MmaCache after = prefix(first + count);
    const uint32_t capacity = cache_.shape.capacity;
    for (int64_t i = std::max(first - kSink, 0) / 64; i < after.page_count(); ++i) {
      int full = 0;
      for (int h = 0; h < cache_.heads; ++h) {
        SCOPED_TRACE(testing::Message() << "page " << i << ", head " << h << ", tokens from " << first);
        const uint32_t needed = after.needed[i * cache_.heads + h];
        ASSERT_EQ(cache_.needed[i * cache_.heads + h], needed);
        const auto found = lists_of(cache_, i, h, capacity);
        if (needed <= capacity) {
          const auto wanted = lists_of(after, i, h, needed);
          ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), found.begin()));
          continue;
        }
        ++full;
        auto wanted = lists_of(before, i, h, capacity);
        if (first - kSink <= i * 64) {
          ++begun;
          std::fill_n(wanted.begin(), cache_.shape.classes * 2, uint8_t{0});
        }
        ASSERT_EQ(found, wanted);
      }
      alone += full == 1 && cache_.heads > 1;
    }
  }
  /// The tokens before the call.
  void expect_readable(int32_t length) {
    const MmaCache before = prefix(length);
    const auto wanted = reference::unpack(q_, before);
    std::vector<float> out(wanted.size());
    const int32_t from = 0;
    KvccDequantiseParams p{};
    p.cache = view(cache_, &length);
    set_constants(p.cache, q_);
    p.out = out.data();
    p.first = &from;
    p.count = length;
    if (length == 0) return;  // nothing to read, and memcmp takes no null pointer
    (device::run_on_host<device::MmaDequantise<Units>>(p, kvcc_grid_mma_dequantise(&p), 1), ...);
    ASSERT_EQ(std::memcmp(out.data(), wanted.data(), out.size() * 4), 0) << "tokens below " << length;
  }

  std::mt19937 random_;
  uint32_t seed_;
  std::vector<int> calls_;
  int columns_ = 0;
  Quantiser<Any> q_;
  std::vector<float> x_;
  MmaCache cache_;
};

template <Tensor tensor, int bits, Axis axis, Sparse sparse, bool mixed = false>
using Unit = MmaConfig<tensor, bits, 64, axis, sparse, Rope::none, 0, 8, Dtype::f16, mixed>;
template <int bits, bool mixed = false>
using Key = Unit<Tensor::key, bits, Axis::channel, Sparse::csr, mixed>;
template <int bits, bool mixed = false>
using Value = Unit<Tensor::value, bits, Axis::token, Sparse::tail, mixed>;

template <class... Units>
void check(const std::vector<uint8_t>& bits, int tail) {
  for (const auto& calls : {std::vector<int>(100, 1), std::vector<int>{30, 5, 60, 1, 60, 11}}) {
    for (const uint32_t seed : {0u, 1u}) {
      SCOPED_TRACE(testing::Message() << calls.size() << " calls, seed " << seed);
      Decoding<Units...> decoding(bits, tail, calls, seed);
      ASSERT_NO_FATAL_FAILURE(decoding.run());
      EXPECT_GT(decoding.alone, 0);
      EXPECT_GT(decoding.begun, 0);
      EXPECT_TRUE(decoding.too_small > 0 || calls.size() > 10);
    }
  }
}
TEST(MmaPackOverflow, KeysAreRepeatedOnLargerPages) { check<Key<3>>({3, 3, 3}, 0); }
TEST(MmaPackOverflow, ValuesAreRepeatedOnLargerPages) { check<Value<3>>({3, 3, 3}, 4); }
TEST(MmaPackOverflow, TokenAxisKeysAreRepeatedOnLargerPages) {
  check<Unit<Tensor::key, 4, Axis::token, Sparse::tail>>({4, 4}, 6);
}
TEST(MmaPackOverflow, MixedWidthsAreRepeatedOnLargerPages) {
  check<Key<2, true>, Key<3, true>>({3, 2, 3}, 0);
  check<Value<2, true>, Value<4, true>>({2, 4, 2}, 4);
}

// Class ends as no pack writes them, above the capacity in classes before the last: nothing past the list is written.
TEST(MmaPackOverflow, StrayClassEndsDoNotLeadPastTheList) {
  std::mt19937 random(4);
  const auto q = make_quantiser<Key<3>>(1, {3}, 0, random);
  const auto x = make_rows(20, 64, random);
  auto cache = untouched_cache(q, Tensor::key, 20, {.capacity = 1024});
  auto* const ends = reinterpret_cast<uint16_t*>(cache.page(0) + mma::ends_offset(cache.shape));
  for (int c = 0; c < 8; ++c) ends[c] = c == 7 ? 40 : 60000;
  KvccCache c = view(cache, nullptr);
  c.sparse_capacity = 512;  // of the 1024 that there is memory for
  append<Key<3>>(q, x, 10, {10}, 0, c);
  EXPECT_LE(cache.needed[0], 512u);
  EXPECT_GT(cache.needed[0], 40u);
  EXPECT_TRUE(std::all_of(cache.page(0) + mma::records_offset(cache.shape) + 512 * 4,
                          cache.page(0) + cache.pages.size(), [](uint8_t byte) { return byte == kUntouched; }));
}

}  // namespace
}  // namespace kvcc::test
