// Maps of input files, and what happens when another process cuts one short while it is read.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

/// The maps that there are, where a signal handler can look: `begin` is set last and taken back first.
struct Slot {
  std::atomic<uintptr_t> begin{0};  ///< 0: free; 1: being filled
  uintptr_t end = 0;
  std::string* path = nullptr;  ///< as it is, then as a JSON string
};
constexpr size_t kSlots = 1024;  // maps beyond them are read just the same, and named no more
std::array<Slot, kSlots> slots;
std::string* report_program = nullptr;
bool report_json = false;

int remember(const void* data, size_t size, const std::string& path) {
  for (size_t i = 0; i < slots.size(); ++i) {
    uintptr_t free = 0;
    if (!slots[i].begin.compare_exchange_strong(free, 1)) continue;
    slots[i].end = reinterpret_cast<uintptr_t>(data) + size;
    slots[i].path = new std::string[2]{path, json_text(path)};
    slots[i].begin.store(reinterpret_cast<uintptr_t>(data));
    return static_cast<int>(i);
  }
  return -1;
}

void forget(int slot) {
  if (slot < 0) return;
  Slot& of = slots[static_cast<size_t>(slot)];
  std::string* const path = of.path;
  of.begin.store(1);
  of.path = nullptr;
  of.begin.store(0);
  delete[] path;
}

FileState state_of(const struct stat& info) {
  return {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size), info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

void put(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

constexpr const char* kTruncated = "truncated, or not readable any more, while it was read";

/// Only what a signal handler may do.
extern "C" void on_bus_error(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load();
    if (begin <= 1 || address < begin || address >= slot.end) continue;
    put(STDERR_FILENO, *report_program);
    put(STDERR_FILENO, ": error: ");
    put(STDERR_FILENO, slot.path[0]);
    put(STDERR_FILENO, ": ");
    put(STDERR_FILENO, kTruncated);
    put(STDERR_FILENO, "\n");
    if (report_json) {
      put(STDOUT_FILENO, "{\"schema_version\": 1, \"error\": {\"code\": 3, \"message\": \"");
      put(STDOUT_FILENO, slot.path[1]);
      put(STDOUT_FILENO, ": ");
      put(STDOUT_FILENO, kTruncated);
      put(STDOUT_FILENO, "\", \"hint\": \"\"}}\n");
    }
    _exit(static_cast<int>(ErrorKind::bad_input));
  }
  std::signal(SIGBUS, SIG_DFL);  // none of ours: the access is tried again and ends the process as ever
}

}  // namespace

void catch_truncated_maps(const std::string& program, bool json) {
  report_program = new std::string(program);  // for as long as there are signals
  report_json = json;
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

MappedFile::MappedFile(const std::string& path, bool allow_empty) : path_(path) {
  // Not blocking: a FIFO without a writer would hang the open; it is refused below.
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) throw bad_input(path, errno == ENOENT ? "no such file" : std::strerror(errno));
  try {
    struct stat info = {};
    if (::fstat(file_, &info) != 0) throw bad_input(path, std::strerror(errno));
    if (S_ISDIR(info.st_mode)) throw bad_input(path, "is a folder", "a file");
    if (!S_ISREG(info.st_mode)) throw bad_input(path, "is not a regular file", "a file that can be mapped");
    opened_ = state_of(info);
    size_ = static_cast<size_t>(info.st_size);
    if (size_ == 0) {
      if (!allow_empty) throw bad_input(path, "empty file");
      return;
    }
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_, 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      throw Error(errno == ENOMEM ? ErrorKind::resource : ErrorKind::bad_input, path,
                  fmt::format("cannot be mapped ({}): {}", human_bytes(size_), std::strerror(errno)));
    }
    slot_ = remember(data_, size_, path_);
  } catch (...) {
    close();
    throw;
  }
}

void MappedFile::release() const {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_DONTNEED);  // advice: what goes wrong changes no byte
}

void MappedFile::close() {
  forget(slot_);
  if (data_ != nullptr) ::munmap(data_, size_);
  if (file_ >= 0) ::close(file_);
  slot_ = file_ = -1;
  data_ = nullptr;
}

MappedFile::~MappedFile() { close(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(other.data_),
      size_(other.size_),
      file_(other.file_),
      slot_(other.slot_),
      opened_(other.opened_) {
  other.data_ = nullptr;
  other.size_ = 0;
  other.file_ = other.slot_ = -1;
}

void MappedFile::check_unchanged() const {
  struct stat info = {};
  if (file_ < 0 || (::fstat(file_, &info) == 0 && state_of(info) == opened_)) return;
  throw bad_input(path_, "changed while it was read", "", "run again when nothing writes it");
}

void MappedFile::check_same_file() const {
  check_unchanged();
  struct stat info = {};
  if (::stat(path_.c_str(), &info) == 0 && state_of(info) == opened_) return;
  throw bad_input(path_, "replaced while it was read", "", "run again when nothing writes it");
}

}  // namespace kvcc
