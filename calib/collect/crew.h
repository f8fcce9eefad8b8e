// Who runs which sample, and where its shards go: one process alone, or ranks that rank 0 gathers the shards of.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "calib/ranks/ranks.h"
#include "formats/store/activations.h"

namespace kvcc {

/// Rank 0 alone has the folder's writer. The others write their shards in place where they see the same folder, and
/// send them otherwise; either way rank 0 lists them, so that a run resumes with any number of ranks. Samples go to
/// whoever is free: a shard's bytes do not depend on who made it.
class SampleCrew {
 public:
  using Warn = std::function<void(const std::string&)>;

  /// `ranks` null: alone. `writer` of rank 0, null for the others. `units`: of progress a sample. All ranks' settings
  /// must agree (but for names). Throws Error(bad_input) naming rank and field, else as Ranks.
  SampleCrew(Ranks* ranks, ActivationsWriter* writer, const ActivationsSettings& settings, std::string folder,
             uint64_t units, Warn warn);
  ~SampleCrew();
  SampleCrew(const SampleCrew&) = delete;
  SampleCrew& operator=(const SampleCrew&) = delete;

  /// Samples that lack shards, and the layers (0 to L - 1) that each lacks, when the run began.
  const std::map<int, std::vector<int>>& open() const { return open_; }
  /// The next sample to run here; none when all are taken.
  std::optional<int> next();
  /// From any one thread, between next() and done() of its sample.
  void put(int sample, int layer, const Shard& shard);
  /// All shards of the sample were put. loss: summed over the predictions, nats.
  void done(int sample, double loss, int64_t predictions);
  void leave_out(int sample, const std::string& reason);
  /// Throws when another rank has failed, and on rank 0 what taking the others' shards threw.
  void check();
  /// Rank 0: waits for the others' samples; `waiting` is called meanwhile.
  void finish(const std::function<void()>& waiting);

  /// Units of progress that the other ranks have done, and bytes of the shards that all have written.
  uint64_t others_units() const { return others_units_; }
  uint64_t written() const { return written_; }
  /// Rank 0, after finish(): mean cross-entropy of the samples run now, nats, in an order of its own; NaN without any.
  double nll() const;

 private:
  void agree();
  void share_open(const std::string& folder_token);
  void receive();
  void handle(int from, const std::string& message);

  Ranks* ranks_;
  ActivationsWriter* writer_;
  const ActivationsSettings& settings_;
  std::string folder_;
  uint64_t units_;
  Warn warn_;
  std::map<int, std::vector<int>> open_;
  std::vector<int> order_;  ///< of open_
  bool began_ = false, sees_folder_ = true;
  size_t taken_ = 0;

  mutable std::mutex mutex_;  ///< of the writer and what follows
  std::map<int, std::pair<double, int64_t>> losses_;
  std::map<int, uint64_t> partial_;  ///< units of the sample that a rank is at
  uint64_t finished_units_ = 0;
  std::exception_ptr error_;
  std::atomic<uint64_t> others_units_{0}, written_{0};
  std::atomic<bool> received_all_{true}, stop_{false};
  std::thread receiver_;
};

}  // namespace kvcc
