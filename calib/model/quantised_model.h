// A decoder with quantised weights (.kvcw) in place of its own.
#pragma once

#include <string>

#include "calib/model/decoder.h"
#include "formats/store/weights_file.h"

namespace kvcc {

/// Reads the file for the model that `info` describes. Throws Error(bad_input) for one that was made from other weights
/// or does not hold all projections in their shapes.
QuantisedWeights read_weights_for(const std::string& path, const ModelFiles& files, const ModelInfo& info);

/// Puts the decoded weights in place of all projections. Biases, norms, embedding and head stay.
void use_weights(Decoder& decoder, const ModelFiles& files, const QuantisedWeights& weights);

/// f32 bytes of the projections, which a decoder with quantised weights has beside one without.
uint64_t projection_bytes(const ModelFiles& files);

}  // namespace kvcc
