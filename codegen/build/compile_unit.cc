#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <utility>

#include "codegen/build/build_folder.h"
#include "codegen/build/nvcc.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/process.h"

namespace kvcc::codegen {
namespace {

namespace fs = std::filesystem;

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

/// One kept result of the compiler: looked up by the hash of all that decides it, else made in its folder.
struct Task {
  std::string key;
  std::string extension;                                     ///< of the result, ".ptx" or ".cubin"
  std::string what;                                          ///< for messages
  std::vector<std::pair<std::string, std::string>> sources;  ///< path in the folder, text
  std::vector<std::string> command;                          ///< writes "out" + extension
};
struct Kept {
  std::string binary, log;
  bool cached = false;
};

Kept run_task(const Nvcc& nvcc, const Task& task, const std::string& cache_folder) {
  const std::string kept = cache_folder + "/kernels/" + task.key.substr(0, 2) + "/" + task.key;
  const std::string binary_path = kept + task.extension, log_path = kept + ".log";
  Kept result;
  const auto look = [&] {
    if (!fs::exists(binary_path) || !fs::exists(log_path)) return false;
    result.binary = read_text_file(binary_path);
    result.log = read_text_file(log_path);
    return result.cached = true;
  };
  if (look()) return result;
  const BuildFolder folder(task.key);
  if (look()) return result;  // another process has compiled it while this one waited
  for (const auto& [path, text] : task.sources) {
    make_folder((fs::path(folder.path()) / path).parent_path().string());
    write_source(folder.path() + "/" + path, text);
  }
  ProcessResult run = run_process(task.command, {.folder = folder.path()});
  if (run.status != 0) {
    throw Error(ErrorKind::failed, fmt::format("nvcc {}, {}", nvcc.version, task.what), gist(run.output), "",
                fmt::format("exit status {}", run.status));
  }
  result.binary = read_text_file(folder.path() + "/out" + task.extension);
  result.log = std::move(run.output);
  make_folder(fs::path(kept).parent_path().string());
  write_text_file(log_path, result.log);
  write_text_file(binary_path, result.binary);
  return result;
}

/// Dynamic shared memory of the entries, as KVCC_KERNEL writes it into the unit.
std::map<std::string, int> dynamic_shared(const std::string& ptx) {
  static const std::regex line("\\.global[^;=]*\\.u32 (\\w+)_shared_bytes( = (\\d+))?;");
  std::map<std::string, int> bytes;
  for (auto at = std::sregex_iterator(ptx.begin(), ptx.end(), line); at != std::sregex_iterator(); ++at) {
    bytes[(*at)[1]] = (*at)[3].matched ? std::stoi((*at)[3]) : 0;
  }
  return bytes;
}

}  // namespace

const std::vector<std::string>& ptx_flags() {
  // No contraction: every fused operation is spelt out (DESIGN.md, "Precision of record").
  static const std::vector<std::string> flags = {"-std=c++20", "-O3",       "-fmad=false", "-prec-div=true",
                                                 "-ftz=false", "-lineinfo", "-Werror",     "all-warnings"};
  return flags;
}

const std::vector<std::string>& cubin_flags() {
  // ptxas reports spills with -v; it does not warn of them, so that they are judged here (spills.cc).
  static const std::vector<std::string> flags = {"-O3", "-fmad=false", "-lineinfo", "-Xptxas", "-v,--warning-as-error"};
  return flags;
}

std::string ptx_arch(const std::vector<std::string>& archs) {
  int lowest = kBasePtx;
  for (const std::string& arch : archs) lowest = std::min(lowest, arch_number(arch));
  return fmt::format("compute_{}", lowest);
}

Compiled compile_ptx(const Nvcc& nvcc, const std::string& name, const std::string& unit,
                     const std::map<std::string, std::string>& headers, const std::string& arch,
                     const std::string& cache_folder) {
  Sha256 hash;
  hash.update(
      fmt::format("kvcc ptx 2\n{}\n{}\n{}\n{}\n{}\n", nvcc.version, arch, fmt::join(ptx_flags(), " "), name, unit));
  for (const auto& [path, text] : headers) hash.update(fmt::format("{} {}\n", path, sha256_hex(text)));
  Task task{hash.hex(), ".ptx", fmt::format("{}.cu for {}", name, arch), {headers.begin(), headers.end()}, {}};
  task.sources.emplace_back(name + ".cu", unit);
  task.command = {nvcc.path, "-ptx", "-arch=" + arch, "-I.", "-o", "out.ptx"};
  task.command.insert(task.command.end(), ptx_flags().begin(), ptx_flags().end());
  task.command.push_back(name + ".cu");
  Kept kept = run_task(nvcc, task, cache_folder);
  Compiled result;
  result.binary = std::move(kept.binary);
  result.cached = kept.cached;
  result.dynamic_shared = dynamic_shared(result.binary);
  return result;
}

Compiled assemble_once(const Nvcc& nvcc, const std::string& name, const std::string& ptx, const std::string& arch,
                       const std::string& cache_folder) {
  Sha256 hash;
  hash.update(fmt::format("kvcc cubin 2\n{}\n{}\n{}\n{}\n", nvcc.version, arch, fmt::join(cubin_flags(), " "), name));
  hash.update(ptx);
  Task task{hash.hex(), ".cubin", fmt::format("{}.ptx for {}", name, arch), {{name + ".ptx", ptx}}, {}};
  task.command = {nvcc.path, "-cubin", "-arch=" + arch, "-o", "out.cubin"};
  task.command.insert(task.command.end(), cubin_flags().begin(), cubin_flags().end());
  task.command.push_back(name + ".ptx");
  Kept kept = run_task(nvcc, task, cache_folder);
  Compiled result{std::move(kept.binary), parse_ptxas(kept.log), {}, min_blocks_of(ptx), false, kept.cached};
  for (const auto& [symbol, usage] : result.usage) {
    if (usage.spill_bytes > 0 || usage.stack_bytes == 0) continue;
    throw Error(ErrorKind::failed, task.what,
                fmt::format("{} uses {} bytes of local memory without spilling", symbol, usage.stack_bytes),
                "registers alone");
  }
  return result;
}

Compiled compile_unit(const Nvcc& nvcc, const std::string& name, const std::string& unit,
                      const std::map<std::string, std::string>& headers, const std::string& arch,
                      const std::string& cache_folder) {
  Compiled ptx = compile_ptx(nvcc, name, unit, headers, ptx_arch({arch}), cache_folder);
  Compiled cubin = assemble(nvcc, name, ptx.binary, arch, cache_folder);
  cubin.dynamic_shared = std::move(ptx.dynamic_shared);
  return cubin;
}

}  // namespace kvcc::codegen
