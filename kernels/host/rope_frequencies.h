// Rotary frequencies of a model, with every scaling rule that model configurations name. Host only.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/core/model_info.h"

namespace kvcc::host {

/// What some scaling rules need beside the parameters in RopeInfo.
struct RopeUse {
  int64_t max_positions = 0;  ///< the model's max_position_embeddings; 0: not known
  int64_t length =
      0;  ///< tokens of the longest sequence that the tables serve; 0: no more than the model was trained on
};

struct RopeFrequencies {
  std::vector<float> inverse;     ///< [rotary_dim / 2] radians a token
  float attention_factor = 1.0f;  ///< on cosines and sines (yarn, longrope)
};

/// Frequencies as the model computes them: in f32, in the order of operations of transformers' ROPE_INIT_FUNCTIONS, so
/// that they differ from a model's own by an ulp or two (of powf) at most. Scalings:
///   none, linear;
///   llama3     by its four parameters, or by one divisor a pair where a GGUF file has only those ("freq_factors");
///   yarn       its attention factor from attention_factor, mscale and mscale_all_dim, or factor;
///   dynamic    depends on use.length above use.max_positions, which must be known;
///   longrope   long_factor when use.length is above original_max_position_embeddings, else short_factor.
/// dynamic and longrope turn every key anew when a sequence outgrows its tables, which works because the cache holds
/// keys before RoPE. Throws Error(bad_input) naming the scaling and the parameter that is missing or wrong.
RopeFrequencies rope_frequencies(const RopeInfo& rope, const RopeUse& use = {});

}  // namespace kvcc::host
