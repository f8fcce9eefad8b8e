// How a kernel's text is run. A kernel is a body of phases between block barriers,
//   struct Body { Params; kThreads; Shared; static int phases(params, block); static void phase(k, ..., thread,
//   shared);
//   }
// with phases() equal for all threads of a block and nothing but `shared` kept from phase to phase. So the same text
// runs on the device (barriers between phases) and on the host (plain loops, in any order of blocks and threads).
#pragma once

#include <cstdint>

#include "formats/layout/half.h"
#include "formats/layout/launch.h"
#if !defined(__CUDACC__)
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>
#endif

namespace kvcc::device {

/// Index of a block in its grid.
struct Block {
  uint32_t x, y, z;
};

#if defined(__CUDACC__)

template <class Body>
__device__ inline void run_block(const typename Body::Params& params) {
  __shared__ typename Body::Shared shared;
  const Block block{blockIdx.x, blockIdx.y, blockIdx.z};
  const int count = Body::phases(params, block);
  for (int k = 0; k < count; ++k) {
    if (k > 0) __syncthreads();
    Body::phase(k, params, block, static_cast<int>(threadIdx.x), shared);
  }
}

/// Blocks that fit a multiprocessor at least: 128 registers a thread. Stated so that ptxas keeps to it; left to itself
/// it aims at more blocks and spills a few registers for that.
constexpr int kMinBlocks = 4;

#define KVCC_UNROLL _Pragma("unroll")
#define KVCC_ROLLED _Pragma("unroll 1")
/// Tables of constants that a generated unit embeds.
#define KVCC_TABLE __device__ const
/// The entry of a generated unit.
#define KVCC_KERNEL(name, ...)                                                                    \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::kThreads, ::kvcc::device::kMinBlocks) \
      name(const __grid_constant__ typename __VA_ARGS__::Params params) {                         \
    ::kvcc::device::run_block<__VA_ARGS__>(params);                                               \
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
/// On the host a unit's entry takes the grid and the seed of run_on_host, so that tests can run the generated text.
#define KVCC_KERNEL(name, ...)                                                                     \
  extern "C" void name(const typename __VA_ARGS__::Params* params, KvccGrid grid, uint32_t seed) { \
    ::kvcc::device::run_on_host<__VA_ARGS__>(*params, grid, seed);                                 \
  }

#endif

}  // namespace kvcc::device
