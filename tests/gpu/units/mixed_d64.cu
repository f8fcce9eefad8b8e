// Heads of 2 and of 4 bits: two units serve one cache.
#include "tests/gpu/set.cuh"

namespace kvcc::gpu {
namespace {

using mma::Tensor;
template <int bits>
using Key = Config<Tensor::key, bits, 64, Axis::channel, Sparse::csr, Rope::half, 64, 8, Dtype::f16, Dtype::f16, true>;
template <int bits>
using Value =
    Config<Tensor::value, bits, 64, Axis::token, Sparse::tail, Rope::none, 0, 8, Dtype::f16, Dtype::f16, true>;
const bool added = add_set({"mixed_d64",
                            Layout::mma,
                            Key<2>::spec(),
                            Value<2>::spec(),
                            {mma_part<Key<2>, Value<2>>(), mma_part<Key<4>, Value<4>>()}});
}  // namespace
}  // namespace kvcc::gpu
