// Layout linear-1, as shipped for Llama: timed, and tested.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 3, 128, Axis::channel, Sparse::csr, Rope::half, 128, 4>;
using Value = Config<Tensor::value, 3, 128, Axis::token, Sparse::tail, Rope::none, 0, 4>;
const bool added = add_set(linear_set<Key, Value>("linear_q3_d128"));
}  // namespace
}  // namespace kvcc::gpu
