// Every shipped row of value_mix of layout mma-1 in the emulator, splits merged: the same bits under every schedule,
// within the stated bound of sums in double. Weights of positions that do not count are NaN.
#include "kernels/device/mma_value_mix.cuh"

#include "tests/kernels/emulated/readers.h"

namespace kvcc::test {
namespace {

const float kNan = bits_float(0x7fc00000u);
constexpr double kLostWeight = 0x1p-14;  ///< of the greatest: where fp16 thins out

template <class C>
std::vector<float> run_mix(const Shape& shape, const KvccCache& cache, const std::vector<float>& weights,
                           int64_t stride, const emulator::Options& options, std::vector<float> out) {
  const std::vector<uint8_t> bytes = as_dtype(weights, C::kDtype);
  std::vector<float> partial(shape.splits > 1 ? out.size() * shape.splits : 0, kNan);
  KvccValueMixParams p{};
  p.cache = cache;
  p.weights = bytes.data();
  p.partial = partial.empty() ? nullptr : partial.data();
  p.out = out.data();
  p.weights_stride = stride;
  p.group = shape.group;
  p.splits = shape.splits;
  p.window = shape.window;
  emulator::run<device::MmaValueMix<C>>(p, kvcc_grid_mma_value_mix(&p), options, "value_mix");
  if (shape.splits > 1) {
    emulator::run<device::MmaValueMerge<C>>(p, kvcc_grid_value_merge(&p, C::kHeadDim), options, "value_mix_merge");
  }
  return out;
}

/// [S, H * group, stride]: mostly as a softmax gives them, some rows large, small or of both signs, some growing with
/// every second page, so that some warps meet larger weights in their second page and some do not: the barriers of new
/// units would hide a missing one.
inline std::vector<float> make_weights(const Shape& shape, int64_t stride, std::mt19937& random) {
  const int rows = shape.heads * shape.group;
  std::vector<float> weights(shape.lengths.size() * rows * stride, kNan);
  for (size_t s = 0; s < shape.lengths.size(); ++s) {
    for (int row = 0; row < rows; ++row) {
      for (int p = first_visible(shape, s); p < shape.lengths[s]; ++p) {
        float w = static_cast<float>(random() % 128) / 128.0f;
        if (random() % 8 != 0) w *= 0.0625f;
        if (row % 5 == 0 && p / 64 % 2 == 0) w = std::ldexp(w, p / 64 * 2);
        if (row % 5 == 1) w *= 64.0f;
        if (row % 5 == 2) w *= random() % 2 ? -0.0078125f : 0.0078125f;
        if (row % 5 == 3) w = 0;
        weights[(s * rows + row) * stride + p] = w;
      }
    }
  }
  return weights;
}

template <class C>
void expect_mix(const Shape& shape, const Packed<C>& values, const std::vector<float>& weights,
                const std::vector<float>& found, int64_t stride) {
  constexpr int D = C::kHeadDim;
  const int rows = shape.heads * shape.group;
  Errors errors;
  for (size_t s = 0; s < shape.lengths.size(); ++s) {
    const int length = shape.lengths[s];
    std::vector<float> w(static_cast<size_t>(rows) * length, 0.0f);
    for (int row = 0; row < rows; ++row) {
      for (int p = first_visible(shape, s); p < length; ++p)
        w[row * length + p] = weights[(s * rows + row) * stride + p];
    }
    const auto wanted = reference::value_mix(values.unpacked[s], w, shape.heads, D, shape.group);
    const std::vector<double> spread = spread_of(values, s);
    for (int row = 0; row < rows; ++row) {
      double most = 0;
      for (int p = 0; p < length; ++p) most = std::max<double>(most, std::fabs(w[row * length + p]));
      for (int d = 0; d < D; ++d) {
        // Each weight's own rounding, and what fp16 loses below the greatest: never above the bound of value_mix's
        // head.
        double all = 0;
        for (int p = first_visible(shape, s); p < length; ++p) {
          const double weight = std::min(most, std::fabs(w[row * length + p]) + most * kLostWeight);
          all += weight * spread[(p * shape.heads + row / shape.group) * D + d];
        }
        errors.add(
            found[(s * rows + row) * D + d], wanted.value[row * D + d], kRounding * all,
            "sequence " + std::to_string(s) + ", query " + std::to_string(row) + ", channel " + std::to_string(d));
      }
    }
  }
  errors.expect_small(0.05);
}

template <class C>
void check_mix(const Shape& shape, std::mt19937& random) {
  Packed<C> values = make_packed<C>(shape, random);
  const int64_t stride = longest(shape) + 5;
  const auto weights = make_weights(shape, stride, random);
  const std::vector<float> out(shape.lengths.size() * shape.heads * shape.group * C::kHeadDim, kNan);
  const auto found = under_all_schedules(
      [&](const auto& options) { return bits_of(run_mix<C>(shape, values.view(), weights, stride, options, out)); });
  expect_mix(shape, values, weights, floats_of(found), stride);
}

template <class C>
void check_row() {
  if constexpr (included(C::kHeadDim)) {
    over_shapes(edge_shapes(groups_of(C::kGroupTile)), check_mix<C>);
  } else {
    GTEST_SKIP() << "not of this build";
  }
}

#define KVCC_TENSOR value
#define KVCC_ROW(name, ...) \
  TEST(EmulatedValueMix, name) { check_row<__VA_ARGS__>(); }
#include "kernels/list/mma_value_mix.inc"

// A block takes each page together (mma_block.cuh).
TEST(EmulatedValueMix, ByBlockThreeBitsCsr) {
  check_row<MmaConfig<Tensor::value, 3, 192, Axis::channel, Sparse::csr, Rope::none, 0, 16, Dtype::bf16>>();
}
TEST(EmulatedValueMix, ByBlockEightBitsTail) {
  check_row<MmaConfig<Tensor::value, 8, 256, Axis::token, Sparse::tail, Rope::none, 0, 16, Dtype::f16>>();
}

TEST(EmulatedValueMix, MixedWidths) {
  const Shape shape{"mixed", {kSmall ? 20 : 90, 5}, 1, 3, 0, 3, kSmall ? 1 : 2, Outliers::few, kSmall ? 2 : 4};
  const std::vector<uint8_t> bits = kSmall ? std::vector<uint8_t>{3, 2} : std::vector<uint8_t>{3, 2, 2, 3};
  using Two = MmaConfig<Tensor::value, 2, 64, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::f16, true>;
  using Three = MmaConfig<Tensor::value, 3, 64, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::f16, true>;
  std::mt19937 random(1);
  Packed<Three> values = make_packed<Three>(shape, random, bits);
  const int64_t stride = longest(shape);
  const auto weights = make_weights(shape, stride, random);
  const std::vector<float> out(shape.lengths.size() * shape.heads * shape.group * 64, kNan);
  const auto found = under_all_schedules([&](const auto& options) {
    const auto half = run_mix<Two>(shape, values.view(), weights, stride, options, out);
    EXPECT_TRUE(std::isnan(half[0]));
    return bits_of(run_mix<Three>(shape, values.view(), weights, stride, options, half));
  });
  expect_mix(shape, values, weights, floats_of(found), stride);
}

TEST(EmulatedValueMix, OverfullListsAreNotReadPastTheirEnd) {  // see key_scores_test.cc
  using C = MmaConfig<Tensor::value, 3, 64, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::f16>;
  const Shape shape{"overfull", {70}, 1, 0, 0, 2, 1, Outliers::full, 1};
  std::mt19937 random(1);
  Packed<C> values = make_packed<C>(shape, random);
  const auto weights = make_weights(shape, 70, random);
  const std::vector<float> out(2 * 64, kNan);
  constexpr uint32_t kCapacity = 100;
  ASSERT_GT(values.batch.shape.shape.capacity, kCapacity);
  const auto mix = [&] {
    KvccCache cache = values.view();
    cache.sparse_capacity = kCapacity;
    return bits_of(run_mix<C>(shape, cache, weights, 70, {}, out));
  };
  const auto found = mix();
  cut_ends(values, kCapacity);
  EXPECT_EQ(found, mix());
}

TEST(EmulatedValueMix, ClassEndsThatFallAreEmptyClasses) {  // see key_scores_test.cc
  using C = MmaConfig<Tensor::value, 3, 64, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::f16>;
  const Shape shape{"falling ends", {64}, 0, 0, 0, 2, 1, Outliers::full, 1};
  std::mt19937 random(1);
  Packed<C> values = make_packed<C>(shape, random);
  const auto weights = make_weights(shape, 64, random);
  set_falling_ends(values);
  const auto found = run_mix<C>(shape, values.view(), weights, 64, {}, std::vector<float>(2 * 64, kNan));
  for (const float x : found) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace kvcc::test
