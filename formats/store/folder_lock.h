// One writer a folder.
#pragma once

#include <string>

namespace kvcc {

/// An exclusive lock on an existing folder (flock), held until destroyed or the process ends, however it ends. Where
/// the file system has no locks there is none.
class FolderLock {
 public:
  /// Throws Error(bad_input) naming the folder when another process holds it.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_;
};

}  // namespace kvcc
