// How a kernel's text is run. A kernel is a Body, of one of two kinds:
//   phased   struct Body { Params; kThreads; Shared; static int phases(params, block);
//            static void phase(k, params, block, thread, shared); }
//            A body of phases between block barriers, with phases() equal for all threads of a block and nothing but
//            `shared` kept from phase to phase. Runs on the device (barriers between phases), in the emulator, and on
//            the host in plain loops (run_on_host).
//   threaded struct Body { Params; kThreads; kMinBlocks; Shared; static void run(params, shared); }
//            What one thread does, with the barriers and warp operations of intrinsics.cuh. Shared is dynamic shared
//            memory, sizeof(Shared) bytes. Runs on the device and in the emulator.
#pragma once

#include <cstdint>

#include "formats/layout/half.h"
#include "formats/layout/launch.h"
#include "kernels/device/intrinsics.cuh"
#if !defined(__CUDACC__)
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>
#endif

namespace kvcc::device {

template <class Body>
concept Phased = requires(const typename Body::Params& params, const Block& block) {
  Body::phases(params, block);
};

/// Blocks that fit a multiprocessor at least, of phased bodies: 128 registers a thread. Stated so that ptxas keeps to
/// it; left to itself it aims at more blocks and spills a few registers for that. Threaded bodies state their own.
template <class Body>
constexpr int min_blocks() {
  if constexpr (Phased<Body>) {
    return 4;
  } else {
    return Body::kMinBlocks;
  }
}

/// Bytes of dynamic shared memory that a launch must give.
template <class Body>
constexpr uint32_t dynamic_shared_bytes() {
  return Phased<Body> ? 0u : static_cast<uint32_t>(sizeof(typename Body::Shared));
}

/// A phased body's phases between block barriers.
template <class Body>
KVCC_DEVICE void run_phases(const typename Body::Params& params, typename Body::Shared& shared) {
  const Block block = block_index();
  const int count = Body::phases(params, block);
  for (int k = 0; k < count; ++k) {
    if (k > 0) sync_block();
    Body::phase(k, params, block, static_cast<int>(thread_index()), shared);
  }
}

/// What one thread of a launch does.
template <class Body>
KVCC_DEVICE void run_thread(const typename Body::Params& params) {
#if defined(__CUDA_ARCH__)
  if constexpr (Phased<Body>) {
    __shared__ typename Body::Shared shared;
    run_phases<Body>(params, shared);
  } else {
    extern __shared__ __align__(128) unsigned char kvcc_dynamic_shared[];
    Body::run(params, *reinterpret_cast<typename Body::Shared*>(kvcc_dynamic_shared));
  }
#elif !defined(__CUDACC__)
  auto& shared = *static_cast<typename Body::Shared*>(emulator::shared_memory());
  if constexpr (Phased<Body>) {
    run_phases<Body>(params, shared);
  } else {
    Body::run(params, shared);
  }
#endif
}

#if defined(__CUDACC__)

#define KVCC_UNROLL _Pragma("unroll")
#define KVCC_ROLLED _Pragma("unroll 1")
/// Tables of constants that a generated unit embeds.
#define KVCC_TABLE __device__ const
/// The entry of a generated unit, and the dynamic shared memory that its launch must give, which kvcc compile reads
/// from the PTX.
#define KVCC_KERNEL(name, ...)                                                                                    \
  extern "C" __device__ const uint32_t name##_shared_bytes = ::kvcc::device::dynamic_shared_bytes<__VA_ARGS__>(); \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::kThreads, ::kvcc::device::min_blocks<__VA_ARGS__>())  \
      name(const __grid_constant__ typename __VA_ARGS__::Params params) {                                         \
    ::kvcc::device::run_thread<__VA_ARGS__>(params);                                                              \
  }

#else

/// Runs the whole grid on the calling thread. seed 0: blocks and threads in order; else in an order shuffled by the
/// seed, and threads in another order in every phase. Shared memory starts as NaN bytes in every block.
template <class Body>
void run_on_host(const typename Body::Params& params, KvccGrid grid, uint32_t seed = 0) {
  std::mt19937 random(seed);
  const auto order = [&](uint64_t n) {
    std::vector<uint32_t> index(n);
    std::iota(index.begin(), index.end(), 0u);
    if (seed != 0) {
      for (uint64_t i = n; i > 1; --i) std::swap(index[i - 1], index[random() % i]);
    }
    return index;
  };
  const auto shared = std::make_unique<typename Body::Shared>();
  for (const uint32_t b : order(uint64_t{grid.x} * grid.y * grid.z)) {
    const Block block{b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    std::memset(static_cast<void*>(shared.get()), 0xff, sizeof(typename Body::Shared));
    const int count = Body::phases(params, block);
    for (int k = 0; k < count; ++k) {
      for (const uint32_t t : order(Body::kThreads)) Body::phase(k, params, block, static_cast<int>(t), *shared);
    }
  }
}

#define KVCC_UNROLL
#define KVCC_ROLLED
#define KVCC_TABLE static const
#if defined(KVCC_EMULATE)
/// For the emulator a unit's entry is what one thread does, beside what a launch needs to know.
#define KVCC_KERNEL(name, ...)                                                                          \
  extern "C" void name(const void* params) {                                                            \
    ::kvcc::device::run_thread<__VA_ARGS__>(*static_cast<const typename __VA_ARGS__::Params*>(params)); \
  }                                                                                                     \
  extern "C" const uint32_t name##_threads = __VA_ARGS__::kThreads;                                     \
  extern "C" const uint32_t name##_shared_bytes = static_cast<uint32_t>(sizeof(typename __VA_ARGS__::Shared));
#else
/// On the host a phased unit's entry takes the grid and the seed of run_on_host, so that tests can run the generated
/// text; threaded ones need the emulator.
#define KVCC_KERNEL(name, ...)                                                                     \
  extern "C" void name(const typename __VA_ARGS__::Params* params, KvccGrid grid, uint32_t seed) { \
    ::kvcc::device::run_on_host<__VA_ARGS__>(*params, grid, seed);                                 \
  }
#endif

#endif

}  // namespace kvcc::device
