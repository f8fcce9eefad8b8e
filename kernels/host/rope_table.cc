#include "kernels/host/rope_table.h"

#include <cmath>

#include "formats/core/error.h"
#include "formats/layout/half.h"

namespace kvcc::host {

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

int64_t rope_base_rows(int64_t positions) { return (positions + KVCC_ROPE_BLOCK - 1) / KVCC_ROPE_BLOCK; }

BlockRopeTables block_rope_tables(const RopeFrequencies& frequencies, int64_t positions) {
  constexpr int64_t kMost = int64_t{1} << 24;  // a product of 24 and 24 bits is exact in double
  if (positions < 1 || positions > kMost) {
    throw Error(ErrorKind::failed, "RoPE tables, positions", std::to_string(positions),
                "1 to " + std::to_string(kMost));
  }
  for (size_t i = 0; i < frequencies.inverse.size(); ++i) {
    if (!std::isfinite(frequencies.inverse[i])) {
      throw Error(ErrorKind::failed, "RoPE tables, frequency of pair " + std::to_string(i), "not finite",
                  "radians a token");
    }
  }
  BlockRopeTables tables;
  tables.base_rows = rope_base_rows(positions);
  for (int64_t block = 0; block < tables.base_rows; ++block) {
    for (const float frequency : frequencies.inverse) {
      const double angle = static_cast<double>(block * KVCC_ROPE_BLOCK) * frequency;
      tables.base_cosine.push_back(static_cast<float>(std::cos(angle) * frequencies.attention_factor));
      tables.base_sine.push_back(static_cast<float>(std::sin(angle) * frequencies.attention_factor));
    }
  }
  for (int64_t r = 0; r < kRelativePositions; ++r) {
    for (const float frequency : frequencies.inverse) {
      const double angle = static_cast<double>(r) * frequency;
      tables.relative_cosine_f32.push_back(static_cast<float>(std::cos(angle)));
      tables.relative_sine_f32.push_back(static_cast<float>(std::sin(angle)));
      tables.relative_cosine.push_back(float_to_half(tables.relative_cosine_f32.back()));
      tables.relative_sine.push_back(float_to_half(tables.relative_sine_f32.back()));
    }
  }
  return tables;
}

void rotate_row(float* x, int heads, int dim, int pairs, bool interleaved, const float* cosine, const float* sine) {
  for (int h = 0; h < heads; ++h, x += dim) {
    for (int i = 0; i < pairs; ++i) {
      float& a = x[interleaved ? 2 * i : i];
      float& b = x[interleaved ? 2 * i + 1 : i + pairs];
      const float first = a, second = b;
      a = first * cosine[i] - second * sine[i];
      b = second * cosine[i] + first * sine[i];
    }
  }
}

}  // namespace kvcc::host
