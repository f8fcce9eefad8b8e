// Layout linear-1: partial rotary, no sparse part.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 2, 80, Axis::channel, Sparse::none, Rope::half, 32, 8, Dtype::bf16>;
using Value = Config<Tensor::value, 2, 80, Axis::token, Sparse::none, Rope::none, 0, 8, Dtype::bf16>;
const bool added = add_set(linear_set<Key, Value>("linear_q2_d80"));
}  // namespace
}  // namespace kvcc::gpu
