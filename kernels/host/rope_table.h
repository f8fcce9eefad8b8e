// The tables of cosines and sines that key_scores takes. Host only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/core/model_info.h"

namespace kvcc::host {

/// Table of positions 0 … positions - 1, [positions, rotary_dim / 2] each.
struct RopeTables {
  std::vector<float> cosine, sine;
};

/// Frequencies theta^(-2i / rotary_dim) rounded to f32, as models compute them. Throws Error(failed) for a scaling
/// other than "none": pass the model's own frequencies to rope_tables() then.
std::vector<float> rope_frequencies(const RopeInfo& rope);

/// Angle position * frequency in f32, as models compute it; its cosine and sine rounded from double. `multiplier` is
/// the attention factor of scalings that have one (yarn, longrope).
RopeTables rope_tables(std::span<const float> frequencies, int64_t positions, float multiplier = 1.0f);

}  // namespace kvcc::host
