#include "formats/core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

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
      found += fmt::format(": {} needed, {} free", human_bytes(needed),
                           human_bytes(static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize));
    }
    return Error(ErrorKind::resource, path, found, "", "free some space or write elsewhere");
  }
  return Error(ErrorKind::failed, path, fmt::format("cannot be written: {}", std::strerror(code)));
}

MappedFile::MappedFile(const std::string& path, bool allow_empty) : path_(path) {
  // Not blocking: a FIFO without a writer would hang the open; it is refused below.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) throw bad_input(path, errno == ENOENT ? "no such file" : std::strerror(errno));
  struct stat info = {};
  if (::fstat(file.value, &info) != 0) throw bad_input(path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) throw bad_input(path, "is a folder", "a file");
  if (!S_ISREG(info.st_mode)) throw bad_input(path, "is not a regular file", "a file that can be mapped");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) {
    if (!allow_empty) throw bad_input(path, "empty file");
    return;
  }
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    throw Error(errno == ENOMEM ? ErrorKind::resource : ErrorKind::bad_input, path,
                fmt::format("cannot be mapped ({}): {}", human_bytes(size_), std::strerror(errno)));
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(other.data_), size_(other.size_) {
  other.data_ = nullptr;
  other.size_ = 0;
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  static std::atomic<unsigned> counter{0};
  temporary_ = fmt::format("{}.partial-{}-{}", path_, ::getpid(), counter++);
  std::error_code error;
  if (!fs::is_directory(parent_of(path_), error)) {
    throw bad_input(path_, fmt::format("the folder {} does not exist", parent_of(path_)));
  }
  const fs::file_status there = fs::status(path_, error);
  if (fs::is_directory(there)) throw bad_input(path_, "is a folder", "the name of a file to write");
  if (fs::exists(there) && !fs::is_regular_file(there)) {  // renaming would replace a device
    throw bad_input(path_, "is not a regular file", "the name of a file to write");
  }
}

AtomicFile::~AtomicFile() {
  if (!done_) ::unlink(temporary_.c_str());
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
  std::string text;
  struct stat info = {};
  if (::fstat(file.value, &info) == 0 && S_ISREG(info.st_mode)) text.reserve(static_cast<size_t>(info.st_size));
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = ::read(file.value, buffer, sizeof buffer);
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw bad_input(path, errno == EISDIR ? "is a folder" : std::strerror(errno));
    text.append(buffer, static_cast<size_t>(n));
  }
}

void write_text_file(const std::string& path, std::string_view text, bool sync_name) {
  AtomicFile target(path);
  {
    Descriptor file{::open(target.temporary().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
    if (file.value < 0) throw write_error(path, errno, text.size());
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = ::write(file.value, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw write_error(path, errno, text.size());
      done += static_cast<size_t>(n);
    }
    const int closed = ::close(file.value);
    file.value = -1;
    if (closed != 0) throw write_error(path, errno, text.size());
  }
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
