// Runs another program without a shell: an argument is never split or expanded.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvcc {

/// Where a stream of the program goes.
enum class Stream {
  inherit,  ///< where ours goes
  capture,  ///< to ProcessResult::output; both captured: as they came
  discard,
};

struct ProcessOptions {
  std::string folder = {};  ///< the program's working folder; "": ours
  Stream standard_output = Stream::capture, standard_error = Stream::capture;
  std::string output_file = {};  ///< when not empty, standard output goes to this file instead
  size_t keep = SIZE_MAX;        ///< how much of the captured output is kept; the end counts
  bool own_group = false;  ///< the program hears of interrupts from us alone, once each, and may save what is done
};

struct ProcessResult {
  int status = 0;        ///< exit status; 128 + signal when killed
  int signal = 0;        ///< that killed it, or 0
  std::string output;    ///< what was captured
  bool missing = false;  ///< there is no such program, or none that may be run; status 127, why in `output`
};

/// argv[0] is a path or a name in PATH. Its standard input is empty. Throws Error(failed) when it can't be started for
/// another reason than that it is not there, and Interrupted when it was killed by a signal that also asked us to stop.
ProcessResult run_process(const std::vector<std::string>& argv, const ProcessOptions& options = {});

}  // namespace kvcc
