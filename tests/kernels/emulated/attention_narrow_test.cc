// Rows of attention for heads below 128 channels, and two units that share a layer of two widths.
#define KVCC_PART(head_dim) ((head_dim) < 128)
#include "tests/kernels/emulated/attention_test.h"

namespace kvcc::test {
namespace {

TEST(EmulatedAttention, MixedWidths) {
  const Shape shape{"mixed", {kSmall ? 20 : 90, 5}, 1, 3, 0, 3, kSmall ? 1 : 2, Outliers::few, 2};
  const auto config = []<int b>() {
    return AttentionConfig<
        MmaConfig<Tensor::key, b, 64, Axis::channel, Sparse::csr, Rope::half, 32, 8, Dtype::f16, true>,
        MmaConfig<Tensor::value, 5 - b, 64, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::f16, true>>();
  };
  using First = decltype(config.operator()<2>());
  using Second = decltype(config.operator()<3>());
  std::mt19937 random(1);
  auto keys = make_packed<First::Key>(shape, random, {3, 2});
  auto values = make_packed<First::Value>(shape, random, {2, 3});
  share_table<First>(keys, values);
  const MmaRope rope = make_mma_rope(32, false, longest(shape));
  const auto query = make_queries(shape, 64, random);
  const std::vector<float> out(shape.lengths.size() * shape.heads * shape.group * 64, bits_float(0x7fc00000u));
  const auto found = under_all_schedules([&](const auto& options) {
    const auto half = run_attention<First>(shape, keys.view(), values.view(), rope.view(), query, options, out);
    EXPECT_TRUE(std::isnan(half[0]));
    return bits_of(run_attention<Second>(shape, keys.view(), values.view(), rope.view(), query, options, half));
  });
  expect_attention<First>(shape, keys, values, rope, query, floats_of(found));
}

TEST(EmulatedAttention, LongContext) {
  using C = AttentionConfig<MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr, Rope::half, 64, 8, Dtype::f16>,
                            MmaConfig<Tensor::value, 3, 64, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::f16>>;
  const Shape shape = end_of_long_context();
  std::mt19937 random(1);
  auto keys = make_packed<C::Key>(shape, random);
  auto values = make_packed<C::Value>(shape, random);
  share_table<C>(keys, values);
  move_on(keys.batch, kPagesBefore);
  move_on(values.batch, kPagesBefore);
  const int64_t before = int64_t{kPagesBefore} * 64;
  const MmaRope rope = make_mma_rope(64, false, before + shape.lengths[0], 1.25);
  const auto query = make_queries(shape, 64, random);
  const std::vector<float> out(shape.heads * shape.group * 64, bits_float(0x7fc00000u));
  const auto found = under_all_schedules([&](const auto& options) {
    return bits_of(run_attention<C>(shape, keys.view(), values.view(), rope.view(), query, options, out));
  });
  expect_attention<C>(shape, keys, values, rope, turned_back(query, 64, rope, before), floats_of(found));
}

}  // namespace
}  // namespace kvcc::test
