// Vector codebooks tuned by gradient against the model's own predictions (CODEBOOKS.md, recipe 6): the KL divergence of
// full precision from the model under the quantised cache, straight through the choice of codes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/store/codebook.h"
#include "formats/store/weights_file.h"
#include "formats/weights/model_files.h"

namespace kvcc {

struct RefineOptions {
  int64_t steps = 32;       ///< of one window each
  double rate = 0.03;       ///< of the longest steps, in errors of each group (root mean square)
  int64_t every = 4;        ///< steps between looks at the windows that are held out
  int64_t patience = 3;     ///< looks in a row that are worse than the best before it ends
  bool transforms = true;   ///< tune them as well
  uint64_t max_memory = 0;  ///< bytes; 0: what there is
  int threads = 1;
  const QuantisedWeights* weights = nullptr;  ///< in place of the model's; null: its own
};

/// KL divergence, mean over predictions (nats), after `step` steps.
struct RefineLook {
  int64_t step = 0;
  double held_out = 0;
  double tuned = 0;  ///< mean over the steps since the last look, each before it was made; NaN at step 0
};
struct RefineReport {
  std::vector<RefineLook> looks;  ///< the first before any step
  int64_t best = 0;               ///< index into looks
  bool improved() const { return best > 0; }
};

struct RefinePlan {
  uint64_t peak_bytes = 0, memory_limit = 0;
  bool recompute = false;  ///< layers are run again in the backward pass, to save memory
};
/// Throws Error(resource) where not even recomputing fits; `seqlen`: of the longest window.
RefinePlan plan_refine(const ModelFiles& files, const Codebook& codebook, int64_t seqlen, int64_t windows,
                       const RefineOptions& options);

/// Tunes `codebook`, of vector codebooks for this model's geometry, on `windows` (one a step, again from the first
/// when they are used up) and leaves what was best on `held_out`, whose windows no step sees: the codebook as it was
/// where nothing was better. Of the stored statistics those that no longer hold are dropped then. Equal input, options
/// and threads give equal results. `progress` (may be empty) gets steps and looks, of how many at most. Throws
/// Interrupted; Error(failed) for predictions that are not finite.
RefineReport refine(const ModelFiles& files, Codebook& codebook, const std::vector<std::vector<int32_t>>& windows,
                    const std::vector<std::vector<int32_t>>& held_out, const RefineOptions& options,
                    const std::function<void(uint64_t done, uint64_t total)>& progress);

}  // namespace kvcc
