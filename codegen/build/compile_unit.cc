#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "codegen/build/nvcc.h"
#include "codegen/build/process.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"

namespace kvcc::codegen {
namespace {

namespace fs = std::filesystem;

/// A folder for one compilation, removed at the end. Its name follows from the key: line information holds paths, so
/// a name by chance would make other bytes each time. Only when it exists (another process compiles the same) a number
/// is added.
class BuildFolder {
 public:
  explicit BuildFolder(const std::string& key) {
    const std::string base = (fs::temp_directory_path() / ("kvcc-" + key.substr(0, 16))).string();
    for (int i = 0; i < 1000; ++i) {
      path_ = i == 0 ? base : fmt::format("{}.{}", base, i);
      if (mkdir(path_.c_str(), 0700) == 0) return;
      if (errno != EEXIST) break;
      remove_if_abandoned();
      if (mkdir(path_.c_str(), 0700) == 0) return;
    }
    throw Error(ErrorKind::resource, path_, std::strerror(errno), "a folder to compile in", "set TMPDIR");
  }
  ~BuildFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  BuildFolder(const BuildFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  /// A killed compile leaves its folder; no run of nvcc takes an hour.
  void remove_if_abandoned() const {
    std::error_code ignored;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(path_, ignored);
    if (!ignored && age > std::chrono::hours(1)) fs::remove_all(path_, ignored);
  }

  std::string path_;
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
  if (fs::exists(binary_path) && fs::exists(log_path)) {
    result.binary = read_text_file(binary_path);
    log = read_text_file(log_path);
    result.cached = true;
  } else {
    const BuildFolder folder(key);
    for (const auto& [path, text] : headers) {
      make_folder((fs::path(folder.path()) / path).parent_path().string());
      write_source(folder.path() + "/" + path, text);
    }
    write_source(folder.path() + "/" + name + ".cu", unit);
    const std::string output = ptx ? "out.ptx" : "out.cubin";
    std::vector<std::string> command = {nvcc.path, ptx ? "-ptx" : "-cubin", "-arch=" + arch, "-I.", "-o", output};
    command.insert(command.end(), nvcc_flags().begin(), nvcc_flags().end());
    command.push_back(name + ".cu");
    ProcessResult run = run_process(command, folder.path());
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
  if (!ptx) result.usage = parse_ptxas(log);
  return result;
}

}  // namespace kvcc::codegen
