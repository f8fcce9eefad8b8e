// Thresholds of channels: quantiles with linear interpolation, as numpy's percentile.
#pragma once

#include <span>

namespace kvcc {

struct Ends {
  double lower = 0, upper = 0;
};

/// Quantiles `sparse` / 2 and 1 - `sparse` / 2 of the values, n >= 1, finite; least and greatest for sparse 0. Position
/// q (n - 1) between the sorted values, linear between neighbours.
Ends quantile_ends(std::span<const float> values, double sparse);

}  // namespace kvcc
