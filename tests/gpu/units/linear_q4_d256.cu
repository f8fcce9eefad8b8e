// Layout linear-1: the widest heads, keys by token, values with static scales.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 4, 256, Axis::token, Sparse::tail, Rope::interleaved, 256, 8>;
using Value = Config<Tensor::value, 8, 256, Axis::channel, Sparse::csr, Rope::none, 0, 8>;
const bool added = add_set(linear_set<Key, Value>("linear_q4_d256"));
}  // namespace
}  // namespace kvcc::gpu
