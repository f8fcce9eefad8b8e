// The name of the instruction set that dispatch chooses.
#include "kernels/cpu/targets.h"
#include "kernels/cpu/units.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/target.cc"
#include <hwy/foreach_target.h>
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {
const char* Name() { return hwy::TargetName(HWY_TARGET); }
}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcc::cpu {
HWY_EXPORT(Name);
}  // namespace kvcc::cpu

extern "C" const char* kvcc_cpu_target(void) {
  using namespace kvcc::cpu;  // the dispatch table
  return HWY_DYNAMIC_DISPATCH(Name)();
}
#endif  // HWY_ONCE
