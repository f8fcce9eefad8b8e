// Fit of weight matrices: dense codebooks for each output channel and a sparse part (SqueezeLLM, arXiv 2306.07629).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/core/quantised_matrix.h"

namespace kvcc {

struct WeightFitSettings {
  int bits = 4;
  double sparse = 0.0045;           ///< share of a matrix's weights that are kept exactly
  double sensitive = 0.0045 / 9.0;  ///< share of them all that are kept for their Fisher information; part of `sparse`
  int threads = 1;
};

/// Which of the weights [n] are kept exactly, as flags: round(sensitive n) of the largest Fisher information, where it
/// is above 0, then of the rest those of the largest magnitude, until there are round(sparse n) (section 4.2; exact
/// counts in place of thresholds). Of equals the first ones. The paper's 0.45 % are 0.05 % and 0.40 %.
std::vector<uint8_t> exact_weights(std::span<const float> weights, std::span<const float> fisher, double sparse,
                                   double sensitive);

/// weights and fisher [rows, columns], fisher >= 0: the sum over samples of squared gradients (equation 3). The levels
/// of a row are the weighted k-means optimum of its dense weights (equation 4; all its Fisher information 0:
/// unweighted), rounded to fp16. `name` and `layer` are the result's. The same for any number of threads. Throws
/// Error(bad_input) that names tensor and row for values that are not finite, Fisher information below 0, levels beyond
/// fp16, and more than kMostWeightColumns columns.
QuantisedMatrix fit_matrix(const std::string& name, int layer, int64_t rows, int64_t columns,
                           std::span<const float> weights, std::span<const float> fisher,
                           const WeightFitSettings& settings);

}  // namespace kvcc
