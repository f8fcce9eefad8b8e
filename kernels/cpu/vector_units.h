/* The launch contract of the CPU units of layout vector-1: vector codebooks, the groups of a head (formats/spec/
 * cache-vector.md). A unit takes the launch parameters of the family of its name (formats/layout/launch.h,
 * mma_launch.h) over the same grid as the units of mma-1, and the tables of vector_launch.h. C and C++. */
#ifndef KVCC_KERNELS_CPU_VECTOR_UNITS_H_
#define KVCC_KERNELS_CPU_VECTOR_UNITS_H_

#include "formats/layout/vector_launch.h"
#include "kernels/cpu/units.h"

#ifdef __cplusplus
extern "C" {
#endif

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
