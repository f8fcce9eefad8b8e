// The widest heads.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 4, 256, Axis::channel, Sparse::csr, Rope::half, 256, 8, Dtype::bf16>;
using Value = Config<Tensor::value, 4, 256, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::bf16>;
const bool added = add_set(mma_set<Key, Value>("q4_d256"));
}  // namespace
}  // namespace kvcc::gpu
