// Parity and times of the kernels on one GPU (run.sh says how it is built).
#include <cstdio>

#include "tests/gpu/parity.h"

int main() {
  using namespace kvcc::gpu;
  const auto launcher = make_launcher();
  std::vector<Checks> all = baseline_checks();
  for (Checks& checks : parity_checks()) all.push_back(std::move(checks));
  int failed = 0, passed = 0;
  for (const Checks& checks : all) {
    for (const Check& check : checks.checks) {
      std::string off;
      try {
        off = check.run(*launcher);
      } catch (const std::exception& e) {
        off = e.what();
      }
      off.empty() ? ++passed : ++failed;
      if (!off.empty()) std::printf("FAILED %s: %s: %s\n", checks.name.c_str(), check.name.c_str(), off.c_str());
    }
    checks.done();
  }
  std::printf("%d passed, %d failed\n", passed, failed);
}
