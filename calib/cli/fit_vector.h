// kvcc fit of vector codebooks: from the fit's results to artifacts.
#pragma once

#include <cstdint>
#include <string>

#include "calib/cli/fit_parts.h"
#include "calib/fit/vector_fit.h"
#include "formats/store/codebook.h"

namespace kvcc::cli {

/// Samples that are held out of the fit of `samples`, where nothing else is asked for: one in eight.
int64_t default_held_out(int64_t samples);

/// Adds a layer's result to its part of the artifact.
void append_vectors(LayerPart& part, const LayerVectors& fit);

/// Second-order predictions summed over layers, keys and values; NaN where nothing was measured.
struct Predicted {
  double fitted = 0, held_out = 0;
};
Predicted predicted(const Codebook& book);

/// What the fit does, in words; ends in a newline.
std::string explain_vector(const Scheme& scheme, int64_t held_out);

}  // namespace kvcc::cli
