#include "tests/gpu/fill.cuh"

namespace kvcc::gpu {

Kernel fill_kernel() { return kernel_of<Fill>(); }

}  // namespace kvcc::gpu
