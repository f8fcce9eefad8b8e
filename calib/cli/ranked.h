// Programs that torchrun, mpirun or srun may have started as one of several ranks.
#pragma once

#include <memory>
#include <string>

#include "calib/ranks/ranks.h"
#include "formats/cli/program.h"

namespace kvcc::cli {

struct RankedRun {
  Launch launch;
  std::unique_ptr<Ranks> ranks;  ///< null when this process is alone
  Common common;                 ///< of this rank: quiet but for the first, with its share of the machine's threads
  bool first() const { return launch.first(); }
};

/// Reads how this process was started and, when it is one of several ranks, waits for the others. With --dry-run ranks
/// do not meet, and only the first has something to say. `app`: as parsed, to see whether --threads was given. Throws
/// as read_launch() and join_ranks().
RankedRun start_ranks(const std::string& verb, const CLI::App& app, const Common& common);

}  // namespace kvcc::cli
