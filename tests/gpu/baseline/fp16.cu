#include "tests/gpu/baseline/baseline.h"
#include "tests/gpu/baseline/fp16.cuh"
#include "tests/gpu/baseline/fp16_attention.cuh"

namespace kvcc::gpu {
namespace {

template <int D>
Fp16Kernels kernels() {
  return {kernel_of<Fp16KeyScores<D>>(), kernel_of<Fp16ValueMix<D>>(), kernel_of<Fp16MixMerge<D>>(),
          kernel_of<Fp16Attention<D>>(), kernel_of<Fp16AttentionMerge<D>>()};
}

}  // namespace

Fp16Kernels fp16_kernels(int head_dim) {
  return head_dim == 64 ? kernels<64>() : head_dim == 128 ? kernels<128>() : Fp16Kernels{};
}

}  // namespace kvcc::gpu
