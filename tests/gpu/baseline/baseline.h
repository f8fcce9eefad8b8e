// The kernels that packed caches are timed against, head_dim 128 and, for the tests, 64.
#pragma once

#include "tests/gpu/kernel.h"

namespace kvcc::gpu {

struct Fp16Kernels {
  Kernel key_scores, value_mix, mix_merge, attention, attention_merge;
};
struct KvquantKernels {
  int bits = 0;
  Kernel key_scores, fast_key_scores, key_outliers, value_mix, value_outliers;
};

/// head_dim 64 or 128; else all of them are not there.
Fp16Kernels fp16_kernels(int head_dim);
/// bits 3 or 4, head_dim 64 or 128.
KvquantKernels kvquant_kernels(int bits, int head_dim);

}  // namespace kvcc::gpu
