// Made data for the times: random words, or fp16 numbers that are nearly normal. Everything follows from the seed.
#pragma once

#include "kernels/device/common.cuh"
#include "kernels/device/intrinsics.cuh"
#include "kernels/device/launch.cuh"
#include "tests/gpu/fill.h"

namespace kvcc::gpu {

KVCC_HD inline uint32_t mix_bits(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

struct Fill {
  using Params = FillParams;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 1;
  struct Shared {
    uint32_t unused;
  };

  static KVCC_DEVICE void run(const Params& p, Shared&) {
    const int64_t step = static_cast<int64_t>(p.blocks) * kThreads;
    for (int64_t i = static_cast<int64_t>(device::block_index().x) * kThreads + device::thread_index(); i < p.words;
         i += step) {
      const uint32_t first = mix_bits(static_cast<uint32_t>(i) * 2u + p.seed);
      p.out[i] = p.normal ? device::pack_half2(normal(first), normal(mix_bits(first + 0x9e3779b9u))) : first;
    }
  }

 private:
  /// A sum of eight bytes, to mean 0 and deviation 1.
  static KVCC_DEVICE float normal(uint32_t random) {
    const uint32_t more = mix_bits(random ^ 0x5bd1e995u);
    uint32_t sum = 0;
    for (uint32_t shift = 0; shift < 32; shift += 8) sum += (random >> shift & 255u) + (more >> shift & 255u);
    return device::multiply(static_cast<float>(sum) - 1020.0f, 1.0f / 209.0f);
  }
};

}  // namespace kvcc::gpu
