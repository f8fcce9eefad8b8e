// A folder that `kvcc compile` wrote, ready to launch: its units with the facts that the checks need, their launches in
// order, and modules loaded once a device. No torch here.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "formats/store/kernels_manifest.h"
#include "kernels/host/checks.h"
#include "kernels/host/launcher.h"

namespace kvcc::bindings {

/// One entry of a unit.
struct Launch {
  std::string symbol, grid;  ///< grid: the C function of launch.h or mma_launch.h
  int64_t shared_bytes = 0;  ///< dynamic, a block
  bool only_splits = false;  ///< launched when splits > 1
};

/// What one run of the compiler made: a configuration, with one image an architecture.
struct Unit {
  std::string name;
  host::KernelFacts facts, value;  ///< value: of attention's values
  std::string dtype;               ///< "f16", "bf16", "f32"
  std::vector<host::KernelImage> images;
  std::vector<Launch> launches;  ///< in order
};

class KernelsFolder {
 public:
  /// Throws Error(bad_input) when kernels.json is missing or bad, or of another layout than mma-1.
  explicit KernelsFolder(const std::string& folder);

  /// The units of a family, one a width where a layer's heads have several. Throws Error(failed) when there is none.
  const std::vector<Unit>& units(const std::string& family) const;
  /// "key" or "value". Throws Error(failed) for a tensor that has no codes.
  const KernelPages& pages(const std::string& tensor) const;
  int head_dim(const std::string& tensor) const;
  int kv_heads() const { return kv_heads_; }
  int sink() const { return sink_; }
  int residual() const { return residual_; }

  /// Loaded at the first call for the device, then kept. Any thread.
  const host::Module& module(const Unit& unit, int device);

 private:
  std::string folder_;
  KernelsManifest manifest_;
  std::map<std::string, std::vector<Unit>> units_;
  std::map<std::string, int> head_dims_;
  int kv_heads_ = 0, sink_ = 0, residual_ = 0;
  std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::unique_ptr<host::Module>> modules_;
};

/// Opened once a process and folder; a folder compiled anew needs a new process. Any thread.
KernelsFolder& open_kernels(const std::string& folder);

}  // namespace kvcc::bindings
