// The built-in units that write pages.
#include "kernels/cpu/builtin.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pack.cc"
#include <hwy/foreach_target.h>
#include "kernels/cpu/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

template <mma::Tensor kTensor>
void RunSelect(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first,
               uint32_t last) {
  const auto& p = *static_cast<const KvccPackParams*>(params);
  PackSelect<kTensor>(RuntimeConfig(config, tables, p.cache.heads), p, tables, first, last);
}
template <mma::Tensor kTensor>
void RunPack(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first,
             uint32_t last) {
  const auto& p = *static_cast<const KvccPackParams*>(params);
  Pack<kTensor>(RuntimeConfig(config, tables, p.cache.heads), p, tables, first, last);
}

void pack_key_select(const KvccCpuConfig& c, const void* p, const KvccCpuTables& t, uint32_t first, uint32_t last) {
  RunSelect<mma::Tensor::key>(c, p, t, first, last);
}
void pack_value_select(const KvccCpuConfig& c, const void* p, const KvccCpuTables& t, uint32_t first, uint32_t last) {
  RunSelect<mma::Tensor::value>(c, p, t, first, last);
}
void pack_key(const KvccCpuConfig& c, const void* p, const KvccCpuTables& t, uint32_t first, uint32_t last) {
  RunPack<mma::Tensor::key>(c, p, t, first, last);
}
void pack_value(const KvccCpuConfig& c, const void* p, const KvccCpuTables& t, uint32_t first, uint32_t last) {
  RunPack<mma::Tensor::value>(c, p, t, first, last);
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcc::cpu {

KVCC_BUILTIN(pack_key_select)
KVCC_BUILTIN(pack_value_select)
KVCC_BUILTIN(pack_key)
KVCC_BUILTIN(pack_value)

}  // namespace kvcc::cpu
#endif  // HWY_ONCE
