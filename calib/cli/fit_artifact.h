// kvcc fit: artifacts before anything is fitted, and from the results of scalar levels.
#pragma once

#include <string>

#include "calib/fit/fit.h"
#include "formats/store/activations.h"
#include "formats/store/codebook.h"

namespace kvcc::cli {

/// All that an artifact of these activations says of the model and of where it came from. Throws Error(bad_input) for
/// settings whose decoder is no JSON.
Codebook empty_codebook(const ActivationsSettings& settings, const std::string& activations_sha256,
                        const Scheme& scheme);

/// Adds a layer's statistics that no scheme changes; layers come in order.
void append_statistics(TensorCodebooks& to, const TensorFit& fit);
/// Adds a layer's result, statistics included.
void append_layer(TensorCodebooks& to, const TensorFit& fit);

}  // namespace kvcc::cli
