// 8 bits, interleaved pairs, bf16 queries, f32 input.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
using Key = Config<Tensor::key, 8, 64, Axis::channel, Sparse::csr, Rope::interleaved, 64, 8, Dtype::bf16, Dtype::f32>;
using Value = Config<Tensor::value, 8, 64, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::bf16, Dtype::f32>;
const bool added = add_set(mma_set<Key, Value>("q8_d64"));
}  // namespace
}  // namespace kvcc::gpu
