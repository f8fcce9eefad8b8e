// The built-in units of vector codebooks, for every instruction set.
#include "kernels/cpu/config.h"
#include "kernels/cpu/targets.h"  // before any header of Highway
#include "kernels/cpu/vector_units.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vector.cc"
#include <hwy/foreach_target.h>
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/copy-inl.h"
#include "kernels/cpu/value_mix-inl.h"
#include "kernels/cpu/vector_keys-inl.h"
#include "kernels/cpu/vector_pack-inl.h"
#include "kernels/cpu/vector_values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

void VectorKeyScores(const KvccMmaKeyScoresParams& p, const KvccVectorTables& tables, uint32_t first, uint32_t last) {
  VectorKeyScratch scratch;
  VectorTile tile;
  alignas(64) float scores[kMaxQueries * kBatch];
  for (uint32_t block = first; block < last; ++block) {
    const Work work(p.cache, block, p.group, p.splits, p.window);
    const void* query = element_at(tables.dtype, p.query, work.row(p.cache, p.group) * tables.key->head_dim);
    VectorKeys keys(tables, p.cache, p.rope, work, query, p.multiplier, scratch);
    ScoreBlock(p, work, keys, tile, scores);
  }
}

void VectorValueMix(const KvccValueMixParams& p, const KvccVectorTables& tables, uint32_t first, uint32_t last) {
  VectorValueScratch scratch;
  VectorTile tile;
  alignas(64) float weights[kMaxQueries * kBatch];
  for (uint32_t block = first; block < last; ++block) {
    const Work work(p.cache, block, p.group, p.splits, p.window);
    VectorValues values(tables, p.cache, work, scratch);
    MixBlock(p, work, values, tables.dtype, tables.value->head_dim, tile, weights);
  }
}

void VectorAttention(const KvccAttentionParams& p, const KvccVectorTables& tables, uint32_t first, uint32_t last) {
  VectorKeyScratch key;
  VectorValueScratch value;
  VectorTile tile;
  alignas(64) float scores[kMaxQueries * kBatch];
  for (uint32_t block = first; block < last; ++block) {
    const Work work(p.key, block, p.group, p.splits, p.window);
    const void* query = element_at(tables.dtype, p.query, work.row(p.key, p.group) * tables.key->head_dim);
    VectorKeys keys(tables, p.key, p.rope, work, query, p.multiplier * kLog2E, key);
    VectorValues values(tables, p.value, work, value);
    AttendBlock(p, work, keys, values, tables.value->head_dim, tile, scores);
  }
}

void RunVector(int32_t family, const void* params, const KvccVectorTables& t, uint32_t first, uint32_t last) {
  switch (family) {
    case KVCC_CPU_PACK_KEY:
      return PackVector(*t.key, t.dtype, *static_cast<const KvccPackParams*>(params), first, last);
    case KVCC_CPU_PACK_VALUE:
      return PackVector(*t.value, t.dtype, *static_cast<const KvccPackParams*>(params), first, last);
    case KVCC_CPU_KEY_SCORES:
      return VectorKeyScores(*static_cast<const KvccMmaKeyScoresParams*>(params), t, first, last);
    case KVCC_CPU_VALUE_MIX:
      return VectorValueMix(*static_cast<const KvccValueMixParams*>(params), t, first, last);
    case KVCC_CPU_VALUE_MERGE:
      for (uint32_t block = first; block < last; ++block) {
        MergeValues(*static_cast<const KvccValueMixParams*>(params), block, t.value->head_dim,
                    [](int32_t) { return true; });
      }
      return;
    case KVCC_CPU_ATTENTION:
      return VectorAttention(*static_cast<const KvccAttentionParams*>(params), t, first, last);
    case KVCC_CPU_ATTENTION_MERGE:
      for (uint32_t block = first; block < last; ++block) {
        MergeAttention(*static_cast<const KvccAttentionParams*>(params), block, t.value->head_dim);
      }
      return;
    case KVCC_CPU_DEQUANTISE_KEY:
      return DequantiseVector(*t.key, *static_cast<const KvccDequantiseParams*>(params), first, last);
    case KVCC_CPU_DEQUANTISE_VALUE:
      return DequantiseVector(*t.value, *static_cast<const KvccDequantiseParams*>(params), first, last);
    case KVCC_CPU_COPY_PAGES:
      return CopyPages(*static_cast<const KvccCopyPagesParams*>(params), {}, first, last);
    default:  // the _select families: nothing is selected
      return;
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcc::cpu {
HWY_EXPORT(RunVector);
}  // namespace kvcc::cpu

extern "C" void kvcc_cpu_run_vector(int32_t family, const void* params, const KvccVectorTables* tables, uint32_t first,
                                    uint32_t last) {
  using namespace kvcc::cpu;  // the dispatch table
  HWY_DYNAMIC_DISPATCH(RunVector)(family, params, *tables, first, last);
}
#endif  // HWY_ONCE
