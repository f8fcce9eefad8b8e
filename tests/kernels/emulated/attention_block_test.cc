// Attention where a block takes each page together (kernels/device/mma_block.cuh): every width of keys and of values
// with both wide heads. How words and channels are shared out depends on the two; the shipped rows have few of them.
#define KVCC_PART(head_dim) ((head_dim) < 0)
#include "tests/kernels/emulated/attention_test.h"

namespace kvcc::test {
namespace {

template <int b, Axis axis, Sparse sparse>
struct Side {
  template <Tensor tensor, int D, Rope rope, int R, Dtype dtype>
  using Config = MmaConfig<tensor, b, D, axis, sparse, rope, R, 16, dtype>;
};

template <class Key, class Value, int D, Rope rope, int R, Dtype dtype>
void check() {
  using C = AttentionConfig<typename Key::template Config<Tensor::key, D, rope, R, dtype>,
                            typename Value::template Config<Tensor::value, D, Rope::none, 0, dtype>>;
  static_assert(std::is_base_of_v<device::AttentionByBlock<C>, device::Attention<C>>);
  over_shapes(edge_shapes(groups_of(16)), check_attention<C>);
}

// Both sides have outliers, and shared memory holds one's after the other's.
TEST(EmulatedAttentionByBlock, TwoBitTailWithThreeBitCsr) {
  check<Side<2, Axis::token, Sparse::tail>, Side<3, Axis::channel, Sparse::csr>, 192, Rope::half, 192, Dtype::f16>();
}
TEST(EmulatedAttentionByBlock, ThreeBitTailWithTwoBitCsr) {
  check<Side<3, Axis::token, Sparse::tail>, Side<2, Axis::channel, Sparse::csr>, 256, Rope::half, 128, Dtype::bf16>();
}
#if !defined(KVCC_EMULATED_SMALL)
TEST(EmulatedAttentionByBlock, ThreeBitCsrWithTwoBitTokens) {
  check<Side<3, Axis::channel, Sparse::csr>, Side<2, Axis::token, Sparse::none>, 192, Rope::interleaved, 48,
        Dtype::bf16>();
}
TEST(EmulatedAttentionByBlock, FourBitChannelsWithEightBitTail) {
  check<Side<4, Axis::channel, Sparse::none>, Side<8, Axis::token, Sparse::tail>, 192, Rope::none, 0, Dtype::f16>();
}
TEST(EmulatedAttentionByBlock, EightBitTokensWithFourBitChannels) {
  check<Side<8, Axis::token, Sparse::none>, Side<4, Axis::channel, Sparse::none>, 192, Rope::half, 80, Dtype::f16>();
}
TEST(EmulatedAttentionByBlock, TwoBitChannelsWithThreeBitTail) {
  check<Side<2, Axis::channel, Sparse::none>, Side<3, Axis::token, Sparse::tail>, 256, Rope::interleaved, 256,
        Dtype::f16>();
}
TEST(EmulatedAttentionByBlock, FourBitTokensWithEightBitCsr) {
  check<Side<4, Axis::token, Sparse::none>, Side<8, Axis::channel, Sparse::csr>, 256, Rope::half, 256, Dtype::f16>();
}
TEST(EmulatedAttentionByBlock, EightBitCsrWithFourBitTokens) {
  check<Side<8, Axis::channel, Sparse::csr>, Side<4, Axis::token, Sparse::none>, 256, Rope::none, 0, Dtype::bf16>();
}
#endif

}  // namespace
}  // namespace kvcc::test
