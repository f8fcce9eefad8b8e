// Grids that need no data.
#include <cmath>

#include "formats/codec/reference.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Inverse of the standard normal distribution function, 0 < p < 1: Newton's method on erfc.
double normal_quantile(double p) {
  double x = 0;
  for (int i = 0; i < 100; ++i) {
    const double error = 0.5 * std::erfc(-x * M_SQRT1_2) - p;
    const double step = error * std::sqrt(2 * M_PI) * std::exp(0.5 * x * x);
    x -= step;
    if (std::fabs(step) < 1e-15) break;
  }
  return x;
}

}  // namespace

std::vector<float> integer_levels(int bits) {
  if (bits < 1 || bits > 8) {
    throw Error(ErrorKind::usage, "int grid", std::to_string(bits) + " bits", "1 to 8");
  }
  const int last = (1 << bits) - 1;
  std::vector<float> levels(last + 1);
  for (int j = 0; j <= last; ++j) levels[j] = static_cast<float>((2.0 * j - last) / last);
  return levels;
}

std::vector<float> normal_float_levels(int bits) {
  if (bits < 2 || bits > 8) {
    throw Error(ErrorKind::usage, "nf grid", std::to_string(bits) + " bits", "2 to 8");
  }
  const double tail = 0.5 * (1.0 / 32 + 1.0 / 30);  // the constant of the 4-bit grid, at every width
  const int half = 1 << (bits - 1);
  const double end = normal_quantile(1 - tail);
  std::vector<float> levels;
  for (int i = 0; i < half - 1; ++i) {  // half probabilities from tail to 0.5; the last is the 0 added below
    levels.push_back(static_cast<float>(normal_quantile(tail + (0.5 - tail) * i / (half - 1)) / end));
  }
  levels.front() = -1.0f;
  for (int i = 0; i <= half; ++i) {
    levels.push_back(i == 0 ? 0.0f : static_cast<float>(normal_quantile(0.5 + (0.5 - tail) * i / half) / end));
  }
  levels.back() = 1.0f;
  return levels;
}

void apply_qnorm(LevelTable& table, std::span<const float> scale, std::span<const float> offset) {
  table.decoded = table.levels;
  for (int h = 0; h < table.heads; ++h) {
    float* levels = table.decoded.data() + static_cast<size_t>(h) * table.stride;
    for (int j = 0; j < table.stride; ++j) levels[j] = fused_multiply_add(levels[j], scale[h], offset[h]);
  }
}

}  // namespace kvcc
