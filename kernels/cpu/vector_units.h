/* The launch contract of the CPU units of layout vector-1: vector codebooks, the groups of a head (formats/spec/
 * cache-vector.md). A unit takes the launch parameters of the family of its name (formats/layout/launch.h,
 * mma_launch.h) over the same grid as the units of mma-1. Of KvccCache it reads pages, page_table, lengths, exact,
 * head_words, page_bytes, max_pages, sequences, heads, sink and residual; scales and sparse parts there are none. C and
 * C++. */
#ifndef KVCC_KERNELS_CPU_VECTOR_UNITS_H_
#define KVCC_KERNELS_CPU_VECTOR_UNITS_H_

#include "kernels/cpu/units.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVCC_VECTOR_ROW = 4 }; /* floats of a table's row */

/* Up to four coordinates that one code gives. Groups of more are several quads of one code; groups of 0 bits are none:
 * what they decode to is in `constant`. */
typedef struct KvccVectorQuad {
  int32_t first;     /* where its coordinates begin, in the order of `place` */
  int32_t width;     /* 1 to 4 */
  int32_t first_bit; /* bits of a token's head before its code */
  int32_t bits;      /* of the code, 1 to 12 */
  int64_t table;     /* of its [2^bits, 4] rows in `tables`; what is beyond the width is 0 */
} KvccVectorQuad;

/* A group as pack sees it. */
typedef struct KvccVectorGroup {
  int32_t first, width; /* coordinates; width 1 to 8 */
  int32_t first_bit, bits;
  int64_t planes; /* of its [width, 2^bits] coordinates in `planes`, rows padded to a multiple of 16 with infinities */
} KvccVectorGroup;

/* One layer's keys or values. Two forms: with a transform, tables hold coordinates z and a value is inverse z + mean;
 * without one, every channel follows from one group alone, and tables hold values. */
typedef struct KvccVectorTensor {
  int32_t head_dim;          /* D, a multiple of 16 up to 256 */
  int32_t transform;         /* 1 or 0 */
  const int32_t* token_bits; /* [H] bits of a token */
  const int32_t* first_quad; /* [H + 1] */
  const KvccVectorQuad* quads;
  const float* tables;
  const int32_t* places;         /* [H] coordinates that quads give */
  const int32_t* place;          /* [H, D] coordinate, or channel without a transform, that place i of a head holds */
  const float* constant;         /* [H, D] of coordinates or channels that no quad gives, else 0 */
  const float* inverse;          /* [H, D, D] by channel, then coordinate; null without a transform */
  const float* active;           /* [H, D, D] likewise by place, then channel; beyond `places` unspecified */
  const float* mean;             /* [H, D] of channels; 0 without a transform */
  const float* active_mean;      /* [H, D] mean and what constant coordinates add to it */
  const float* forward;          /* [H, D, D] by channel, then coordinate: pack */
  const float* forward_mean;     /* [H, D] what pack takes off */
  const int32_t* first_group;    /* [H + 1] */
  const KvccVectorGroup* groups; /* those with codes */
  const float* planes;
} KvccVectorTensor;

/* What a unit needs beside its launch parameters, for the layer of KvccCache.layer. */
typedef struct KvccVectorTables {
  const KvccVectorTensor* key;   /* null where the family reads no keys */
  const KvccVectorTensor* value; /* likewise */
  int32_t rope, rotary_dim;      /* KVCC_ROPE_…; of the keys, rotary_dim a multiple of 16 */
  int32_t dtype;                 /* KVCC_DTYPE_…, of queries, weights, and what is packed */
  const float* relative_cosine;  /* as in KvccCpuTables */
  const float* relative_sine;
} KvccVectorTables;

/* Blocks [first, last) of the family's grid. Families KVCC_CPU_… of units.h but the _select ones. */
void kvcc_cpu_run_vector(int32_t family, const void* params, const KvccVectorTables* tables, uint32_t first,
                         uint32_t last);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KVCC_KERNELS_CPU_VECTOR_UNITS_H_ */
