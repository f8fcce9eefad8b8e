// Everything that device text needs of the machine and plain C++ does not have: indices, barriers, warp operations,
// half pairs, tensor cores, wide and asynchronous loads. Three implementations of one set of functions: PTX under nvcc,
// and, under any other compiler, the emulator's (kernels/emulator, which is linked by whoever runs the text on a CPU).
// Device text uses no CUDA name but through this file. Functions that can go wrong take the caller's place.
#pragma once

#include <cstdint>

#include "formats/layout/half.h"

#if defined(__CUDACC__)
#define KVCC_DEVICE __device__ __forceinline__
#define KVCC_PLACE
#define KVCC_PLACE_NEXT
#else
#define KVCC_DEVICE inline
#define KVCC_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define KVCC_PLACE_NEXT , KVCC_PLACE
#endif

#if !defined(__CUDACC__)
/// The emulator's side: the calling fiber is one thread of a block. Errors end the launch with emulator::Fault.
namespace kvcc::emulator {
struct Index {
  uint32_t x, y, z;
};
uint32_t thread_index();
Index block_index();
void* shared_memory();  ///< of the calling thread's block, 128-byte aligned
void sync_block(const char* file, int line);
void sync_warp(uint32_t mask, const char* file, int line);
uint32_t shuffle(uint32_t mask, uint32_t value, uint32_t source_lane, const char* file, int line);
uint32_t ballot(uint32_t mask, bool predicate, const char* file, int line);
uint32_t match_any(uint32_t mask, uint32_t value, const char* file, int line);
void fence();  ///< __threadfence
uint32_t atomic_add(uint32_t* address, uint32_t value);
uint32_t atomic_or(uint32_t* address, uint32_t value);
uint32_t atomic_max(uint32_t* address, uint32_t value);
/// fp16, each lane of the pair rounded once, subnormals kept.
uint32_t fma_half2(uint32_t a, uint32_t b, uint32_t c);
uint32_t multiply_half2(uint32_t a, uint32_t b);
uint32_t add_half2(uint32_t a, uint32_t b);
float exp2_approximate(float x);  ///< ex2.approx.ftz.f32: subnormal results are 0
/// D = A B + C, mma.m16n8k16 row col f32 f16 f16 f32; all 32 lanes of the warp take part.
void mma_16816(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, const char* file, int line);
uint32_t transpose_8x8(uint32_t rows, const char* file, int line);  ///< movmatrix.trans.b16
void copy_async_16(void* shared, const void* global, const char* file, int line);
void copy_async_commit();
void copy_async_wait(int pending);  ///< until at most `pending` groups of this thread are under way
}  // namespace kvcc::emulator
#endif

