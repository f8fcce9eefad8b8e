// The instruction sets that the CPU units are built for: SSE4, AVX2, AVX3 (AVX-512), AVX3_DL (with VBMI and VNNI, Ice
// Lake and Zen 4 on) and NEON. Others would add seconds of compiling and no machine that matters. Sources that are
// compiled for each include this first, then hwy/foreach_target.h, then the -inl.h files.
#pragma once

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif
// The least one, instead of one lane at a time.
#if defined(__x86_64__) && !defined(HWY_BASELINE_TARGETS)
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif
