// Highway for the CPU units, with the targets that they are built for: SSE4, AVX2, AVX3 (AVX-512), AVX3_DL (with VBMI
// and VNNI: Ice Lake, Zen 4) and NEON, beside the compiler's own, which may be scalar.
//
// A file that is compiled for every target includes this, defines HWY_TARGET_INCLUDE, then includes
// hwy/foreach_target.h, then *-inl.h files, which include this again: highway.h must come after foreach_target.h.
#ifndef KVCC_KERNELS_CPU_SIMD_H_
#define KVCC_KERNELS_CPU_SIMD_H_

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif

/// Before a loop of a few fixed rounds over vectors, which must end up in registers.
#if defined(__clang__)
#define KVCC_CPU_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KVCC_CPU_UNROLL _Pragma("GCC unroll 16")
#endif

#endif  // KVCC_KERNELS_CPU_SIMD_H_

#if defined(HWY_TARGET_INCLUDE) || defined(HWY_COMPILE_ONLY_STATIC)
#include "hwy/highway.h"
#endif
