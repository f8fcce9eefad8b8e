// A folder for one compilation. Internal to codegen/build.
#pragma once

#include <string>

namespace kvcc::codegen {

/// Removed at the end. The compiler puts its path into line information and into the names of internal symbols, so that
/// its name follows from the key, and TMPDIR is not asked unless /tmp can't be written. A lock keeps other processes
/// that compile the same waiting; what a killed one left is cleared. Throws Error(failed) when no folder can be had.
class BuildFolder {
 public:
  explicit BuildFolder(const std::string& key);
  ~BuildFolder();
  BuildFolder(const BuildFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  bool take();

  std::string path_;
  int lock_ = -1;
};

}  // namespace kvcc::codegen
