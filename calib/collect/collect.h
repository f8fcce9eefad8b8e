// Collect: samples to an activations folder, resumable.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "calib/ranks/ranks.h"
#include "formats/store/activations.h"
#include "formats/store/weights_file.h"
#include "formats/weights/model_files.h"

namespace kvcc {

enum class Recompute { automatic, on, off };

struct CollectOptions {
  std::string output;  ///< folder
  Recompute recompute = Recompute::automatic;
  uint64_t max_memory = 0;  ///< bytes; 0: what the machine has available
  bool resume = false, force = false;
  bool bf16 = false;             ///< DecoderOptions::bf16; settings.decoder_json says so
  at::Device device = at::kCPU;  ///< DecoderOptions::device
  bool skip_nonfinite = false;   ///< leave samples with NaN or infinity out instead of stopping
  /// In place of the model's projections (read_weights_for); settings.decoder_json names them. May be null; not owned.
  const QuantisedWeights* weights = nullptr;
  int threads = 1;
  Ranks* ranks = nullptr;    ///< null: this process alone. Not owned.
  int64_t self_samples = 0;  ///< that the model has to make first; counts for the plan alone
};

/// What a run will take.
struct CollectPlan {
  int64_t tokens = 0;
  uint64_t disk_bytes = 0;  ///< of all shards
  uint64_t peak_bytes = 0;  ///< estimate of the resident memory, pages of the weights' files included
  uint64_t memory_limit = 0;
  bool recompute = false;  ///< as resolved
  bool streamed = false;   ///< DecoderOptions::streamed
};

/// What fits is kept: first the weights are left in their files, then activations are made again (under `automatic`),
/// then both. Throws Error(resource) when the run can't fit into memory, naming the options that make it smaller.
CollectPlan plan_collect(const ModelFiles& files, const ActivationsSettings& settings, const CollectOptions& options);

struct CollectReport {
  int64_t samples = 0;               ///< written or already there
  std::vector<std::string> skipped;  ///< one line for each sample that was left out
  double nll = 0;                    ///< mean cross-entropy of the samples run now, nats; NaN when none ran
};

/// What an earlier run has left, and how far this one is; of all ranks.
struct CollectState {
  int64_t samples_kept = 0;      ///< whole
  int64_t shards_kept = 0;       ///< of samples that are not whole
  std::vector<int> open;         ///< samples that are to be run, or to be run again
  int64_t open_tokens = 0;       ///< of those
  uint64_t done = 0, total = 0;  ///< of the work of this run, in its own units
  uint64_t written = 0;          ///< bytes of shards, by this run
};

struct CollectCallbacks {
  std::function<void()> started;                   ///< the folder is there and resuming was allowed
  std::function<void(const CollectState&)> begun;  ///< once, before the first sample
  std::function<void(const CollectState&)> progress;
  std::function<void(const std::string&)> warn;
};

/// ids [samples][at most seqlen]; settings.samples, seqlen and lengths must agree with them. Shards are written by a
/// thread of their own as they come. Throws Error (NonFinite names layer, sample, token), Interrupted; what is written
/// stays. With ranks all call it, with the same settings; the folder and the report are rank 0's, and the activations
/// the same bytes for any number of ranks on one kind of processor.
CollectReport collect(const ModelFiles& files, const ActivationsSettings& settings,
                      const std::vector<std::vector<int32_t>>& ids, const CollectOptions& options,
                      const CollectCallbacks& callbacks);

/// Rows of equal length as a NumPy file, int32 [n, len].
void write_npy_ids(const std::string& path, const std::vector<std::vector<int32_t>>& ids);

/// sha256 of the ids as int32 little-endian, for the manifest.
std::string ids_sha256(const std::vector<int32_t>& ids);

}  // namespace kvcc
