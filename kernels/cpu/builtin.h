// The built-in CPU units, one function a family: the text of the -inl.h files, compiled for every instruction set, the
// best of which is chosen at run time. kvcc_cpu_run() (units.h) forwards to them.
#pragma once

#include <cstdint>

#include "kernels/cpu/units.h"

namespace kvcc::cpu {

/// Blocks [first, last) of the family's grid; `params` is the family's struct (launch.h, mma_launch.h).
using BuiltinUnit = void(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first,
                         uint32_t last);

BuiltinUnit builtin_pack_key_select;  ///< pack.cc
BuiltinUnit builtin_pack_key;
BuiltinUnit builtin_pack_value_select;
BuiltinUnit builtin_pack_value;
BuiltinUnit builtin_dequantise_key;  ///< dequantise.cc
BuiltinUnit builtin_dequantise_value;
BuiltinUnit builtin_copy_pages;
BuiltinUnit builtin_key_scores;  ///< readers.cc
BuiltinUnit builtin_value_mix;
BuiltinUnit builtin_value_merge;
BuiltinUnit builtin_attention;
BuiltinUnit builtin_attention_merge;
BuiltinUnit builtin_attention_f64;  ///< attention_f64.cc: attention of KVCC_ARITHMETIC_F64

/// Defines builtin_NAME as the best of the functions NAME that the source has compiled for each instruction set.
#define KVCC_BUILTIN(name)                                                                                          \
  HWY_EXPORT(name);                                                                                                 \
  void builtin_##name(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first, \
                      uint32_t last) {                                                                              \
    HWY_DYNAMIC_DISPATCH(name)(config, params, tables, first, last);                                                \
  }

}  // namespace kvcc::cpu
