// Keys by token with tails and without RoPE.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 3, 96, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::bf16>;
using Value = Config<Tensor::value, 2, 96, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::bf16>;
const bool added = add_set(mma_set<Key, Value>("q3_d96"));
}  // namespace
}  // namespace kvcc::gpu
