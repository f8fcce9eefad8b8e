// The built-in units that read a cache, for every instruction set.
#include "kernels/cpu/builtin.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/targets.h"  // before any header of Highway

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/readers.cc"
#include <hwy/foreach_target.h>
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/key_scores-inl.h"
#include "kernels/cpu/value_mix-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

void key_scores(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first,
                uint32_t last) {
  const auto& p = *static_cast<const KvccMmaKeyScoresParams*>(params);
  KeyScores(RuntimeConfig(config, tables, p.cache.heads), p, tables, first, last);
}
void value_mix(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first,
               uint32_t last) {
  const auto& p = *static_cast<const KvccValueMixParams*>(params);
  ValueMix(RuntimeConfig(config, tables, p.cache.heads), p, tables, first, last);
}
void value_merge(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first,
                 uint32_t last) {
  const auto& p = *static_cast<const KvccValueMixParams*>(params);
  ValueMerge(RuntimeConfig(config, tables, p.cache.heads), p, tables, first, last);
}
void attention(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first,
               uint32_t last) {
  const auto& p = *static_cast<const KvccAttentionParams*>(params);
  Attention(RuntimeConfig(config, tables, p.key.heads), p, tables, first, last);
}
void attention_merge(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first,
                     uint32_t last) {
  const auto& p = *static_cast<const KvccAttentionParams*>(params);
  AttentionMerge(RuntimeConfig(config, tables, p.key.heads), p, tables, first, last);
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcc::cpu {

KVCC_BUILTIN(key_scores)
KVCC_BUILTIN(value_mix)
KVCC_BUILTIN(value_merge)
KVCC_BUILTIN(attention)
KVCC_BUILTIN(attention_merge)

}  // namespace kvcc::cpu
#endif
