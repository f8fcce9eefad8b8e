#include "tests/gpu/baseline/baseline.h"
#include "tests/gpu/baseline/kvquant.cuh"

namespace kvcc::gpu {
namespace {

template <int bits, int D>
KvquantKernels kernels() {
  return {bits,
          kernel_of<KvquantKeyScores<bits, D, false>>(),
          kernel_of<KvquantKeyScores<bits, D, true>>(),
          kernel_of<KvquantKeyOutliers<D>>(),
          kernel_of<KvquantValueMix<bits, D>>(),
          kernel_of<KvquantValueOutliers<D>>()};
}

}  // namespace

KvquantKernels kvquant_kernels(int bits, int head_dim) {
  if (bits == 3) return head_dim == 64 ? kernels<3, 64>() : head_dim == 128 ? kernels<3, 128>() : KvquantKernels{};
  if (bits == 4) return head_dim == 64 ? kernels<4, 64>() : head_dim == 128 ? kernels<4, 128>() : KvquantKernels{};
  return {};
}

}  // namespace kvcc::gpu
