// The part of Highway's library that the tests call, for a processor of one instruction set: Debian has the library for
// the build machine only, and with a single target nothing else of it is needed.
#include "hwy/targets.h"

namespace hwy {

int64_t SupportedTargets() { return HWY_NEON; }
void SetSupportedTargetsForTest(int64_t) {}
ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
