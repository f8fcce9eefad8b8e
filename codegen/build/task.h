// One run of the compiler whose result is kept. Internal to codegen/build.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace kvcc::codegen {

/// Looked up by the hash of all that decides it, else made in a folder whose name follows from that (BuildFolder).
struct Task {
  std::string compiler;  ///< with its version, for messages
  std::string program;   ///< as it is run, likewise
  std::string key;
  std::string extension;                                     ///< of the result, ".ptx", ".cubin", ".o" or ".so"
  std::string what;                                          ///< for messages
  std::vector<std::pair<std::string, std::string>> sources;  ///< path in the folder, text
  std::vector<std::string> command;                          ///< writes "out" + extension
  std::function<std::string(const std::string&)> finish;     ///< what is kept in place of the result; may be empty
};

struct Kept {
  std::string binary, log;
  bool cached = false;
};

/// An entry of the cache is one file, CACHE/kernels/KE/KEY.entry: a line with the SHA-256 of the rest; a line with the
/// bytes of the result and of the log; both. One that is damaged counts as absent and is written anew. Throws
/// Error(failed) with the compiler's words when it fails, or writes nothing.
Kept run_task(const Task& task, const std::string& cache_folder);

}  // namespace kvcc::codegen
