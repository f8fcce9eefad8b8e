// Programs of the machine. Internal to codegen/build.
#pragma once

#include <string>
#include <vector>

namespace kvcc::codegen {

/// Is it a file that may be run?
bool runs(const std::string& path);
/// "" where it is not set.
std::string environment(const char* name);
/// Of PATH.
std::vector<std::string> path_folders();
/// At most 200 bytes of it.
std::string first_line(const std::string& text);
/// Throws Error(failed) for a status other than 0.
std::string checked_output(const std::vector<std::string>& argv);

}  // namespace kvcc::codegen
