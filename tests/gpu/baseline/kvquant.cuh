// Kernels as KVQuant's are built (not its text): what packed caches are timed against as the state of the art.
//   keys    thread = token, one query head a block; the block loads an fp32 table of all channels' levels for every 128
//           tokens; 4-byte loads; sine and cosine of every (token, pair) for every head; sums to memory by float
//           atomics. `fast` false: table [level][channel] (lanes of a warp meet in a bank), accurate sine and cosine,
//           as deployed. `fast` true: one codebook of all channels, a table column a thread, approximate sine and
//           cosine, as benchmarked.
//   values  thread = token; products pass through a 32 KiB transpose in shared memory; float atomics.
//   outliers a launch of their own: fp32 value and 32-bit column, ten a thread, an atomic each.
// Scores and sums are added to what is there: the caller clears them. Float atomics make the order of sums vary, so
// results are compared within 2^-12 of the sum of the terms' magnitudes (the approximate form: 2^-8, below 4K tokens).
#pragma once

#include "formats/layout/mma_launch.h"
#include "kernels/device/common.cuh"
#include "kernels/device/intrinsics.cuh"
#include "kernels/device/launch.cuh"

#if !defined(__CUDACC__)
#include <cmath>
#endif

namespace kvcc::gpu {

using device::Block;

struct KvquantParams {
  const uint32_t* codes;      // [H, D * bits / 32, T]: 32 channels of a token in `bits` words, T apart
  const float* levels;        // keys: [H, D, 2^bits] decoded; fast keys and values: [2^bits]
  const float* range;         // values: [T, 2] scale, zero
  const int32_t* row_ends;    // [T + 1] outliers before token t
  const int32_t* columns;     // [outliers] head * D + channel, ascending in a token
  const float* outliers;      // [outliers] added to what the codes give
  const int32_t* first_rows;  // [ceil(outliers / 10)] token of outlier 10 i
  const float* query;         // [H * group, D]
  const float* weights;       // [H * group, T]
  float* out;                 // keys: scores [H * group, T]; values: [H * group, D]
  float theta;                // rotary base
  int32_t tokens, heads, group, outlier_count;
};

constexpr int32_t kOutliersAThread = 10;

KVCC_LAUNCH_FN KvccGrid kvquant_grid(const KvquantParams* p) {
  return {kvcc_ceil_div(p->tokens, KVCC_THREADS), static_cast<uint32_t>(p->heads * p->group), 1u};
}
KVCC_LAUNCH_FN KvccGrid kvquant_outlier_grid(const KvquantParams* p) {
  return {kvcc_ceil_div(kvcc_ceil_div(p->outlier_count, kOutliersAThread), KVCC_THREADS), 1u, 1u};
}

KVCC_DEVICE void add_to(float* address, float value) {
#if defined(__CUDA_ARCH__)
  atomicAdd(address, value);
#else
  *address += value;  // the emulator runs one thread at a time
#endif
}
template <bool fast>
KVCC_DEVICE void sine_cosine(float angle, float& sine, float& cosine) {
#if defined(__CUDA_ARCH__)
  if constexpr (fast) {
    __sincosf(angle, &sine, &cosine);
  } else {
    sincosf(angle, &sine, &cosine);
  }
#elif !defined(__CUDACC__)
  sine = std::sin(angle);
  cosine = std::cos(angle);
#endif
}
KVCC_DEVICE float power(float base, float exponent) {
#if defined(__CUDA_ARCH__)
  return powf(base, exponent);
#elif !defined(__CUDACC__)
  return std::pow(base, exponent);
#else
  return base * exponent;
#endif
}

/// Dense part of the key scores. Grid kvquant_grid.
template <int bits, int D, bool fast>
struct KvquantKeyScores {
  using Params = KvquantParams;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 1, kLevels = 1 << bits, kColumns = fast ? KVCC_THREADS : D;
  static_assert(D % 64 == 0);
  struct Shared {
    float levels[kLevels][kColumns];
    float query[D];
    float theta[D / 2];
  };

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const Block b = device::block_index();
    const int32_t thread = static_cast<int32_t>(device::thread_index()), head = static_cast<int32_t>(b.y) / p.group;
    for (int32_t channel = thread; channel < kColumns; channel += kThreads) {
      const float* levels = fast ? p.levels : p.levels + (static_cast<int64_t>(head) * D + channel) * kLevels;
      for (int32_t i = 0; i < kLevels; ++i) shared.levels[i][channel] = levels[i];
    }
    for (int32_t i = thread; i < D; i += kThreads) shared.query[i] = p.query[static_cast<int64_t>(b.y) * D + i];
    for (int32_t i = thread; i < D / 2; i += kThreads) {
      shared.theta[i] = power(p.theta, device::multiply(-2.0f / D, static_cast<float>(i)));
    }
    device::sync_block();
    const int32_t token = static_cast<int32_t>(b.x) * kThreads + thread;
    if (token >= p.tokens) return;
    float sum = 0;
    for (int32_t chunk = 0; chunk < D / 64; ++chunk) {
      uint32_t low[bits], high[bits];
      KVCC_UNROLL
      for (int32_t w = 0; w < bits; ++w) {
        const int64_t word = static_cast<int64_t>(head) * (D / 32 * bits) + chunk * bits + w;
        low[w] = p.codes[word * p.tokens + token];
        high[w] = p.codes[(word + D / 64 * bits) * p.tokens + token];
      }
      KVCC_UNROLL
      for (uint32_t j = 0; j < 32; ++j) {
        const int32_t i = chunk * 32 + static_cast<int32_t>(j);
        const int32_t column = fast ? thread : i, partner = fast ? thread : i + D / 2;
        const float x = shared.levels[linear::get_code(low, j, bits)][column];
        const float y = shared.levels[linear::get_code(high, j, bits)][partner];
        float sine, cosine;
        sine_cosine<fast>(device::multiply(shared.theta[i], static_cast<float>(token)), sine, cosine);
        const float turned_x = fused_multiply_add(x, cosine, -device::multiply(y, sine));
        const float turned_y = fused_multiply_add(y, cosine, device::multiply(x, sine));
        sum = fused_multiply_add(shared.query[i], turned_x, sum);
        sum = fused_multiply_add(shared.query[i + D / 2], turned_y, sum);
      }
    }
    add_to(&p.out[static_cast<int64_t>(b.y) * p.tokens + token], sum);
  }
};

