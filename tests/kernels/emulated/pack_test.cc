// Every shipped row of pack_key and pack_value of layout mma-1 in the emulator: bytes equal to the reference's, under
// every schedule. Pages start as 0xab, so that whatever is written beside the layout's parts shows.
#include "kernels/device/mma_pack.cuh"
#include "tests/kernels/emulated/batches.h"

namespace kvcc::test {
namespace {

constexpr uint8_t kUntouched = 0xab;

struct Pool {
  std::vector<uint8_t> pages;
  std::vector<uint16_t> exact;
  std::vector<uint32_t> needed;
  uint32_t status = 0;
  bool operator==(const Pool&) const = default;
};

/// x [sequences, count, H, D] appended to the cache's sequences at `first`.
template <class C>
void launch_pack(const KvccCache& cache, const std::vector<float>& x, const std::vector<int32_t>& first, int count,
                 uint32_t* status, const emulator::Options& options) {
  const std::vector<uint8_t> bytes = as_dtype(x, C::kDtype);
  std::vector<uint32_t> selected(first.size() * count * 2 * cache.tail, 0xabababab);
  std::vector<float> inliers(first.size() * count * 2, bits_float(0x7fc00000u));
  KvccPackParams p{};
  p.cache = cache;
  p.x = bytes.data();
  p.first = first.data();
  p.count = count;
  p.status = status;
  if constexpr (C::kAxis == Axis::token) {
    p.selected = selected.data();
    p.inliers = inliers.data();
    emulator::run<device::MmaSelect<C>>(p, kvcc_grid_mma_pack_select(&p), options, "pack_select");
  }
  emulator::run<device::MmaPack<C>>(p, kvcc_grid_mma_pack(&p), options, "pack");
}

/// Tokens of a sequence that are packed or sinks: those of the residual ring are the host's.
int packed_tokens(const Shape& shape, size_t s) {
  return std::max(shape.lengths[s] - shape.residual, std::min(shape.lengths[s], shape.sink));
}

/// Each sequence alone up to its last few tokens, then these of all sequences in one launch.
template <class C>
Pool pack_batch(const Shape& shape, Packed<C>& wanted, const emulator::Options& options, int32_t capacity = -1) {
  const size_t sequences = shape.lengths.size(), columns = static_cast<size_t>(shape.heads) * C::kHeadDim;
  Pool pool;
  pool.pages.assign(wanted.batch.pages.size(), kUntouched);
  pool.exact.assign(wanted.batch.exact.size(), 0xabab);
  pool.needed.assign(wanted.batch.needed.size(), 0);
  KvccCache cache = wanted.view();
  cache.lengths = nullptr;
  if (capacity >= 0) cache.sparse_capacity = capacity;
  cache.pages = pool.pages.data();
  cache.exact = pool.exact.empty() ? nullptr : pool.exact.data();
  cache.needed = cache.needed == nullptr ? nullptr : pool.needed.data();
  int together = 5;
  for (size_t s = 0; s < sequences; ++s) together = std::min(together, packed_tokens(shape, s));
  std::vector<float> last;
  std::vector<int32_t> first;
  for (size_t s = 0; s < sequences; ++s) {
    const int alone = packed_tokens(shape, s) - together;
    const auto begin = wanted.rows[s].begin();
    if (alone > 0) {
      KvccCache one = cache;
      one.sequences = 1;
      one.page_table += s * cache.max_pages;
      if (one.exact != nullptr) one.exact += s * (cache.sink + cache.residual) * columns;
      if (one.needed != nullptr) one.needed += s * cache.max_pages * cache.heads;
      launch_pack<C>(one, {begin, begin + alone * columns}, {0}, alone, &pool.status, options);
    }
    first.push_back(alone);
    last.insert(last.end(), begin + alone * columns, begin + (alone + together) * columns);
  }
  if (together > 0) launch_pack<C>(cache, last, first, together, &pool.status, options);
  return pool;
}

template <class C>
void check_pack(const Shape& shape, std::mt19937& random) {
  Packed<C> wanted = make_packed<C>(shape, random);
  const Pool found = under_all_schedules([&](const auto& options) { return pack_batch<C>(shape, wanted, options); });
  EXPECT_EQ(found.status, 0u);
  EXPECT_EQ(found.needed, wanted.batch.needed);
  const size_t page_bytes = mma::page_bytes(wanted.batch.shape.shape);
  std::vector<uint8_t> expected(found.pages.size(), kUntouched);
  for (size_t s = 0; s < shape.lengths.size(); ++s) {
    const reference::MmaCache& cache = wanted.caches[s];
    for (int i = 0; i < cache.page_count(); ++i) {
      const int64_t tokens = std::min<int64_t>(packed_tokens(shape, s) - shape.sink - i * 64, 64);
      if (tokens <= 0) continue;
      const std::vector<bool> is = meaning(cache, i, tokens);
      const size_t at = wanted.batch.page(s, i) - wanted.batch.pages.data();
      for (size_t b = 0; b < page_bytes; ++b) {
        if (is[b]) expected[at + b] = cache.page(i)[b];
      }
    }
    const size_t row = static_cast<size_t>(shape.heads) * C::kHeadDim;
    for (size_t i = 0; i < (shape.sink + shape.residual) * row; ++i) {
      const bool written = i < std::min(shape.lengths[s], shape.sink) * row;
      ASSERT_EQ(found.exact[s * (shape.sink + shape.residual) * row + i], written ? cache.exact[i] : 0xabab)
          << "exact element " << i << " of sequence " << s;
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found.pages[i], expected[i]) << "byte " << i % page_bytes << " of pool page " << i / page_bytes;
  }
}

template <class C>
void check_row() {
  if constexpr (included(C::kHeadDim)) {
    over_shapes(edge_shapes_of_rows(C::kAxis), check_pack<C>);
  } else {
    GTEST_SKIP() << "not of this build";
  }
}

#define KVCC_ROW(name, ...) \
  TEST(KVCC_SUITE, name) { check_row<__VA_ARGS__>(); }
#define KVCC_SUITE EmulatedPackKey
#define KVCC_TENSOR key
#include "kernels/list/mma_pack_key.inc"
#undef KVCC_SUITE
#undef KVCC_TENSOR
#define KVCC_SUITE EmulatedPackValue
#define KVCC_TENSOR value
#include "kernels/list/mma_pack_value.inc"

/// Lists that are too short: the true counts are reported, the codes right, and nothing is written past the lists.
template <class C>
void check_overflow() {
  const Shape shape{"overflow", {kSmall ? 30 : 64}, 0, 0, 0, 1, 1, Outliers::full, 1};
  std::mt19937 random(1);
  Packed<C> wanted = make_packed<C>(shape, random);
  constexpr uint32_t kCapacity = 40;
  const mma::PageShape& s = wanted.batch.shape.shape;
  ASSERT_GT(s.capacity, kCapacity);
  const Pool found = under_all_schedules(
      [&](const auto& options) { return pack_batch<C>(shape, wanted, options, static_cast<int32_t>(kCapacity)); });
  EXPECT_EQ(found.needed, wanted.batch.needed);
  const size_t first = wanted.batch.page(0, 0) - wanted.batch.pages.data();
  const uint8_t *page = found.pages.data() + first, *whole = wanted.caches[0].page(0);
  EXPECT_EQ(std::memcmp(page, whole, s.code_words * 4), 0);
  EXPECT_EQ(std::memcmp(page + mma::ends_offset(s), whole + mma::ends_offset(s), s.classes * 2), 0);
  for (size_t i = mma::records_offset(s) + kCapacity * 4; i < mma::page_bytes(s); ++i) {
    ASSERT_EQ(page[i], kUntouched) << "byte " << i << " lies past the list";
  }
}
TEST(EmulatedPackKey, OverflowIsReportedAndNotWritten) {
  check_overflow<MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr>>();
}
TEST(EmulatedPackValue, OverflowIsReportedAndNotWritten) {
  check_overflow<MmaConfig<Tensor::value, 3, 64, Axis::token, Sparse::tail>>();
}

}  // namespace
}  // namespace kvcc::test
