/* The launch contract of the CPU units of layout mma-1: what `kvcc compile --arch cpu` emits and what the runtime has
 * built in. A unit takes the same launch parameters as the CUDA kernel of its name (formats/layout/launch.h,
 * mma_launch.h), with host pointers, and works through a range of the same grid of blocks, so that a caller divides
 * blocks among threads as it likes; the results do not depend on how. C and C++. */
#ifndef KVCC_KERNELS_CPU_UNITS_H_
#define KVCC_KERNELS_CPU_UNITS_H_

#include "formats/layout/mma_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a reader computes. f32: decoded values, products and sums in f32. i16: levels, rotations and weights in 16-bit
 * fixed point with 32-bit sums (about 2^-13 of the largest term), twice as many a vector; readers fall back to f32
 * where i16 does not serve. f64: attention's products and sums in double over decoded f32 values, for comparison; the
 * built-in unit alone knows it (attention_f64.cc), others take it for f32. Packing and dequantising know no difference.
 */
enum { KVCC_ARITHMETIC_F32 = 0, KVCC_ARITHMETIC_I16 = 1, KVCC_ARITHMETIC_F64 = 2 };

/* What a unit needs beside its launch parameters. Read only; one serves all layers and threads. Where KvccRope of the
 * parameters has fp16 relative tables, CPU units take the f32 ones here and ignore those. */
typedef struct KvccCpuTables {
  const float* key_levels;   /* [L, H, key_codes], of the artifact; emitted units hold their own and ignore it */
  const float* value_levels; /* [L, H, value_codes] */
  const uint8_t* key_bits;   /* [L, H] width of each head's codes */
  const uint8_t* value_bits; /* [L, H] */
  int32_t key_codes;         /* levels of a row */
  int32_t value_codes;
  const float* relative_cosine; /* f32 [128, R / 2] of position r, without the attention factor; null without RoPE */
  const float* relative_sine;
  int32_t arithmetic; /* KVCC_ARITHMETIC_… */
} KvccCpuTables;

/* Blocks [first, last) of the unit's grid, x fastest, then y, then z. `params`: the family's struct. */
typedef void (*KvccCpuUnit)(const void* params, const KvccCpuTables* tables, uint32_t first, uint32_t last);

/* What makes one unit differ from another: codegen's Configuration as numbers. */
enum { KVCC_AXIS_CHANNEL = 0, KVCC_AXIS_TOKEN = 1 };
enum { KVCC_SPARSE_NONE = 0, KVCC_SPARSE_LISTED = 1 }; /* csr and tail lie alike in mma-1 */
enum { KVCC_ROPE_NONE = 0, KVCC_ROPE_HALF = 1, KVCC_ROPE_INTERLEAVED = 2 };
enum { KVCC_DTYPE_F32 = 0, KVCC_DTYPE_F16 = 1, KVCC_DTYPE_BF16 = 2 };
typedef struct KvccCpuTensor {
  int32_t head_dim; /* a multiple of 16 up to 256 */
  int32_t axis, sparse;
} KvccCpuTensor;
typedef struct KvccCpuConfig {
  KvccCpuTensor key, value; /* widths of codes are by head, in the tables */
  int32_t rope, rotary_dim; /* of the keys; rotary_dim a multiple of 16 */
  int32_t dtype;            /* of queries, weights, and what is packed */
} KvccCpuConfig;

/* The built-in units: the same text as the emitted ones, with the configuration at run time. Heads may differ in
 * width. Blocks as above. pack_*_select only for the token axis, and before pack_*. */
enum {
  KVCC_CPU_PACK_KEY_SELECT = 0,
  KVCC_CPU_PACK_KEY,
  KVCC_CPU_PACK_VALUE_SELECT,
  KVCC_CPU_PACK_VALUE,
  KVCC_CPU_KEY_SCORES,
  KVCC_CPU_VALUE_MIX,
  KVCC_CPU_VALUE_MERGE,
  KVCC_CPU_ATTENTION,
  KVCC_CPU_ATTENTION_MERGE,
  KVCC_CPU_DEQUANTISE_KEY,
  KVCC_CPU_DEQUANTISE_VALUE,
  KVCC_CPU_COPY_PAGES
};
void kvcc_cpu_run(int32_t family, const KvccCpuConfig* config, const void* params, const KvccCpuTables* tables,
                  uint32_t first, uint32_t last);

/* Name of the instruction set that dispatch has chosen on this machine ("AVX3_DL", "AVX2", "SSE4", "NEON", …). */
const char* kvcc_cpu_target(void);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KVCC_KERNELS_CPU_UNITS_H_ */
