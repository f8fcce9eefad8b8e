#include "formats/store/problems.h"

#include <fmt/format.h>

#include <charconv>

namespace kvcc {

std::string listing(const std::vector<std::string>& problems) {
  std::string text = problems.front();
  if (problems.size() > 1) text += fmt::format(" (and {} more problems)", problems.size() - 1);
  return text;
}

std::optional<VersionProblem> version_problem(const std::string& version, int newest) {
  int major = 0, minor = 0;
  const char* end = version.data() + version.size();
  const auto first = std::from_chars(version.data(), end, major);
  const bool dot = first.ec == std::errc() && first.ptr != end && *first.ptr == '.';
  const auto second = std::from_chars(dot ? first.ptr + 1 : end, end, minor);
  if (!dot || second.ec != std::errc() || second.ptr != end || major < 1 || minor < 0) {
    return VersionProblem{fmt::format("format_version is '{}'", version), "MAJOR.MINOR"};
  }
  if (major > newest) return VersionProblem{fmt::format("format {}, this build reads up to {}.x", version, newest), ""};
  return std::nullopt;
}

}  // namespace kvcc
