// A kernel as the GPU script launches it: the same text compiled by nvcc for the device, or by g++ for the emulator.
#pragma once

#include <cstdint>

#include "kernels/device/launch.cuh"
#if !defined(__CUDACC__)
#include <map>
#include <string>
#include <typeinfo>
#endif

namespace kvcc::gpu {

/// What a Launcher needs to know of a kernel. A default one is "not there".
struct Kernel {
  const void* entry = nullptr;  ///< of the back end that the unit was compiled for
  uint32_t threads = 0;
  uint32_t shared_bytes = 0;  ///< of dynamic shared memory
  explicit operator bool() const { return entry != nullptr; }
};

#if defined(__CUDACC__)

template <class Body>
__global__ void __launch_bounds__(Body::kThreads, device::min_blocks<Body>())
    entry(const __grid_constant__ typename Body::Params params) {
  device::run_thread<Body>(params);
}
template <class Body>
Kernel kernel_of() {
  return {reinterpret_cast<const void*>(&entry<Body>), Body::kThreads, device::dynamic_shared_bytes<Body>()};
}

#else

/// What the emulator needs to know beside; see fake/cuda_runtime.h.
struct EmulatedKernel {
  void (*entry)(const void* params);
  size_t params_bytes;
  std::string name;
};
inline std::map<const void*, EmulatedKernel>& emulated_kernels() {
  static std::map<const void*, EmulatedKernel> kernels;
  return kernels;
}
inline const EmulatedKernel* find_emulated(const void* entry) {
  const auto at = emulated_kernels().find(entry);
  return at == emulated_kernels().end() ? nullptr : &at->second;
}

template <class Body>
void entry(const void* params) {
  device::run_thread<Body>(*static_cast<const typename Body::Params*>(params));
}
template <class Body>
Kernel kernel_of() {
  const void* const address = reinterpret_cast<const void*>(&entry<Body>);
  emulated_kernels()[address] = {&entry<Body>, sizeof(typename Body::Params), typeid(Body).name()};
  return {address, Body::kThreads, sizeof(typename Body::Shared)};
}

#endif

}  // namespace kvcc::gpu
