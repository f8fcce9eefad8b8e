// Means, errors and quantiles of what evaluations measure.
#pragma once

#include <span>
#include <vector>

namespace kvcc {

double mean(std::span<const double> x);
/// Standard error of the mean, sample deviation over sqrt(n); NaN for one value.
double standard_error(std::span<const double> x);
/// With weights (empty: all the same): sum w x / sum w, and the standard error of that ratio.
double mean(std::span<const double> x, std::span<const double> weights);
double standard_error(std::span<const double> x, std::span<const double> weights);
/// Linear between the two nearest values, as numpy's default: p in [0, 1], x not empty.
double quantile(std::vector<float> x, double p);

/// A figure and its standard error over windows; the error is NaN for one window.
struct Estimate {
  double value = 0, error = 0;
};

}  // namespace kvcc
