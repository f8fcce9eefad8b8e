// The parity checks: every family on the device against the reference, over a spread of configurations.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/launcher.h"

namespace kvcc::gpu {

/// One check. run() returns "" when it holds, else what differs: the first element, both values and the bound.
struct Check {
  std::string name;
  std::function<std::string(Launcher&)> run;
};

/// A case and its checks. The case's data is made when the first check runs and freed by done().
struct Checks {
  std::string name;
  std::vector<Check> checks;
  std::function<void()> done;
};

/// Every case whose set is linked.
std::vector<Checks> parity_checks();
/// The kernels that packed caches are timed against, against plain sums in double.
std::vector<Checks> baseline_checks();

/// Compares sums with those of the reference: |found - value| <= bound, element by element. "" or the first that is
/// off.
std::string beyond(const std::string& what, const std::vector<float>& found, const std::vector<double>& wanted,
                   const std::function<double(size_t)>& bound);

}  // namespace kvcc::gpu
