// How long a run will take, from running a little of it.
#pragma once

#include <cstdint>
#include <vector>

#include "calib/collect/collect.h"

namespace kvcc {

/// Seconds of loading the model and of the passes, from one sample through the model's first layers (at least one of
/// each kind beside the ends) and its head. Writing goes on beside the passes and is not counted, nor is hashing the
/// weights. `ids`: a sample, or as long as one. Takes what three or four layers of a pass take. Throws as collect().
double estimate_seconds(const ModelFiles& files, const ActivationsSettings& settings, const CollectOptions& options,
                        const CollectPlan& plan, const std::vector<int32_t>& ids);

}  // namespace kvcc
