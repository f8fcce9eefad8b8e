// Partial interleaved pairs, values with static scales, 16 queries a block.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 3, 64, Axis::channel, Sparse::csr, Rope::interleaved, 32, 16>;
using Value = Config<Tensor::value, 3, 64, Axis::channel, Sparse::csr, Rope::none, 0, 16>;
const bool added = add_set(mma_set<Key, Value>("q3_d64"));
}  // namespace
}  // namespace kvcc::gpu
