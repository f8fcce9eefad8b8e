#include "kernels/device/copy_pages.cuh"

#include "tests/gpu/sets.h"

namespace kvcc::gpu {

Kernel copy_pages_kernel() { return kernel_of<device::CopyPages>(); }

}  // namespace kvcc::gpu
