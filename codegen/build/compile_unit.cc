#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>
#include <string_view>
#include <utility>

#include "codegen/build/nvcc.h"
#include "codegen/build/task.h"
#include "formats/core/error.h"
#include "formats/core/hash.h"

namespace kvcc::codegen {
namespace {

/// The PTX with a fixed time and size at each file that line information names. ptxas would ask the disk for both, and
/// write what it finds into the cubin: of our sources nothing or what a killed run left, of the toolkit's headers their
/// installation's.
std::string with_fixed_files(const std::string& ptx) {
  std::string out;
  for (size_t at = 0; at < ptx.size();) {
    const size_t end = std::min(ptx.find('\n', at), ptx.size());
    const std::string_view line = std::string_view(ptx).substr(at, end - at);
    const size_t word = std::min(line.find_first_not_of(" \t"), line.size());
    out += line;
    if (line.substr(word).starts_with(".file") && line.ends_with('"')) out += ", 1, 1";
    if (end < ptx.size()) out += '\n';
    at = end + 1;
  }
  return out;
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

Task task_of(const Nvcc& nvcc, std::string key, std::string extension, std::string what) {
  Task task;
  task.compiler = "nvcc " + nvcc.version;
  task.program = nvcc.path;
  task.key = std::move(key);
  task.extension = std::move(extension);
  task.what = std::move(what);
  return task;
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
      fmt::format("kvcc ptx 3\n{}\n{}\n{}\n{}\n{}\n", nvcc.version, arch, fmt::join(ptx_flags(), " "), name, unit));
  for (const auto& [path, text] : headers) hash.update(fmt::format("{} {}\n", path, sha256_hex(text)));
  Task task = task_of(nvcc, hash.hex(), ".ptx", fmt::format("{}.cu for {}", name, arch));
  task.sources = {headers.begin(), headers.end()};
  task.sources.emplace_back(name + ".cu", unit);
  task.command = {nvcc.path, "-ptx", "-arch=" + arch, "-I.", "-o", "out.ptx"};
  task.command.insert(task.command.end(), ptx_flags().begin(), ptx_flags().end());
  task.command.push_back(name + ".cu");
  task.finish = with_fixed_files;
  Kept kept = run_task(task, cache_folder);
  Compiled result;
  result.binary = std::move(kept.binary);
  result.cached = kept.cached;
  result.dynamic_shared = dynamic_shared(result.binary);
  return result;
}

Compiled assemble_once(const Nvcc& nvcc, const std::string& name, const std::string& ptx, const std::string& arch,
                       const std::string& cache_folder) {
  Sha256 hash;
  hash.update(fmt::format("kvcc cubin 3\n{}\n{}\n{}\n{}\n", nvcc.version, arch, fmt::join(cubin_flags(), " "), name));
  hash.update(ptx);
  Task task = task_of(nvcc, hash.hex(), ".cubin", fmt::format("{}.ptx for {}", name, arch));
  task.sources = {{name + ".ptx", ptx}};
  task.command = {nvcc.path, "-cubin", "-arch=" + arch, "-o", "out.cubin"};
  task.command.insert(task.command.end(), cubin_flags().begin(), cubin_flags().end());
  task.command.push_back(name + ".ptx");
  Kept kept = run_task(task, cache_folder);
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
