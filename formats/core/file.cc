#include "formats/core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "formats/core/error.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;

/// Owns a file descriptor.
struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

Error write_error(const std::string& path, int code, uint64_t needed) {
  if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
    struct statvfs disk = {};
    std::string found = code == EFBIG ? "file size limit reached" : "disk full";
    found += fmt::format(" ({})", std::strerror(code));
    if (::statvfs(parent_of(path).c_str(), &disk) == 0) {
      const std::string free = human_bytes(static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize);
      found += needed > 0 ? fmt::format(": {} needed, {} free", human_bytes(needed), free) : ": " + free + " free";
    }
    return Error(ErrorKind::resource, path, found, "", "free some space or write elsewhere");
  }
  return Error(ErrorKind::failed, path, fmt::format("cannot be written: {}", std::strerror(code)));
}

AtomicFile::AtomicFile(std::string path, Busy busy) : path_(std::move(path)) {
  std::error_code error;
  if (!fs::is_directory(parent_of(path_), error)) {
    throw bad_input(path_, fmt::format("the folder {} does not exist", parent_of(path_)));
  }
  const fs::file_status there = fs::status(path_, error);
  if (fs::is_directory(there)) throw bad_input(path_, "is a folder", "the name of a file to write");
  if (fs::exists(there) && !fs::is_regular_file(there)) {  // renaming would replace a device
    throw bad_input(path_, "is not a regular file", "the name of a file to write");
  }
  take(busy);
}

/// Opens and locks the temporary name.
void AtomicFile::take(Busy busy) {
  temporary_ = path_ + ".partial";
  const auto open = [&] {
    Descriptor file{::open(temporary_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666)};
    struct stat info = {};
    if (file.value < 0 || ::fstat(file.value, &info) != 0) throw write_error(path_, errno);
    if (!S_ISREG(info.st_mode)) throw bad_input(temporary_, "is in the way", "a name to write to");
    return std::exchange(file.value, -1);
  };
  for (;;) {
    Descriptor file{open()};
    if (::flock(file.value, LOCK_EX | (busy == Busy::wait ? 0 : LOCK_NB)) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) {
        throw bad_input(path_, "another process is writing it", "one writer at a time",
                        "wait for it to end, or write elsewhere");
      }
      // A file system without locks: a name of this process alone.
      static std::atomic<unsigned> counter{0};
      ::unlink(temporary_.c_str());
      temporary_ = fmt::format("{}.partial-{}-{}", path_, ::getpid(), counter++);
      lock_ = open();
      return;
    }
    struct stat locked = {}, there = {};
    if (::fstat(file.value, &locked) == 0 && ::lstat(temporary_.c_str(), &there) == 0 &&
        locked.st_ino == there.st_ino && locked.st_dev == there.st_dev) {
      lock_ = std::exchange(file.value, -1);
      return;
    }
    // Its owner has renamed or removed it since it was opened: what is locked here may be the finished file.
  }
}

AtomicFile::~AtomicFile() {
  if (!done_) ::unlink(temporary_.c_str());
  if (lock_ >= 0) ::close(lock_);  // last: until then nobody else takes the name
}

void AtomicFile::check_room(uint64_t bytes) const {
  if (::fallocate(lock_, 0, 0, static_cast<off_t>(bytes)) == 0) {
    if (::ftruncate(lock_, 0) != 0) throw write_error(path_, errno, bytes);
    return;
  }
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) throw write_error(path_, errno, bytes);
}

void AtomicFile::write(std::string_view text) const {
  Descriptor file{::open(temporary_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC)};
  if (file.value < 0) throw write_error(path_, errno, text.size());
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(file.value, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw write_error(path_, errno, text.size());
    done += static_cast<size_t>(n);
  }
  if (::close(std::exchange(file.value, -1)) != 0) throw write_error(path_, errno, text.size());
}

void AtomicFile::commit(bool sync_name) {
  {
    const Descriptor file{::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.value < 0) throw write_error(path_, errno);
    struct stat info = {};
    ::fstat(file.value, &info);
    if (::fsync(file.value) != 0) throw write_error(path_, errno, static_cast<uint64_t>(info.st_size));
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw write_error(path_, errno);
  done_ = true;
  if (!sync_name) return;
  // The new name itself is on disk only once the folder is synced. Some file systems refuse that; then it is moot.
  const Descriptor folder{::open(parent_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.value >= 0) ::fsync(folder.value);
}

std::string read_text_file(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.value < 0) throw bad_input(path, errno == ENOENT ? "no such file" : std::strerror(errno));
  constexpr size_t kMostOfPipes = size_t{256} << 20;  // /dev/zero has no end
  std::string text;
  struct stat info = {};
  const bool regular = ::fstat(file.value, &info) == 0 && S_ISREG(info.st_mode);
  if (regular) text.reserve(static_cast<size_t>(info.st_size));
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = ::read(file.value, buffer, sizeof buffer);
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw bad_input(path, errno == EISDIR ? "is a folder" : std::strerror(errno));
    if (!regular && text.size() >= kMostOfPipes) {
      throw bad_input(path, "more than " + human_bytes(kMostOfPipes) + " from a pipe or device", "a regular file");
    }
    text.append(buffer, static_cast<size_t>(n));
  }
}

void write_text_file(const std::string& path, std::string_view text, bool sync_name, AtomicFile::Busy busy) {
  AtomicFile target(path, busy);
  target.write(text);
  target.commit(sync_name);
}

bool write_if_different(const std::string& path, std::string_view text) {
  std::error_code error;
  if (fs::is_regular_file(path, error) && read_text_file(path) == text) return false;
  write_text_file(path, text);
  return true;
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw write_error(path, error.value());
  if (!fs::is_directory(path)) throw bad_input(path, "exists and is not a folder", "a folder");
}

std::string nearest_existing(const std::string& path) {
  std::error_code error;
  fs::path place = fs::absolute(path, error);
  while (!fs::exists(place, error) && place.has_relative_path()) place = place.parent_path();
  return place.string();
}

std::string program_folder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) throw Error(ErrorKind::failed, "/proc/self/exe", error.message());
  return program.parent_path().string();
}

std::string default_cache_folder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && *xdg == '/') return std::string(xdg) + "/kvcc";
  const char* home = std::getenv("HOME");
  return (home == nullptr || *home == '\0' ? std::string("/tmp") : std::string(home) + "/.cache") + "/kvcc";
}

std::string share_folder() {
  if (const char* set = std::getenv("KVCC_SHARE"); set != nullptr && *set != '\0') return set;
  // bin and libexec/kvcc are one and two levels below the prefix; programs of the tests may be deeper.
  const fs::path start = program_folder();
  fs::path prefix = start;
  for (int level = 0; level < 5 && prefix.has_relative_path(); ++level) {
    prefix = prefix.parent_path();
    std::error_code error;
    const fs::path share = prefix / "share" / "kvcc";
    if (fs::is_directory(share, error)) return share.string();
  }
  throw Error(ErrorKind::failed, start.string(), "no share/kvcc in the folders above", "the installed tree of kvcc",
              "set KVCC_SHARE");
}

}  // namespace kvcc
