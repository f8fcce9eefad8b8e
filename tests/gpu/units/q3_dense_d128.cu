// 3 bits without sparse part: timed, and tested.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 3, 128, Axis::channel, Sparse::none, Rope::half, 128, 8>;
using Value = Config<Tensor::value, 3, 128, Axis::token, Sparse::none>;
const bool added = add_set(mma_set<Key, Value>("q3_dense_d128"));
}  // namespace
}  // namespace kvcc::gpu
