// Loads compiled kernels and launches them over the CUDA driver API. The driver is loaded at run time (driver.h):
// programs that use this link and run anywhere, and hear that there is no driver when they launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/layout/launch.h"

namespace kvcc::host {

/// One compiled form of a kernel, as kernels.json lists them.
struct KernelImage {
  std::string arch;  ///< "sm_90" of a cubin; "compute_90" of PTX
  std::string path;
};

/// What a host needs to know of a device.
struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;   ///< for kvcc_mma_splits
  int64_t shared_bytes = 0;  ///< dynamic and static shared memory that a block can have
  int driver_version = 0;    ///< of CUDA that the driver knows: 1000 major + 10 minor
};

/// Whether there is a driver with a device. Never throws.
bool launcher_available();

/// Throws Error(failed) when there is no driver, no device, or no device of this number.
DeviceFacts device_facts(int device = 0);

/// The image that the device runs: the cubin of its own architecture; else the newest cubin of an earlier minor version
/// of the same major one; else the newest PTX that is not newer than the device. Architecture-specific ones ("sm_90a")
/// run on exactly that capability, family ones ("sm_100f") like cubins. Throws Error(failed) naming the capability and
/// the architectures there are, or Error(usage) for an arch that can't be read.
const KernelImage& pick_image(const std::string& kernel, std::span<const KernelImage> images,
                              const DeviceFacts& device);

/// A loaded cubin or PTX, in the primary context of its device (the one that the CUDA runtime and torch use). Threads
/// may share it. Constructors throw Error(failed) when there is no driver, no such device, or the driver refuses the
/// image, with the PTX compiler's words where it has some; Error(bad_input) for a file that can't be read.
class Module {
 public:
  /// A cubin or PTX file.
  explicit Module(const std::string& path, int device = 0);
  /// The image of `kernel` that fits the device.
  Module(const std::string& kernel, std::span<const KernelImage> images, int device = 0);
  /// A cubin or PTX in memory; `name` for messages.
  static Module from_memory(const std::string& name, std::string_view image, int device = 0);

  Module(Module&&) noexcept;
  ~Module();

  const DeviceFacts& device() const;

  /// Launches `symbol` with blocks of KVCC_THREADS threads and one argument, the family's struct of launch.h or
  /// mma_launch.h, checked before with check(). `shared_bytes`: dynamic shared memory of a block, as kernels.json
  /// states it. `stream`: a CUstream of the device's primary context, null for the default one. Does not wait. Throws
  /// Error(failed) for a symbol that is not in the module, a grid or shared memory that the device has not, and what
  /// the driver reports, which may stem from an earlier launch.
  void launch(const std::string& symbol, KvccGrid grid, const void* params, size_t params_bytes, void* stream = nullptr,
              int64_t shared_bytes = 0) const;
  template <class Params>
  void launch(const std::string& symbol, KvccGrid grid, const Params& params, void* stream = nullptr,
              int64_t shared_bytes = 0) const {
    launch(symbol, grid, static_cast<const void*>(&params), sizeof params, stream, shared_bytes);
  }

 private:
  struct State;
  explicit Module(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvcc::host
