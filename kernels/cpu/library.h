/* The table of units in a shared library that `kvcc compile --arch cpu` made (kvcc_NAME_cpu.so): what a host that loads
 * the library asks for first. C and C++. */
#ifndef KVCC_KERNELS_CPU_LIBRARY_H_
#define KVCC_KERNELS_CPU_LIBRARY_H_

#include <stdint.h>

#include "kernels/cpu/units.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of what units take: launch parameters, tables, layout of pages. Another number: the library can't be used. */
enum { KVCC_CPU_CONTRACT = 1 };

/* One entry of a unit. */
typedef struct KvccCpuLibraryUnit {
  int32_t family;     /* KVCC_CPU_… of units.h, as in kvcc_cpu_run */
  int32_t key_bits;   /* width of the keys' codes that it serves; 0: of no matter. Where heads differ in width there is
                         a unit for each width (attention: for each pair); a host runs all of a family */
  int32_t value_bits; /* likewise of the values */
  int32_t dtype;      /* KVCC_DTYPE_…, of queries, weights, and what is packed */
  const char* name;   /* as in kernels.json */
  KvccCpuUnit run;
} KvccCpuLibraryUnit;

typedef struct KvccCpuLibrary {
  uint32_t size;              /* sizeof(KvccCpuLibrary) as it was made; later ones only add members */
  int32_t contract;           /* KVCC_CPU_CONTRACT as it was made */
  const char* content_sha256; /* of the artifact, 64 hexadecimal digits: units embed its levels and serve no other */
  const char* artifact;       /* its file name, for people */
  const char* scheme;         /* likewise */
  const KvccCpuLibraryUnit* units; /* [count], by family, then width */
  int32_t count;
  int32_t layers, heads;       /* of the artifact: L, H */
  const char* (*target)(void); /* name of the instruction set that dispatch has chosen on this machine, "AVX2", … */
} KvccCpuLibrary;

/* The library's one registry. The name to look up (dlsym): KVCC_CPU_LIBRARY_SYMBOL. */
const KvccCpuLibrary* kvcc_cpu_library(void);
#define KVCC_CPU_LIBRARY_SYMBOL "kvcc_cpu_library"
typedef const KvccCpuLibrary* (*KvccCpuLibraryFunction)(void);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KVCC_KERNELS_CPU_LIBRARY_H_ */
