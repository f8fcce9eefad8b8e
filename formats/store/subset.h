// The first samples of a run's activations as a folder of their own.
#pragma once

#include <cstdint>
#include <string>

#include "formats/store/activations.h"

namespace kvcc {

/// Writes to `output` (a new or empty folder, or one that a killed run of this left) what a run of `samples` samples
/// with the same settings would have collected: the same manifest, shards and content hash. Shards are hard links where
/// the file system has them. Of a run that left samples out, or was merged, there is no such folder: Error(bad_input).
/// Throws Error(usage) for more samples than there are, and as ActivationsWriter does.
void subset_activations(const ActivationsReader& from, int64_t samples, const std::string& output);

}  // namespace kvcc
