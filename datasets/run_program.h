// Runs a helper program (curl, unzip) without a shell.
#pragma once

#include <string>
#include <vector>

namespace kvcc {

struct ProgramResult {
  int status = 0;      ///< exit code; 127 when the program is not there; 128 + signal
  std::string errors;  ///< last of what it wrote to stderr
};

/// Standard input is empty, standard output goes to the file `output` ("": nowhere). An argument is never split or
/// expanded.
ProgramResult run_program(const std::vector<std::string>& words, const std::string& output = "");

}  // namespace kvcc
