// Where paths lie to each other.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>

namespace kvcc {

/// Whether `path`, which need not be there, is `folder` or lies below it, links followed.
inline bool lies_in(const std::string& path, const std::string& folder) {
  const std::filesystem::path outer = std::filesystem::weakly_canonical(folder);
  const std::filesystem::path inner = std::filesystem::weakly_canonical(path);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace kvcc
