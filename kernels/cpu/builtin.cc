#include "kernels/cpu/builtin.h"

extern "C" void kvcc_cpu_run(int32_t family, const KvccCpuConfig* config, const void* params,
                             const KvccCpuTables* tables, uint32_t first, uint32_t last) {
  namespace cpu = kvcc::cpu;
  static constexpr cpu::BuiltinUnit* kUnits[] = {
      cpu::builtin_pack_key_select, cpu::builtin_pack_key,         cpu::builtin_pack_value_select,
      cpu::builtin_pack_value,      cpu::builtin_key_scores,       cpu::builtin_value_mix,
      cpu::builtin_value_merge,     cpu::builtin_attention,        cpu::builtin_attention_merge,
      cpu::builtin_dequantise_key,  cpu::builtin_dequantise_value, cpu::builtin_copy_pages};
  static_assert(sizeof kUnits / sizeof *kUnits == KVCC_CPU_COPY_PAGES + 1);  // in the order of the families' numbers
  const bool precise = family == KVCC_CPU_ATTENTION && tables->arithmetic == KVCC_ARITHMETIC_F64;
  (precise ? cpu::builtin_attention_f64 : kUnits[family])(*config, params, *tables, first, last);
}
