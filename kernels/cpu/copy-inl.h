// copy_pages: pages of one pool to pages of another, whose record lists may have another capacity. No byte is decoded,
// so it serves every layout and configuration.
//   grid   (pairs, 1, 1); kvcc_grid_copy_pages: a block a page
#if defined(KVCC_KERNELS_CPU_COPY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_COPY_INL_H_
#undef KVCC_KERNELS_CPU_COPY_INL_H_
#else
#define KVCC_KERNELS_CPU_COPY_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/units.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// Blocks [first, last) of kvcc_grid_copy_pages.
inline void CopyPages(const KvccCopyPagesParams& p, const KvccCpuTables&, uint32_t first, uint32_t last) {
  const int64_t source_list = int64_t{p.source_capacity} * 4, target_list = int64_t{p.target_capacity} * 4;
  const size_t list = static_cast<size_t>(std::min(source_list, target_list));
  for (uint32_t i = first; i < last; ++i) {
    const uint8_t* const from = p.source + p.pairs[2 * i] * p.source_page_bytes;
    uint8_t* const to = p.target + p.pairs[2 * i + 1] * p.target_page_bytes;
    std::memcpy(to, from, static_cast<size_t>(p.fixed_bytes));
    for (int32_t l = 0; l < p.lists && list > 0; ++l) {
      std::memcpy(to + p.fixed_bytes + l * target_list, from + p.fixed_bytes + l * source_list, list);
    }
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVCC_KERNELS_CPU_COPY_INL_H_
