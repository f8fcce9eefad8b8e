// Runs of the compilers, on several threads. Internal to codegen/build.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/build/compile.h"
#include "codegen/build/cxx.h"
#include "codegen/build/nvcc.h"

namespace kvcc::codegen {

/// Calls work(0) to work(count - 1) on `threads` threads, and progress() after each. The error of the first in order is
/// thrown, whichever came first.
void run_jobs(size_t count, int threads, const std::function<void(size_t)>& work,
              const std::function<void()>& progress);

/// One run of nvcc: a unit to PTX, or its PTX to a cubin.
struct Job {
  size_t kernel;
  std::string arch;
  Compiled result;
};

/// Texts of the sources of a plan's units, and of all headers that these need: what a run works from, so that a change
/// on the disk meanwhile does not make units of two versions.
struct Sources {
  std::vector<std::string> units;
  std::map<std::string, std::string> headers;
};

/// Every unit of the GPU to PTX, and that to a cubin for each architecture. By unit: cubins, then the PTX.
std::vector<Job> build(const Plan& plan, const Sources& sources, const Nvcc& nvcc, const CompileOptions& options);

/// What the CPU's units became.
struct Library {
  std::string binary;
  std::vector<std::string> instruction_sets;
  int compiled = 0, cached = 0;  ///< objects, and the library
};

/// Every unit of the CPU and `table`, the library's own (text of NAME.cc each), to objects, and those to a library that
/// is called `file`.
Library build_library(const Plan& plan, const Sources& sources, const std::pair<std::string, std::string>& table,
                      const std::string& file, const Cxx& cxx, const CompileOptions& options);

}  // namespace kvcc::codegen