/// Outliers of the keys. Grid kvquant_outlier_grid.
template <int D>
struct KvquantKeyOutliers {
  using Params = KvquantParams;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 1;
  struct Shared {
    uint32_t unused;
  };

  static KVCC_DEVICE void run(const Params& p, Shared&) {
    const int32_t number =
        static_cast<int32_t>(device::block_index().x) * kThreads + static_cast<int32_t>(device::thread_index());
    const int32_t begin = number * kOutliersAThread;
    if (begin >= p.outlier_count) return;
    int32_t token = p.first_rows[number];
    for (int32_t i = begin; i < begin + kOutliersAThread && i < p.outlier_count; ++i) {
      while (i >= p.row_ends[token + 1]) ++token;
      const int32_t head = p.columns[i] / D, channel = p.columns[i] % D, pair = channel % (D / 2);
      const float theta = power(p.theta, device::multiply(-2.0f / D, static_cast<float>(pair)));
      float sine, cosine;
      sine_cosine<false>(device::multiply(theta, static_cast<float>(token)), sine, cosine);
      for (int32_t g = 0; g < p.group; ++g) {
        const int64_t row = static_cast<int64_t>(head) * p.group + g;
        const float same = p.query[row * D + channel];
        const float other = channel < D / 2 ? p.query[row * D + channel + D / 2] : -p.query[row * D + channel - D / 2];
        const float turned = fused_multiply_add(same, cosine, device::multiply(other, sine));
        add_to(&p.out[row * p.tokens + token], device::multiply(turned, p.outliers[i]));
      }
    }
  }
};

/// Dense part of the value mix. Grid kvquant_grid.
template <int bits, int D>
struct KvquantValueMix {
  using Params = KvquantParams;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 1, kLevels = 1 << bits, kPart = 64;
  static_assert(D % kPart == 0);
  struct Shared {
    float levels[kLevels][kThreads];
    float product[kPart][kThreads + 1];
  };

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const Block b = device::block_index();
    const int32_t thread = static_cast<int32_t>(device::thread_index()), head = static_cast<int32_t>(b.y) / p.group;
    for (int32_t i = 0; i < kLevels; ++i) shared.levels[i][thread] = p.levels[i];
    const int32_t token = static_cast<int32_t>(b.x) * kThreads + thread;
    const bool there = token < p.tokens;
    float weight = 0, scale = 0, zero = 0;
    if (there) {
      weight = p.weights[static_cast<int64_t>(b.y) * p.tokens + token];
      scale = p.range[2 * static_cast<int64_t>(token)];
      zero = p.range[2 * static_cast<int64_t>(token) + 1];
    }
    for (int32_t part = 0; part < D / kPart; ++part) {
      for (int32_t chunk = 0; chunk < kPart / 32; ++chunk) {
        uint32_t words[bits];
        KVCC_UNROLL
        for (int32_t w = 0; w < bits; ++w) {
          const int64_t word = static_cast<int64_t>(head) * (D / 32 * bits) + (part * (kPart / 32) + chunk) * bits + w;
          words[w] = there ? p.codes[word * p.tokens + token] : 0u;
        }
        KVCC_UNROLL
        for (uint32_t j = 0; j < 32; ++j) {
          const float level = shared.levels[linear::get_code(words, j, bits)][thread];
          shared.product[chunk * 32 + static_cast<int32_t>(j)][thread] =
              device::multiply(weight, fused_multiply_add(level, scale, zero));
        }
      }
      device::sync_block();
      const int32_t channel = thread % kPart, half = thread / kPart;
      float sum = 0;
      for (int32_t i = half * kPart; i < half * kPart + kPart; ++i) sum = device::add(sum, shared.product[channel][i]);
      add_to(&p.out[static_cast<int64_t>(b.y) * D + part * kPart + channel], sum);
      device::sync_block();
    }
  }
};

/// Outliers of the values. Grid kvquant_outlier_grid.
template <int D>
struct KvquantValueOutliers {
  using Params = KvquantParams;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 1;
  struct Shared {
    uint32_t unused;
  };

  static KVCC_DEVICE void run(const Params& p, Shared&) {
    const int32_t number =
        static_cast<int32_t>(device::block_index().x) * kThreads + static_cast<int32_t>(device::thread_index());
    const int32_t begin = number * kOutliersAThread;
    if (begin >= p.outlier_count) return;
    int32_t token = p.first_rows[number];
    for (int32_t i = begin; i < begin + kOutliersAThread && i < p.outlier_count; ++i) {
      while (i >= p.row_ends[token + 1]) ++token;
      const int32_t head = p.columns[i] / D, channel = p.columns[i] % D;
      for (int32_t g = 0; g < p.group; ++g) {
        const int64_t row = static_cast<int64_t>(head) * p.group + g;
        const float weight = p.weights[row * p.tokens + token];
        add_to(&p.out[row * D + channel], device::multiply(weight, p.outliers[i]));
      }
    }
  }
};

}  // namespace kvcc::gpu
