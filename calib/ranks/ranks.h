// The processes of one run, on one machine or many: they agree, tell rank 0 what they have done, and end when one dies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "calib/ranks/launch.h"
#include "formats/core/error.h"

namespace kvcc {

struct RankSettings {
  std::string run;  ///< what the ranks do: those of another run that met at the same place are no part of this one
  double join_seconds = 600;    ///< until all ranks are there
  double silence_seconds = 20;  ///< after which a rank that gives no sign of life counts as dead
  /// Throws Interrupted when a signal asked to stop.
  std::function<void()> check_interrupt;
  /// Another rank has died and there is nothing to throw from: a call waits for a network that is gone, or check() was
  /// not asked for 20 s. Prints the error and ends the process; called from a thread of its own.
  std::function<void(const Error&)> give_up;
};

/// Seconds of KVCC_RANKS_JOIN and KVCC_RANKS_TIMEOUT, where they are set. Throws Error(usage).
RankSettings rank_settings(const std::string& run);

/// All but post(), take() and check() are called by all ranks in the same order, from one thread. Whatever waits is
/// ended by an interrupt, and by an Error(failed) that names the rank when another rank fails or dies.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  bool first() const { return rank() == 0; }

  /// Throws Error(failed) naming the rank when another rank has failed or died, and Interrupted.
  virtual void check() = 0;
  /// What each rank gave, by rank. Any bytes; together they should fit into memory a few times.
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
  /// Next number of a counter that all ranks share, from 0.
  virtual int64_t next(const std::string& counter) = 0;

  /// Sends any bytes to rank 0, in order. Waits while rank 0 has many that it has not taken.
  virtual void post(const std::string& message) = 0;
  /// Rank 0: the next message of a rank; false when none is there.
  virtual bool take(int from, std::string& message) = 0;

  /// Tells the others, who end with it. For a rank that can't go on.
  virtual void fail(const std::string& why) noexcept = 0;
  /// Waits for all ranks; after that a rank may end without the others minding.
  virtual void leave() = 0;
};

/// Meets the others through libtorch's c10d: a TCPStore at launch.address:port, served by rank 0 (or torchrun), and a
/// Gloo process group. Loads lib/kvcc/libkvcc_ranks.so, so that programs need libtorch only for several ranks. Throws
/// Error: usage, when two processes have one rank; failed, when ranks do not come or rank 0 can't be reached.
std::unique_ptr<Ranks> join_ranks(const Launch& launch, const RankSettings& settings);

/// Runs body(ranks) and leaves; tells the other ranks why when it throws. `ranks` may be null: then body alone.
template <typename Body>
auto as_rank(Ranks* ranks, const Body& body) -> decltype(body()) {
  if (ranks == nullptr) return body();
  try {
    auto result = body();
    ranks->leave();
    return result;
  } catch (const Interrupted&) {
    ranks->fail("was interrupted");
    throw;
  } catch (const std::exception& error) {
    ranks->fail(error.what());
    throw;
  }
}

}  // namespace kvcc
