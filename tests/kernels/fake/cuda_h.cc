// Compiled against a toolkit's cuda.h, never run: what kernels/host/driver.h declares is what CUDA has.
#include "kernels/host/driver.h"

#include <cuda.h>

namespace kvcc::host {

template <class R, class... A, class S, class... B>
constexpr bool same_shape(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B)) {
    return sizeof(R) == sizeof(S) && ((sizeof(A) == sizeof(B)) && ...);
  } else {
    return false;
  }
}
constexpr bool equal(const char* a, const char* b) { return __builtin_strcmp(a, b) == 0; }
// cuda.h's macros turn names into those of the current version; `symbol` is what driver.cc and the fake driver say.
#define TEXT(name) #name
#define SAME(member, function, symbol)                                                  \
  static_assert(same_shape(decltype(Driver::member){}, decltype(&function){}), symbol); \
  static_assert(equal(TEXT(function), symbol))

SAME(init, cuInit, "cuInit");
SAME(driver_version, cuDriverGetVersion, "cuDriverGetVersion");
SAME(device_count, cuDeviceGetCount, "cuDeviceGetCount");
SAME(device, cuDeviceGet, "cuDeviceGet");
SAME(device_name, cuDeviceGetName, "cuDeviceGetName");
SAME(device_attribute, cuDeviceGetAttribute, "cuDeviceGetAttribute");
SAME(retain_primary_context, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
SAME(release_primary_context, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
SAME(push_context, cuCtxPushCurrent, "cuCtxPushCurrent_v2");
SAME(pop_context, cuCtxPopCurrent, "cuCtxPopCurrent_v2");
SAME(load_module, cuModuleLoadDataEx, "cuModuleLoadDataEx");
SAME(unload_module, cuModuleUnload, "cuModuleUnload");
SAME(module_function, cuModuleGetFunction, "cuModuleGetFunction");
SAME(set_function_attribute, cuFuncSetAttribute, "cuFuncSetAttribute");
SAME(launch, cuLaunchKernel, "cuLaunchKernel");
SAME(error_name, cuGetErrorName, "cuGetErrorName");
SAME(error_string, cuGetErrorString, "cuGetErrorString");

static_assert(kCuSuccess == CUDA_SUCCESS && kCuNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kCuInvalidImage == CUDA_ERROR_INVALID_IMAGE && kCuNoBinaryForDevice == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(kCuInvalidPtx == CUDA_ERROR_INVALID_PTX && kCuNotFound == CUDA_ERROR_NOT_FOUND);
static_assert(kCuUnsupportedPtxVersion == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(int{kCuMultiprocessors} == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(int{kCuCapabilityMajor} == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(int{kCuCapabilityMinor} == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(int{kCuSharedBytesOptIn} == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(int{kCuDynamicSharedBytes} == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(int{kCuErrorLog} == CU_JIT_ERROR_LOG_BUFFER &&
              int{kCuErrorLogBytes} == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);

}  // namespace kvcc::host
