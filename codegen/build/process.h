// Runs another program and takes what it prints.
#pragma once

#include <string>
#include <vector>

namespace kvcc::codegen {

struct ProcessResult {
  int status = 0;      ///< exit status; 128 + signal when killed
  std::string output;  ///< stdout and stderr together, as they came
};

/// argv[0] is a path or a name in PATH. `folder`, when not empty, is the program's working folder. Throws Error(failed)
/// when it can't be started.
ProcessResult run_process(const std::vector<std::string>& argv, const std::string& folder = "");

}  // namespace kvcc::codegen
