#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "codegen/build/nvcc.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/process.h"

namespace kvcc::codegen {
namespace {

namespace fs = std::filesystem;

/// A folder for one compilation, removed at the end. The compiler puts its path into line information and into the
/// names of internal symbols, so that its name follows from the key, and TMPDIR is not asked unless /tmp can't be
/// written. A lock keeps other processes that compile the same waiting; what a killed one left is cleared.
class BuildFolder {
 public:
  explicit BuildFolder(const std::string& key) {
    const std::string name = "kvcc-" + key.substr(0, 16);
    for (const std::string& place : {std::string("/tmp"), fs::temp_directory_path().string()}) {
      // Another number only where another user's folder has the name.
      for (int i = 0; i < 100; ++i) {
        path_ = i == 0 ? place + "/" + name : fmt::format("{}/{}.{}", place, name, i);
        if (take()) return;
        if (errno != EPERM) break;
      }
    }
    throw Error(ErrorKind::failed, path_, std::strerror(errno), "a folder to compile in", "set TMPDIR");
  }
  ~BuildFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    ::close(lock_);
  }
  BuildFolder(const BuildFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  /// Makes the folder or takes over the one that is there, and empties it. False with errno; EPERM: it is another's.
  bool take() {
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

  std::string path_;
  int lock_ = -1;
};

/// Writes a source with a fixed time: line information holds that too.
void write_source(const std::string& path, const std::string& text) {
  write_text_file(path, text);
  const timespec times[2] = {{0, 0}, {0, 0}};
  utimensat(AT_FDCWD, path.c_str(), times, 0);
}

/// The lines of nvcc's output that say what went wrong, a few.
std::string gist(const std::string& output) {
  std::string kept;
  int lines = 0;
  for (size_t at = 0; at < output.size() && lines < 8;) {
    const size_t end = std::min(output.find('\n', at), output.size());
    const std::string line = output.substr(at, end - at);
    if (line.find("error") != std::string::npos || line.find("warning") != std::string::npos ||
        line.find("fatal") != std::string::npos || line.find("pilled") != std::string::npos) {
      kept += (kept.empty() ? "" : "\n") + line;
      ++lines;
    }
    at = end + 1;
  }
  return kept.empty() ? output.substr(0, 2000) : kept;
}

}  // namespace

const std::vector<std::string>& nvcc_flags() {
  // No contraction: every fused operation is spelt out (DESIGN.md, "Precision of record"). A spill is an error.
  static const std::vector<std::string> flags = {"-std=c++20",
                                                 "-O3",
                                                 "-fmad=false",
                                                 "-prec-div=true",
                                                 "-ftz=false",
                                                 "-lineinfo",
                                                 "-Werror",
                                                 "all-warnings",
                                                 "-Xptxas",
                                                 "-v,--warn-on-spills,--warn-on-local-memory-usage,"
                                                 "--warning-as-error"};
  return flags;
}

Compiled compile_unit(const Nvcc& nvcc, const std::string& name, const std::string& unit,
                      const std::map<std::string, std::string>& headers, const std::string& arch,
                      const std::string& cache_folder) {
  const bool ptx = arch.starts_with("compute_");
  Sha256 hash;
  hash.update(
      fmt::format("kvcc kernel 1\n{}\n{}\n{}\n{}\n{}\n", nvcc.version, arch, fmt::join(nvcc_flags(), " "), name, unit));
  for (const auto& [path, text] : headers) hash.update(fmt::format("{} {}\n", path, sha256_hex(text)));
  const std::string key = hash.hex();
  const std::string kept = cache_folder + "/kernels/" + key.substr(0, 2) + "/" + key;
  const std::string binary_path = kept + (ptx ? ".ptx" : ".cubin"), log_path = kept + ".log";

  Compiled result;
  std::string log;
  const auto finish = [&] {
    if (!ptx) result.usage = parse_ptxas(log);
    return result;
  };
  const auto look = [&] {
    if (!fs::exists(binary_path) || !fs::exists(log_path)) return false;
    result.binary = read_text_file(binary_path);
    log = read_text_file(log_path);
    return result.cached = true;
  };
  if (!look()) {
    const BuildFolder folder(key);
    if (look()) return finish();  // another process has compiled it while this one waited
    for (const auto& [path, text] : headers) {
      make_folder((fs::path(folder.path()) / path).parent_path().string());
      write_source(folder.path() + "/" + path, text);
    }
    write_source(folder.path() + "/" + name + ".cu", unit);
    const std::string output = ptx ? "out.ptx" : "out.cubin";
    std::vector<std::string> command = {nvcc.path, ptx ? "-ptx" : "-cubin", "-arch=" + arch, "-I.", "-o", output};
    command.insert(command.end(), nvcc_flags().begin(), nvcc_flags().end());
    command.push_back(name + ".cu");
    ProcessResult run = run_process(command, {.folder = folder.path()});
    if (run.status != 0) {
      throw Error(ErrorKind::failed, fmt::format("nvcc {}, {}.cu for {}", nvcc.version, name, arch), gist(run.output),
                  "", fmt::format("exit status {}", run.status));
    }
    result.binary = read_text_file(folder.path() + "/" + output);
    log = std::move(run.output);
    make_folder(fs::path(kept).parent_path().string());
    write_text_file(log_path, log);
    write_text_file(binary_path, result.binary);
  }
  return finish();
}

}  // namespace kvcc::codegen
