#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "codegen/build/nvcc.h"
#include "codegen/build/process.h"
#include "formats/core/error.h"
#include "formats/core/file.h"

namespace kvcc::codegen {
namespace {

namespace fs = std::filesystem;

bool runs(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string checked_output(const std::vector<std::string>& argv) {
  ProcessResult result = run_process(argv);
  if (result.status != 0) {
    throw Error(ErrorKind::failed, argv[0] + " " + argv[1],
                fmt::format("exit status {}: {}", result.status, result.output));
  }
  return std::move(result.output);
}

}  // namespace

std::vector<std::string> nvcc_places() {
  std::vector<std::string> places;
  std::istringstream folders(environment("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty()) places.push_back(folder + "/nvcc");
  }
  if (const std::string home = environment("CUDA_HOME"); !home.empty()) places.push_back(home + "/bin/nvcc");
  places.push_back("/usr/local/cuda/bin/nvcc");
  std::vector<fs::path> venvs;
  if (const std::string active = environment("VIRTUAL_ENV"); !active.empty()) venvs.emplace_back(active);
  fs::path folder = program_folder();  // BUILD/libexec/kvcc in a checkout
  for (int up = 0; up < 4; ++up) {
    venvs.push_back(folder / ".venv");
    folder = folder.parent_path();
  }
  for (const fs::path& venv : venvs) {
    std::error_code error;
    for (const auto& python : fs::directory_iterator(venv / "lib", error)) {
      places.push_back((python.path() / "site-packages/nvidia/cu13/bin/nvcc").string());
    }
  }
  return places;
}

Nvcc find_nvcc(const std::vector<std::string>& places) {
  Nvcc nvcc;
  const auto found = std::find_if(places.begin(), places.end(), runs);
  if (found == places.end()) {
    throw Error(ErrorKind::failed, "nvcc", "not found in PATH, CUDA_HOME, /usr/local/cuda or the virtual environment",
                "the CUDA 13 compiler",
                "install it with: pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' "
                "'nvidia-nvvm==13.0.*' 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*', or use --emit-only");
  }
  nvcc.path = *found;
  const std::string version = checked_output({nvcc.path, "--version"});
  std::smatch match;
  if (!std::regex_search(version, match, std::regex("V(\\d+\\.\\d+\\.\\d+)"))) {
    throw Error(ErrorKind::failed, nvcc.path + " --version", version, "a version such as V13.0.88");
  }
  nvcc.version = match[1];
  std::istringstream lines(checked_output({nvcc.path, "--list-gpu-arch"}));
  for (std::string line; lines >> line;) {
    if (line.starts_with("compute_")) nvcc.virtual_archs.push_back(line);
  }
  return nvcc;
}

int arch_number(const std::string& arch) {
  int number = 0;
  const char* first = arch.c_str() + arch.find('_') + 1;
  std::from_chars(first, arch.c_str() + arch.size(), number);
  return number;
}

std::vector<std::string> parse_archs(const std::string& text) {
  static const std::regex form("sm_[1-9][0-9]{1,2}[af]?");
  std::set<std::pair<int, std::string>> archs;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    if (!std::regex_match(part, form)) {
      throw Error(ErrorKind::usage, "--arch", fmt::format("\"{}\"", part), "architectures such as sm_80,sm_90");
    }
    archs.emplace(arch_number(part), part);
  }
  if (archs.empty()) throw Error(ErrorKind::usage, "--arch", "nothing", "architectures such as sm_80,sm_90");
  std::vector<std::string> result;
  for (const auto& [number, arch] : archs) result.push_back(arch);
  return result;
}

void check_archs(const Nvcc& nvcc, const std::vector<std::string>& archs) {
  std::vector<std::string> unknown, known;
  for (const std::string& arch : archs) {
    const std::string base = fmt::format("compute_{}", arch_number(arch));
    if (std::find(nvcc.virtual_archs.begin(), nvcc.virtual_archs.end(), base) == nvcc.virtual_archs.end()) {
      unknown.push_back(arch);
    }
  }
  if (unknown.empty()) return;
  for (const std::string& arch : nvcc.virtual_archs) known.push_back("sm_" + arch.substr(8));
  std::sort(known.begin(), known.end(), [](auto& a, auto& b) { return arch_number(a) < arch_number(b); });
  throw Error(ErrorKind::usage, "--arch",
              fmt::format("{}, which nvcc {} does not compile for", fmt::join(unknown, ", "), nvcc.version),
              fmt::format("of {}", fmt::join(known, ", ")));
}

}  // namespace kvcc::codegen