namespace kvcc::device {

constexpr uint32_t kWholeWarp = 0xffffffffu;

/// Index of a block in its grid.
struct Block {
  uint32_t x, y, z;
};

KVCC_DEVICE uint32_t thread_index() {
#if defined(__CUDA_ARCH__)
  return threadIdx.x;
#elif !defined(__CUDACC__)
  return emulator::thread_index();
#else
  return 0;
#endif
}

KVCC_DEVICE Block block_index() {
#if defined(__CUDA_ARCH__)
  return {blockIdx.x, blockIdx.y, blockIdx.z};
#elif !defined(__CUDACC__)
  const emulator::Index b = emulator::block_index();
  return {b.x, b.y, b.z};
#else
  return {};
#endif
}

/// Barrier of the block; shared and global memory written before is seen after by the block.
KVCC_DEVICE void sync_block(KVCC_PLACE) {
#if defined(__CUDA_ARCH__)
  __syncthreads();
#elif !defined(__CUDACC__)
  emulator::sync_block(file, line);
#endif
}

/// Barrier of the warp's lanes in `mask`, likewise for memory.
KVCC_DEVICE void sync_warp(uint32_t mask = kWholeWarp KVCC_PLACE_NEXT) {
#if defined(__CUDA_ARCH__)
  __syncwarp(mask);
#elif !defined(__CUDACC__)
  emulator::sync_warp(mask, file, line);
#endif
}

/// `value` of lane `source`. Does not order memory.
KVCC_DEVICE uint32_t shuffle(uint32_t value, uint32_t source KVCC_PLACE_NEXT) {
#if defined(__CUDA_ARCH__)
  return __shfl_sync(kWholeWarp, value, static_cast<int>(source));
#elif !defined(__CUDACC__)
  return emulator::shuffle(kWholeWarp, value, source, file, line);
#else
  return value;
#endif
}
KVCC_DEVICE uint32_t shuffle_xor(uint32_t value, uint32_t lanes KVCC_PLACE_NEXT) {
#if defined(__CUDA_ARCH__)
  return __shfl_xor_sync(kWholeWarp, value, static_cast<int>(lanes));
#elif !defined(__CUDACC__)
  return emulator::shuffle(kWholeWarp, value, (thread_index() & 31u) ^ lanes, file, line);
#else
  return value;
#endif
}
KVCC_DEVICE float shuffle_xor(float value, uint32_t lanes KVCC_PLACE_NEXT) {
#if defined(__CUDACC__)
  return bits_float(shuffle_xor(float_bits(value), lanes));
#else
  return bits_float(shuffle_xor(float_bits(value), lanes, file, line));
#endif
}

KVCC_DEVICE uint32_t ballot(bool predicate KVCC_PLACE_NEXT) {
#if defined(__CUDA_ARCH__)
  return __ballot_sync(kWholeWarp, predicate);
#elif !defined(__CUDACC__)
  return emulator::ballot(kWholeWarp, predicate, file, line);
#else
  return predicate;
#endif
}
/// Lanes that hold the same value.
KVCC_DEVICE uint32_t match_any(uint32_t value KVCC_PLACE_NEXT) {
#if defined(__CUDA_ARCH__)
  return __match_any_sync(kWholeWarp, value);
#elif !defined(__CUDACC__)
  return emulator::match_any(kWholeWarp, value, file, line);
#else
  return value;
#endif
}

/// Orders this thread's writes before it against those after, for all threads of the device.
KVCC_DEVICE void fence() {
#if defined(__CUDA_ARCH__)
  __threadfence();
#elif !defined(__CUDACC__)
  emulator::fence();
#endif
}

/// Integer atomics only: they commute, so results do not depend on the schedule.
KVCC_DEVICE uint32_t atomic_add(uint32_t* address, uint32_t value) {
#if defined(__CUDA_ARCH__)
  return atomicAdd(address, value);
#elif !defined(__CUDACC__)
  return emulator::atomic_add(address, value);
#else
  return 0;
#endif
}
KVCC_DEVICE uint32_t atomic_or(uint32_t* address, uint32_t value) {
#if defined(__CUDA_ARCH__)
  return atomicOr(address, value);
#elif !defined(__CUDACC__)
  return emulator::atomic_or(address, value);
#else
  return 0;
#endif
}
KVCC_DEVICE uint32_t atomic_max(uint32_t* address, uint32_t value) {
#if defined(__CUDA_ARCH__)
  return atomicMax(address, value);
#elif !defined(__CUDACC__)
  return emulator::atomic_max(address, value);
#else
  return 0;
#endif
}

/// Two fp16 numbers in a register, the first in the low half.
using Half2 = uint32_t;

KVCC_DEVICE Half2 fma_half2(Half2 a, Half2 b, Half2 c) {
#if defined(__CUDA_ARCH__)
  Half2 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#elif !defined(__CUDACC__)
  return emulator::fma_half2(a, b, c);
#else
  return a;
#endif
}
KVCC_DEVICE Half2 multiply_half2(Half2 a, Half2 b) {
#if defined(__CUDA_ARCH__)
  Half2 d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#elif !defined(__CUDACC__)
  return emulator::multiply_half2(a, b);
#else
  return a;
#endif
}
KVCC_DEVICE Half2 add_half2(Half2 a, Half2 b) {
#if defined(__CUDA_ARCH__)
  Half2 d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#elif !defined(__CUDACC__)
  return emulator::add_half2(a, b);
#else
  return a;
#endif
}
KVCC_DEVICE Half2 negate_half2(Half2 a) {
#if defined(__CUDA_ARCH__)
  Half2 d;  // not an exclusive or: ptxas makes it a modifier of the instruction that reads d
  asm("neg.f16x2 %0, %1;" : "=r"(d) : "r"(a));
  return d;
#else
  return a ^ 0x80008000u;
#endif
}
/// Both rounded to nearest even.
KVCC_DEVICE Half2 pack_half2(float low, float high) {
#if defined(__CUDA_ARCH__)
  Half2 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
#else
  return static_cast<uint32_t>(float_to_half(low)) | static_cast<uint32_t>(float_to_half(high)) << 16;
#endif
}
KVCC_DEVICE float low_half(Half2 x) { return half_to_float(static_cast<uint16_t>(x)); }
KVCC_DEVICE float high_half(Half2 x) { return half_to_float(static_cast<uint16_t>(x >> 16)); }

/// 2^x within 2 ulp; results below 2^-126 are 0.
KVCC_DEVICE float exp2_approximate(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#elif !defined(__CUDACC__)
  return emulator::exp2_approximate(x);
#else
  return x;
#endif
}

/// c += A B on the tensor cores, A 16 x 16 fp16 by rows, B 16 x 8 fp16 by columns, f32 accumulators. In lane 4 g + t:
///   a[0] A[g][2t, 2t+1], a[1] A[g+8][2t, 2t+1], a[2] A[g][2t+8, 2t+9], a[3] A[g+8][2t+8, 2t+9];
///   b0 B[2t, 2t+1][g], b1 B[2t+8, 2t+9][g]; c[0] C[g][2t], c[1] C[g][2t+1], c[2] C[g+8][2t], c[3] C[g+8][2t+1].
KVCC_DEVICE void mma_16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 KVCC_PLACE_NEXT) {
#if defined(__CUDA_ARCH__)
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif !defined(__CUDACC__)
  emulator::mma_16816(c, a, b0, b1, file, line);
#endif
}

