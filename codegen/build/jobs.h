// Runs of nvcc, on several threads. Internal to codegen/build.
#pragma once

#include <string>
#include <vector>

#include "codegen/build/compile.h"
#include "codegen/build/nvcc.h"

namespace kvcc::codegen {

/// One run of nvcc: a unit to PTX, or its PTX to a cubin.
struct Job {
  size_t kernel;
  std::string arch;
  Compiled result;
};

/// Every unit to PTX, and that to a cubin for each architecture. By unit: cubins, then the PTX. The error of the first
/// failing job in order is thrown, whichever came first.
std::vector<Job> build(const Plan& plan, const std::vector<std::string>& units, const Nvcc& nvcc,
                       const CompileOptions& options);

}  // namespace kvcc::codegen
