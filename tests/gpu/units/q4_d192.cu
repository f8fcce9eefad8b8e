// Keys by token with RoPE, values with static scales and no sparse part.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 4, 192, Axis::token, Sparse::none, Rope::half, 64, 16>;
using Value = Config<Tensor::value, 8, 192, Axis::channel, Sparse::none, Rope::none, 0, 16>;
const bool added = add_set(mma_set<Key, Value>("q4_d192"));
}  // namespace
}  // namespace kvcc::gpu