/// Lane 4 g + t gives M[g][2t, 2t+1] and takes M[2t, 2t+1][g] of an 8 x 8 matrix of fp16.
KVCC_DEVICE uint32_t transpose_8x8(uint32_t rows KVCC_PLACE_NEXT) {
#if defined(__CUDA_ARCH__)
  uint32_t columns;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
#elif !defined(__CUDACC__)
  return emulator::transpose_8x8(rows, file, line);
#else
  return rows;
#endif
}

KVCC_HD inline uint32_t rotate_right(uint32_t x, uint32_t n) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(x, x, n);
#else
  return n % 32u ? x >> n % 32u | x << (32u - n % 32u) : x;
#endif
}
/// Bits n to n + 31 of (high, low), n in [0, 31].
KVCC_HD inline uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t n) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(low, high, n);
#else
  return n == 0 ? low : low >> n | high << (32u - n);
#endif
}
/// Number of the lowest set bit of x, which is not 0.
KVCC_HD inline uint32_t first_bit(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__ffs(static_cast<int>(x))) - 1u;
#else
  return static_cast<uint32_t>(__builtin_ctz(x));
#endif
}
/// Bytes of (a, b) by the four selectors of prmt without sign replication.
KVCC_HD inline uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selectors) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, selectors);
#else
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    out |= static_cast<uint32_t>(bytes >> 8u * (selectors >> 4u * i & 7u) & 255u) << 8u * i;
  }
  return out;
#endif
}

template <int n>
struct alignas(4 * n) Words {
  uint32_t word[n];
};

/// Reads of memory that no thread writes while the kernel runs, streamed past the L1 cache. Aligned to 4 n bytes.
template <int n>
KVCC_DEVICE Words<n> load_streamed(const void* from) {
  static_assert(n == 1 || n == 2 || n == 4);
#if defined(__CUDA_ARCH__)
  Words<n> w;
  if constexpr (n == 4) {
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
        : "l"(from));
  } else if constexpr (n == 2) {
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(w.word[0]), "=r"(w.word[1]) : "l"(from));
  } else {
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(w.word[0]) : "l"(from));
  }
  return w;
#else
  return *static_cast<const Words<n>*>(from);
#endif
}

/// The same, kept in the L1 cache: words of which the warps of a block take parts.
template <int n>
KVCC_DEVICE Words<n> load_cached(const void* from) {
  static_assert(n == 1 || n == 2 || n == 4);
#if defined(__CUDA_ARCH__)
  Words<n> w;
  if constexpr (n == 4) {
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
        : "l"(from));
  } else if constexpr (n == 2) {
    asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(w.word[0]), "=r"(w.word[1]) : "l"(from));
  } else {
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(w.word[0]) : "l"(from));
  }
  return w;
#else
  return *static_cast<const Words<n>*>(from);
#endif
}

/// 16 bytes from global to shared memory, both 16-byte aligned, complete after copy_async_wait and a barrier.
KVCC_DEVICE void copy_async_16(void* shared, const void* global KVCC_PLACE_NEXT) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))), "l"(global)
               : "memory");
#elif !defined(__CUDACC__)
  emulator::copy_async_16(shared, global, file, line);
#endif
}
KVCC_DEVICE void copy_async_commit() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
  emulator::copy_async_commit();
#endif
}
template <int pending>
KVCC_DEVICE void copy_async_wait() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
#elif !defined(__CUDACC__)
  emulator::copy_async_wait(pending);
#endif
}

}  // namespace kvcc::device
