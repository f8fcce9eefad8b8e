#include "codegen/build/programs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "formats/core/error.h"
#include "formats/core/process.h"

namespace kvcc::codegen {

bool runs(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> path_folders() {
  std::vector<std::string> result;
  std::istringstream folders(environment("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty()) result.push_back(folder);
  }
  return result;
}

std::string first_line(const std::string& text) { return text.substr(0, std::min<size_t>(text.find('\n'), 200)); }

std::string checked_output(const std::vector<std::string>& argv) {
  ProcessResult result = run_process(argv);
  if (result.status != 0) {
    throw Error(ErrorKind::failed, fmt::format("{}", fmt::join(argv, " ")),
                fmt::format("exit status {}: {}", result.status, first_line(result.output)));
  }
  return std::move(result.output);
}

}  // namespace kvcc::codegen
