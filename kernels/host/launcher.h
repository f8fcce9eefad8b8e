// Loads a compiled kernel and launches it. Two translation units implement it: one on the CUDA driver, and no_cuda.cc,
// which is linked where that is not built and says so. Callers have no #ifdef.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "formats/layout/launch.h"

namespace kvcc::host {

/// Whether kernels can be launched by this build.
bool launcher_available();

/// A loaded cubin or PTX. Throws Error(failed) when there is no driver, no device, or no image for the device.
class Module {
 public:
  explicit Module(const std::string& path);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Launches `symbol` with blocks of KVCC_THREADS threads and one argument, the family's struct of launch.h, checked
  /// before with check(). `stream`: a CUstream, null for the default one. Does not wait.
  void launch(const std::string& symbol, KvccGrid grid, const void* params, size_t params_bytes, void* stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvcc::host
