#include "kernels/host/rope_table.h"

#include <cmath>

#include "formats/core/error.h"

namespace kvcc::host {

std::vector<float> rope_frequencies(const RopeInfo& rope) {
  if (rope.scaling != "none") {
    throw Error(ErrorKind::failed, "RoPE tables", "scaling \"" + rope.scaling + "\"",
                "none, or the model's own frequencies");
  }
  std::vector<float> frequencies(rope.rotary_dim / 2);
  for (int i = 0; i < rope.rotary_dim / 2; ++i) {
    frequencies[i] = static_cast<float>(std::pow(rope.theta, -2.0 * i / rope.rotary_dim));
  }
  return frequencies;
}

RopeTables rope_tables(std::span<const float> frequencies, int64_t positions, float multiplier) {
  RopeTables tables;
  tables.cosine.reserve(positions * frequencies.size());
  tables.sine.reserve(positions * frequencies.size());
  for (int64_t p = 0; p < positions; ++p) {
    for (const float frequency : frequencies) {
      const double angle = static_cast<float>(p) * frequency;
      tables.cosine.push_back(static_cast<float>(std::cos(angle)) * multiplier);
      tables.sine.push_back(static_cast<float>(std::sin(angle)) * multiplier);
    }
  }
  return tables;
}

}  // namespace kvcc::host
