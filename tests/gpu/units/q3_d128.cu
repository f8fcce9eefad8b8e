// 3 bits as shipped for Llama: timed, and tested.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 3, 128, Axis::channel, Sparse::csr, Rope::half, 128, 8>;
using Value = Config<Tensor::value, 3, 128, Axis::token, Sparse::tail>;
const bool added = add_set(mma_set<Key, Value>("q3_d128"));
}  // namespace
}  // namespace kvcc::gpu
