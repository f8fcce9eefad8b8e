// What readers of several kinds of file say of them in the same words.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kvcc {

/// The first of the problems, and how many more there are. `problems` must not be empty.
std::string listing(const std::vector<std::string>& problems);

struct VersionProblem {
  std::string found, wanted;
};
/// What is wrong with the text "MAJOR.MINOR" of a file's format_version, for a build that reads up to `newest`.x.
std::optional<VersionProblem> version_problem(const std::string& version, int newest);

}  // namespace kvcc
