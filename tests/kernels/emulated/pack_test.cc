// Every shipped row of pack_key and pack_value of layout mma-1 in the emulator: bytes equal to the reference's, under
// every schedule. Pages start as 0xab, so that whatever is written beside the layout's parts shows.
#include "kernels/device/copy_pages.cuh"
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
                 uint32_t* status, const emulator::Options& options, int32_t repeat_above = 0) {
  const std::vector<uint8_t> bytes = as_dtype(x, C::kDtype);
  std::vector<uint32_t> selected(first.size() * count * 2 * cache.tail, 0xabababab);
  std::vector<float> inliers(first.size() * count * 2, bits_float(0x7fc00000u));
  KvccPackParams p{};
  p.cache = cache;
  p.x = bytes.data();
  p.first = first.data();
  p.count = count;
  p.status = status;
  p.repeat_above = repeat_above;
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
Pool pack_batch(const Shape& shape, Packed<C>& wanted, const emulator::Options& options) {
  const size_t sequences = shape.lengths.size(), columns = static_cast<size_t>(shape.heads) * C::kHeadDim;
  Pool pool;
  pool.pages.assign(wanted.batch.pages.size(), kUntouched);
  pool.exact.assign(wanted.batch.exact.size(), 0xabab);
  pool.needed.assign(wanted.batch.needed.size(), 0);
  KvccCache cache = wanted.view();
  cache.lengths = nullptr;
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
      if (one.page_table != nullptr) {
        one.page_table += s * cache.max_pages;
      } else {
        one.pages += s * cache.max_pages * cache.page_bytes;
      }
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

/// A call that one head's lists are too short for, in the middle of a page and in one that it begins; then the same
/// call on larger copies of the pages, for the tiles that overflowed alone.
template <class C>
void check_repeat() {
  constexpr int kTokens = kSmall ? 20 : 112, kBefore = kSmall ? 8 : 24, kSink = 1, kHeads = 2;
  const Shape shape{"repeat", {kTokens}, kSink, 0, 0, 1, 1, Outliers::full, kHeads};
  std::mt19937 random(1);
  const auto q = make_quantiser<C>(shape, {C::kBits, C::kBits}, random);
  const int columns = kHeads * C::kHeadDim;
  auto x = make_rows(kTokens, columns, random);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % columns < C::kHeadDim) x[i] *= 0.5f;
  }
  const auto pack = [&](int tokens, uint32_t capacity) {
    return reference::pack_mma(q, C::kTensor, {x.begin(), x.begin() + tokens * columns},
                               {.sink = kSink, .capacity = capacity});
  };
  const uint32_t capacity = pack(kBefore, 4).shape.capacity;
  reference::MmaCache before = pack(kBefore, capacity), wanted = pack(kTokens, 4);
  ASSERT_EQ(before.shape.capacity, capacity);
  uint32_t above = 0;  // as if a list had just held head 0's fullest tile
  for (size_t i = 0; i < wanted.needed.size(); i += kHeads) above = std::max(above, wanted.needed[i]);
  ASSERT_GT(above, 0u);
  ASSERT_LE(above, capacity);
  for (size_t i = 1; i < wanted.needed.size(); i += kHeads) ASSERT_GT(wanted.needed[i], capacity);

  const auto make = [&](const reference::MmaCache& like) {
    reference::MmaCache cache =
        reference::make_mma_cache(q, C::kTensor, kTokens, {.sink = kSink, .capacity = like.shape.capacity});
    std::fill(cache.pages.begin(), cache.pages.end(), kUntouched);
    return cache;
  };
  struct Result {
    std::vector<uint8_t> earlier, failed, pages;
    std::vector<uint32_t> needed_first, needed;
    uint32_t status = 0;
    bool operator==(const Result&) const = default;
  };
  const auto run = [&](const emulator::Options& options) {
    Result result;
    reference::MmaCache small = make(before), large = make(wanted);
    const auto launch = [&](reference::MmaCache& cache, int first, int count, int32_t above) {
      KvccCache c = view(cache, nullptr);
      set_constants(c, q);
      const auto from = x.begin() + first * columns;
      launch_pack<C>(c, {from, from + count * columns}, {first}, count, &result.status, options, above);
    };
    launch(small, 0, kBefore, 0);
    result.earlier = small.pages;
    launch(small, kBefore, kTokens - kBefore, 0);
    result.failed = small.pages;
    large.needed = result.needed_first = small.needed;
    KvccCopyPagesParams p{};
    const int32_t pairs[] = {0, 0, 1, 1};
    p.source = small.pages.data();
    p.target = large.pages.data();
    p.pairs = pairs;
    p.source_page_bytes = static_cast<int64_t>(mma::page_bytes(small.shape));
    p.target_page_bytes = static_cast<int64_t>(mma::page_bytes(large.shape));
    p.fixed_bytes = static_cast<int64_t>(mma::records_offset(small.shape));
    p.lists = kHeads;
    p.source_capacity = static_cast<int32_t>(small.shape.capacity);
    p.target_capacity = static_cast<int32_t>(large.shape.capacity);
    p.count = small.page_count();
    emulator::run<device::CopyPages>(p, kvcc_grid_copy_pages(&p), options, "copy_pages");
    launch(large, kBefore, kTokens - kBefore, static_cast<int32_t>(above));
    result.pages = large.pages;
    result.needed = large.needed;
    return result;
  };
  const Result found = under_all_schedules(run);
  EXPECT_EQ(found.status, 0u);
  EXPECT_EQ(found.needed_first, wanted.needed);
  EXPECT_EQ(found.needed, wanted.needed);
  const mma::PageShape& s = before.shape;
  const auto part = [&](const std::vector<uint8_t>& pages, int page, uint64_t offset, uint64_t bytes) {
    const auto from = pages.begin() + page * mma::page_bytes(s) + offset;
    return std::vector<uint8_t>(from, from + bytes);
  };
  // Head 1 of the page that was continued, and of the page that was begun.
  const uint64_t ends = mma::ends_offset(s) + s.classes * 2, records = mma::records_offset(s) + capacity * 4;
  EXPECT_EQ(part(found.failed, 0, ends, s.classes * 2), part(found.earlier, 0, ends, s.classes * 2));
  EXPECT_EQ(part(found.failed, 0, records, capacity * 4), part(found.earlier, 0, records, capacity * 4));
  if (!kSmall) {
    EXPECT_EQ(part(found.failed, 1, ends, s.classes * 2), std::vector<uint8_t>(s.classes * 2, 0));
    EXPECT_EQ(part(found.failed, 1, records, capacity * 4), std::vector<uint8_t>(capacity * 4, kUntouched));
  }
  for (int i = 0; i < wanted.page_count(); ++i) {
    const std::vector<bool> is = meaning(wanted, i, std::min(kTokens - kSink - i * 64, 64));
    for (size_t b = 0; b < is.size(); ++b) {
      ASSERT_EQ(found.pages[i * is.size() + b], is[b] ? wanted.page(i)[b] : kUntouched)
          << "page " << i << ", byte " << b;
    }
  }
}
TEST(EmulatedPackKey, OverflowIsRepeatedOnLargerPages) {
  check_repeat<MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr>>();
}
TEST(EmulatedPackValue, OverflowIsRepeatedOnLargerPages) {
  check_repeat<MmaConfig<Tensor::value, 3, 64, Axis::token, Sparse::tail>>();
}

}  // namespace
}  // namespace kvcc::test
