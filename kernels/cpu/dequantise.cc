// The built-in units that unpack and copy pages.
#include "kernels/cpu/builtin.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dequantise.cc"
#include <hwy/foreach_target.h>
#include "kernels/cpu/copy-inl.h"
#include "kernels/cpu/dequantise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

template <mma::Tensor kTensor>
void RunDequantise(const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables, uint32_t first,
                   uint32_t last) {
  const auto& p = *static_cast<const KvccDequantiseParams*>(params);
  Dequantise<kTensor>(RuntimeConfig(config, tables, p.cache.heads), p, tables, first, last);
}

void dequantise_key(const KvccCpuConfig& c, const void* p, const KvccCpuTables& t, uint32_t first, uint32_t last) {
  RunDequantise<mma::Tensor::key>(c, p, t, first, last);
}
void dequantise_value(const KvccCpuConfig& c, const void* p, const KvccCpuTables& t, uint32_t first, uint32_t last) {
  RunDequantise<mma::Tensor::value>(c, p, t, first, last);
}
void copy_pages(const KvccCpuConfig&, const void* p, const KvccCpuTables& t, uint32_t first, uint32_t last) {
  CopyPages(*static_cast<const KvccCopyPagesParams*>(p), t, first, last);
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcc::cpu {

KVCC_BUILTIN(dequantise_key)
KVCC_BUILTIN(dequantise_value)
KVCC_BUILTIN(copy_pages)

}  // namespace kvcc::cpu
#endif  // HWY_ONCE
