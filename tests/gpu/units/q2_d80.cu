// A head_dim that is no power of two, partial rotary, 16 queries a block.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 2, 80, Axis::channel, Sparse::none, Rope::half, 32, 16>;
using Value = Config<Tensor::value, 2, 80, Axis::token, Sparse::none, Rope::none, 0, 16>;
const bool added = add_set(mma_set<Key, Value>("q2_d80"));
}  // namespace
}  // namespace kvcc::gpu
