// Highway for the -inl.h files of the CPU units, once a target: a source that is compiled for every target includes
// targets.h, defines HWY_TARGET_INCLUDE, then includes hwy/foreach_target.h, then *-inl.h files, which include this.
#ifndef KVCC_KERNELS_CPU_SIMD_H_
#define KVCC_KERNELS_CPU_SIMD_H_

#include "kernels/cpu/targets.h"

/// Before a loop of a few fixed rounds over vectors, which must end up in registers.
#if defined(__clang__)
#define KVCC_CPU_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KVCC_CPU_UNROLL _Pragma("GCC unroll 16")
#endif

#endif  // KVCC_KERNELS_CPU_SIMD_H_

#if defined(HWY_TARGET_INCLUDE) || defined(HWY_COMPILE_ONLY_STATIC)
#include <hwy/highway.h>
#endif
