#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "codegen/build/nvcc.h"
#include "codegen/build/programs.h"
#include "formats/core/error.h"
#include "formats/core/file.h"

namespace kvcc::codegen {
namespace {

namespace fs = std::filesystem;

std::string version_of(const std::string& nvcc) {
  const std::string text = checked_output({nvcc, "--version"});
  std::smatch match;
  if (!std::regex_search(text, match, std::regex("V(\\d{1,4}\\.\\d+\\.\\d+)"))) {
    throw Error(ErrorKind::failed, nvcc + " --version", first_line(text), "a version such as V13.0.88");
  }
  return match[1];
}

}  // namespace

std::vector<std::string> nvcc_places() {
  std::vector<std::string> places;
  if (const std::string set = environment("KVCC_NVCC"); !set.empty()) return {set};
  for (const std::string& folder : path_folders()) places.push_back(folder + "/nvcc");
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
  const std::string set = environment("KVCC_NVCC");
  std::string found = !set.empty() ? fmt::format("{}, which KVCC_NVCC names, is no program", set)
                                   : "not found in PATH, CUDA_HOME, /usr/local/cuda or the virtual environment";
  Nvcc nvcc;
  for (const std::string& place : places) {
    if (!runs(place)) continue;
    const std::string version = version_of(place);
    if (std::stoi(version) >= kOldestNvcc) {
      nvcc.path = place;
      nvcc.version = version;
      break;
    }
    found = fmt::format("{} is of version {}", place, version);
  }
  if (nvcc.path.empty()) {
    throw NoNvcc(ErrorKind::failed, "nvcc", found, fmt::format("version {} or newer, for C++20", kOldestNvcc),
                 "install it with: pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' "
                 "'nvidia-nvvm==13.0.*' 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*', or use --emit-only");
  }
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

Archs parse_archs(const std::string& text) {
  static const std::regex form("sm_[1-9][0-9]{1,2}[af]?");
  constexpr const char* kWanted = "architectures such as sm_80,sm_90, or cpu";
  Archs result;
  std::set<std::pair<int, std::string>> archs;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    if (part == "cpu") {
      result.cpu = true;
      continue;
    }
    if (!std::regex_match(part, form)) {
      throw Error(ErrorKind::usage, "--arch", fmt::format("\"{}\"", part), kWanted);
    }
    archs.emplace(arch_number(part), part);
  }
  for (const auto& [number, arch] : archs) result.gpu.push_back(arch);
  if ((result.gpu.empty() && !result.cpu) || text.ends_with(',')) {
    throw Error(ErrorKind::usage, "--arch", text.empty() ? "nothing" : fmt::format("\"{}\"", text), kWanted);
  }
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
