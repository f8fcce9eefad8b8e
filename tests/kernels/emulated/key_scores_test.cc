// Every shipped row of key_scores of layout mma-1 in the emulator: the same bits under every schedule, within the
// stated bound of scores in double, and nothing written where no visible position is.
#include "kernels/device/mma_key_scores.cuh"

#include "tests/kernels/emulated/readers.h"

namespace kvcc::test {
namespace {

constexpr float kUntouched = -12345.0f;
constexpr float kMultiplier = 0.125f;

template <class C>
std::vector<float> run_scores(const Shape& shape, KvccCache cache, const KvccRope& rope,
                              const std::vector<float>& query, int64_t stride, const emulator::Options& options,
                              std::vector<float> scores) {
  const AlignedBytes bytes(as_dtype(query, C::kDtype));
  KvccMmaKeyScoresParams p{};
  p.cache = cache;
  p.rope = rope;
  p.query = bytes.data();
  p.scores = scores.data();
  p.scores_stride = stride;
  p.multiplier = kMultiplier;
  p.group = shape.group;
  p.splits = shape.splits;
  p.window = shape.window;
  emulator::run<device::MmaKeyScores<C>>(p, kvcc_grid_mma_key_scores(&p), options, "key_scores");
  return scores;
}

template <class C>
void expect_scores(const Shape& shape, const Packed<C>& keys, const MmaRope& rope, const std::vector<float>& query,
                   const std::vector<float>& found, int64_t stride) {
  const int rows = shape.heads * shape.group;
  Errors errors;
  for (size_t s = 0; s < shape.lengths.size(); ++s) {
    const int length = shape.lengths[s];
    const auto q = rows_of_sequence(query, s, shape.lengths.size());
    const auto wanted = reference::key_scores(keys.unpacked[s], q, shape.heads, C::kHeadDim, shape.group,
                                              {rope.interleaved, rope.frequencies, rope.factor}, kMultiplier);
    const auto bounds = score_bounds(keys, s, q, shape.group, kMultiplier, rope.factor);
    for (int row = 0; row < rows; ++row) {
      for (int64_t p = 0; p < stride; ++p) {
        const float score = found[(s * rows + row) * stride + p];
        if (p < first_visible(shape, s) || p >= length) {
          ASSERT_EQ(score, kUntouched) << "sequence " << s << ", position " << p << " is not visible";
        } else {
          const size_t i = static_cast<size_t>(row) * length + p;
          errors.add(
              score, wanted.value[i], bounds[i],
              "sequence " + std::to_string(s) + ", query " + std::to_string(row) + ", position " + std::to_string(p));
        }
      }
    }
  }
  errors.expect_small(0.05);
}

template <class C>
void check_scores(const Shape& shape, std::mt19937& random) {
  Packed<C> keys = make_packed<C>(shape, random);
  const MmaRope rope =
      make_mma_rope(C::kRotaryDim, C::kRope == Rope::interleaved, longest(shape), C::kRotaryDim ? 1.25 : 1.0);
  std::vector<float> query = make_queries(shape, C::kHeadDim, random);
  for (int c = 0; c < C::kHeadDim; ++c) {  // a query that fp16 holds badly beside the others
    query[c] *= C::kDtype == Dtype::bf16 ? 0x1p40f : 0x1p10f;
    if (shape.group > 1) query[C::kHeadDim + c] *= C::kDtype == Dtype::bf16 ? 0x1p-40f : 0x1p-8f;
  }
  const int64_t stride = longest(shape) + 3;
  const std::vector<float> untouched(shape.lengths.size() * shape.heads * shape.group * stride, kUntouched);
  const auto found = under_all_schedules([&](const auto& options) {
    return bits_of(run_scores<C>(shape, keys.view(), rope.view(), query, stride, options, untouched));
  });
  expect_scores(shape, keys, rope, query, floats_of(found), stride);
}

template <class C>
void check_row() {
  if constexpr (included(C::kHeadDim)) {
    over_shapes(edge_shapes(groups_of(C::kGroupTile)), check_scores<C>);
  } else {
    GTEST_SKIP() << "not of this build";
  }
}

#define KVCC_TENSOR key
#define KVCC_ROW(name, ...) \
  TEST(EmulatedKeyScores, name) { check_row<__VA_ARGS__>(); }
#include "kernels/list/mma_key_scores.inc"

// A block takes each page together, and turns the next page's queries beside it (mma_block.cuh).
TEST(EmulatedKeyScores, ByBlockTwoBits) {
  check_row<MmaConfig<Tensor::key, 2, 192, Axis::channel, Sparse::none, Rope::half, 192, 16, Dtype::f16>>();
}
TEST(EmulatedKeyScores, ByBlockThreeBitsTail) {
  check_row<MmaConfig<Tensor::key, 3, 192, Axis::token, Sparse::tail, Rope::interleaved, 48, 16, Dtype::bf16>>();
}

// Fewer records than lanes in every patch: each is restored record by record.
TEST(EmulatedKeyScores, NarrowHeads) {
  using C = MmaConfig<Tensor::key, 3, 16, Axis::channel, Sparse::csr, Rope::half, 16, 8, Dtype::f16>;
  over_shapes(edge_shapes(groups_of(8)), check_scores<C>);
}

// Heads of two widths: one unit each, which leave the other's heads alone and together give all scores.
TEST(EmulatedKeyScores, MixedWidths) {
  const Shape shape{"mixed", {kSmall ? 20 : 90, 5}, 1, 3, 0, 3, kSmall ? 1 : 2, Outliers::few, kSmall ? 2 : 4};
  const std::vector<uint8_t> bits = kSmall ? std::vector<uint8_t>{3, 2} : std::vector<uint8_t>{3, 2, 2, 3};
  const auto config = []<int b>() {
    return MmaConfig<Tensor::key, b, 64, Axis::channel, Sparse::csr, Rope::half, 32, 8, Dtype::f16, true>();
  };
  using Two = decltype(config.operator()<2>());
  using Three = decltype(config.operator()<3>());
  std::mt19937 random(1);
  Packed<Three> keys = make_packed<Three>(shape, random, bits);
  const MmaRope rope = make_mma_rope(32, false, longest(shape));
  const auto query = make_queries(shape, 64, random);
  const int64_t stride = longest(shape);
  const std::vector<float> untouched(shape.lengths.size() * shape.heads * shape.group * stride, kUntouched);
  const auto found = under_all_schedules([&](const auto& options) {
    auto scores = run_scores<Two>(shape, keys.view(), rope.view(), query, stride, options, untouched);
    EXPECT_EQ(scores[0], kUntouched);
    return bits_of(run_scores<Three>(shape, keys.view(), rope.view(), query, stride, options, scores));
  });
  expect_scores(shape, keys, rope, query, floats_of(found), stride);
}

// A page whose lists have overflowed is packed again before it counts; read by mistake, it reads no further than the
// list goes: as if the ends were cut there.
TEST(EmulatedKeyScores, OverfullListsAreNotReadPastTheirEnd) {
  using C = MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr, Rope::half, 64, 8, Dtype::f16>;
  const Shape shape{"overfull", {70}, 1, 0, 0, 2, 1, Outliers::full, 1};
  std::mt19937 random(1);
  Packed<C> keys = make_packed<C>(shape, random);
  const MmaRope rope = make_mma_rope(64, false, 70);
  const auto query = make_queries(shape, 64, random);
  const std::vector<float> untouched(2 * 70, kUntouched);
  constexpr uint32_t kCapacity = 100;
  ASSERT_GT(keys.batch.shape.shape.capacity, kCapacity);
  const auto scores = [&] {
    KvccCache cache = keys.view();
    cache.sparse_capacity = kCapacity;  // of one head: its list begins where it did
    return bits_of(run_scores<C>(shape, cache, rope.view(), query, 70, {}, untouched));
  };
  const auto found = scores();
  cut_ends(keys, kCapacity);
  EXPECT_EQ(found, scores());
}

// Class ends as no pack writes them, above the next class's: classes with such ends are empty, and the launch ends.
TEST(EmulatedKeyScores, ClassEndsThatFallAreEmptyClasses) {
  using C = MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr, Rope::half, 64, 8, Dtype::f16>;
  const Shape shape{"falling ends", {64}, 0, 0, 0, 2, 1, Outliers::full, 1};
  std::mt19937 random(1);
  Packed<C> keys = make_packed<C>(shape, random);
  const MmaRope rope = make_mma_rope(64, false, 64);
  const auto query = make_queries(shape, 64, random);
  const std::vector<float> untouched(2 * 64, kUntouched);
  set_falling_ends(keys);
  const auto found = run_scores<C>(shape, keys.view(), rope.view(), query, 64, {}, untouched);
  for (const float score : found) EXPECT_TRUE(std::isfinite(score) && score != kUntouched);
}

// Records past what pack counted are no records, but a page that no pack wrote may count them: channels that the head
// lacks are passed over.
TEST(EmulatedKeyScores, RecordsOfNoChannelChangeNothing) {
  using C = MmaConfig<Tensor::key, 8, 64, Axis::channel, Sparse::csr, Rope::half, 64, 8, Dtype::f16>;
  const Shape shape{"no channel", {64}, 0, 0, 0, 2, 1, Outliers::few, 1};
  std::mt19937 random(1);
  Packed<C> keys = make_packed<C>(shape, random);
  const MmaRope rope = make_mma_rope(64, false, 64);
  const auto query = make_queries(shape, 64, random);
  const std::vector<float> untouched(2 * 64, kUntouched);
  const auto scores = [&] { return bits_of(run_scores<C>(shape, keys.view(), rope.view(), query, 64, {}, untouched)); };
  const auto wanted = scores();
  const mma::PageShape& s = keys.batch.shape.shape;
  auto* const ends = reinterpret_cast<uint16_t*>(keys.batch.pages.data() + mma::ends_offset(s));
  ASSERT_LT(ends[mma::kClasses - 1], s.capacity);
  const auto* const past = keys.batch.pages.data() + mma::records_offset(s) + 4 * ends[mma::kClasses - 1];
  ASSERT_GE(past[0], 64);  // of unspecified records, which are spoilt: the channel
  ends[mma::kClasses - 1] = static_cast<uint16_t>(s.capacity);
  EXPECT_EQ(scores(), wanted);
}

// An outlier whose zero-point fp16 can't hold gives a wrong score of its own token at most, not an infinite one.
TEST(EmulatedKeyScores, NoZeroPointIsInfinite) {
  using C = MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr, Rope::none, 0, 8, Dtype::f16>;
  const Shape shape{"far outliers", {64}, 0, 0, 0, 2, 1, Outliers::few, 1};
  std::mt19937 random(1);
  Packed<C> keys = make_packed<C>(shape, random);
  const mma::PageShape& s = keys.batch.shape.shape;
  uint8_t* const page = keys.batch.pages.data();
  const uint32_t count = reinterpret_cast<const uint16_t*>(page + mma::ends_offset(s))[mma::kClasses - 1];
  ASSERT_GT(count, 0u);
  auto* const records = reinterpret_cast<mma::Record*>(page + mma::records_offset(s));
  for (uint32_t i = 0; i < count; ++i) records[i].value = records[i].value & 0x8000 ? 0xfbff : 0x7bff;
  KvccCache cache = keys.view();
  const std::vector<float> scale(64, -2000.0f), zero(64, 0.0f);  // levels of the other sign
  cache.scale = scale.data();
  cache.zero = zero.data();
  const auto query = make_queries(shape, 64, random);
  const std::vector<float> untouched(2 * 64, kUntouched);
  for (const float score : run_scores<C>(shape, cache, {}, query, 64, {}, untouched)) {
    EXPECT_TRUE(std::isfinite(score));
  }
}

template <class C>
void check_long_context() {
  const Shape shape = end_of_long_context();
  std::mt19937 random(1);
  Packed<C> keys = make_packed<C>(shape, random);
  move_on(keys.batch, kPagesBefore);
  const int64_t before = int64_t{kPagesBefore} * 64, length = shape.lengths[0], stride = before + length;
  const MmaRope rope = make_mma_rope(C::kRotaryDim, C::kRope == Rope::interleaved, stride, 1.25);
  const auto query = make_queries(shape, C::kHeadDim, random);
  const std::vector<float> untouched(shape.heads * shape.group * stride, kUntouched);
  const auto all = floats_of(under_all_schedules([&](const auto& options) {
    return bits_of(run_scores<C>(shape, keys.view(), rope.view(), query, stride, options, untouched));
  }));
  std::vector<float> found;
  for (auto row = all.begin(); row != all.end(); row += stride) {
    EXPECT_EQ(std::count(row, row + before, kUntouched), before);
    found.insert(found.end(), row + before, row + stride);
  }
  expect_scores(shape, keys, rope, turned_back(query, C::kHeadDim, rope, before), found, length);
}
TEST(EmulatedKeyScores, LongContext) {
  check_long_context<MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr, Rope::half, 64, 8, Dtype::f16>>();
  check_long_context<MmaConfig<Tensor::key, 4, 64, Axis::token, Sparse::none, Rope::interleaved, 64, 8, Dtype::f16>>();
}

}  // namespace
}  // namespace kvcc::test
