// Marks a function to be compiled for several instruction sets, the best one chosen at run time. The arithmetic is the
// same IEEE operations in each, so results do not depend on the processor. Host only.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define KVCC_CLONES __attribute__((target_clones("default", "fma", "avx2", "avx512f")))
#else
#define KVCC_CLONES
#endif
