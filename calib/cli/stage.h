// Runs one verb of kvcc as a child process, for programs that chain verbs.
#pragma once

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/process.h"

namespace kvcc::cli {

struct StageResult {
  int exit_code = 0;
  std::string output;  ///< all of the child's stdout; its stderr goes to ours
};

/// Runs kvcc-VERB beside the running program with `arguments` and waits. An interrupt is passed on to the child, which
/// saves what is done, and is thrown again once the child has ended. Throws Error when the program can't be started
/// (failed) or was killed by a signal (failed; SIGKILL, which is what the system does when memory runs out: resource).
inline StageResult run_stage(const std::string& verb, const std::vector<std::string>& arguments) {
  const std::string program = program_folder() + "/kvcc-" + verb;
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  ProcessResult result = run_process(words, {.standard_error = Stream::inherit, .own_group = true});
  check_interrupt();
  const std::string place = "kvcc " + verb;
  if (result.missing) {
    throw Error(ErrorKind::failed, place, program + " is not installed: " + result.output, "",
                "a kvcc built without libtorch has no collect and no eval; build it with -DKVCC_TORCH=ON");
  }
  if (result.status == 127) {
    throw Error(ErrorKind::failed, place, "the loader could not start it", "libtorch in lib/kvcc beside bin",
                "set KVCC_TORCH_LIB to the folder of libtorch_cpu.so");
  }
  if (result.signal != 0) {
    const bool memory = result.signal == SIGKILL;
    throw Error(memory ? ErrorKind::resource : ErrorKind::failed, place,
                "killed by signal " + std::to_string(result.signal) + " (" + strsignal(result.signal) + ")", "",
                memory ? "memory may have run out: see --dry-run and --max-memory; the same command goes on with what "
                         "is done"
                       : "");
  }
  return {result.status, std::move(result.output)};
}

}  // namespace kvcc::cli
