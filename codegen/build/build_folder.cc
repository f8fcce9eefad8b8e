#include "codegen/build/build_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "formats/core/error.h"

namespace kvcc::codegen {

namespace fs = std::filesystem;

BuildFolder::BuildFolder(const std::string& key) {
  const std::string name = "kvcc-" + key.substr(0, 16);
  int code = 0;
  for (const bool first : {true, false}) {
    std::error_code error;
    const std::string place = first ? "/tmp" : fs::temp_directory_path(error).string();
    if (error) break;  // TMPDIR names no folder
    // Another number only where another user's folder has the name.
    for (int i = 0; i < 100; ++i) {
      path_ = i == 0 ? place + "/" + name : fmt::format("{}/{}.{}", place, name, i);
      if (take()) return;
      code = errno;
      if (code != EPERM) break;
    }
  }
  throw Error(ErrorKind::failed, path_, std::strerror(code), "a folder to compile in",
              "set TMPDIR to a folder that can be written");
}

BuildFolder::~BuildFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  ::close(lock_);
}

/// Makes the folder or takes over the one that is there, and empties it. False with errno; EPERM: it is another's.
bool BuildFolder::take() {
  for (;;) {
    if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) return false;
    lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat locked = {}, there = {};
    if (lock_ < 0 && errno == ENOENT) continue;  // its owner has just removed it
    if (lock_ < 0 || ::fstat(lock_, &locked) != 0 || locked.st_uid != ::geteuid()) {
      if (lock_ >= 0) ::close(lock_);
      errno = EPERM;
      return false;
    }
    while (::flock(lock_, LOCK_EX) != 0 && errno == EINTR) {
    }
    if (::stat(path_.c_str(), &there) == 0 && there.st_ino == locked.st_ino && there.st_dev == locked.st_dev) break;
    ::close(lock_);  // removed while we waited
  }
  for (const auto& left : fs::directory_iterator(path_)) fs::remove_all(left.path());
  return true;
}

}  // namespace kvcc::codegen
