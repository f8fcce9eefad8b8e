#pragma once

#include <cstdint>

#include "formats/layout/launch.h"
#include "tests/gpu/kernel.h"

namespace kvcc::gpu {

struct FillParams {
  uint32_t* out;  // [words]
  int64_t words;
  uint32_t seed;
  int32_t normal;  // 1: pairs of fp16 numbers; 0: random bits
  int32_t blocks;
};

Kernel fill_kernel();  ///< grid (blocks, 1, 1)

}  // namespace kvcc::gpu
