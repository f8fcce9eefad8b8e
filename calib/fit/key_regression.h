// What values are to be expected from the keys of their token, for schemes with v-predict=key.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcc {

/// Rows of one unit: those of token t begin at t * step. Not owned.
struct RegressionRows {
  const float* data;
  int64_t step;
  int size;
};

/// [N, K] the linear map of keys (K) that leaves the least weighted sum of squares of values (N), both less their
/// weighted means; a ridge of 1e-4 of the keys' mean variance keeps it small where keys do not vary. Least squares of
/// every value alone, so it is the same in every metric of values. `weights` [tokens], 0 for tokens without a part.
/// Zeros where no token has a part.
std::vector<float> regress_on_keys(const RegressionRows& keys, const RegressionRows& values,
                                   std::span<const float> weights);

}  // namespace kvcc
