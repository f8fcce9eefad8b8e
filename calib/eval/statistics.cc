#include "calib/eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvcc {

double mean(std::span<const double> x) {
  double sum = 0;
  for (double v : x) sum += v;
  return sum / static_cast<double>(x.size());
}

double standard_error(std::span<const double> x) {
  if (x.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const double centre = mean(x), n = static_cast<double>(x.size());
  double squares = 0;
  for (double v : x) squares += (v - centre) * (v - centre);
  return std::sqrt(squares / (n - 1) / n);
}

double mean(std::span<const double> x, std::span<const double> weights) {
  if (weights.empty()) return mean(x);
  double sum = 0, weight = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += weights[i] * x[i];
    weight += weights[i];
  }
  return sum / weight;
}

double standard_error(std::span<const double> x, std::span<const double> weights) {
  if (weights.empty() || x.size() < 2) return standard_error(x);
  const double centre = mean(x, weights), n = static_cast<double>(x.size());
  double squares = 0, weight = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double distance = weights[i] * (x[i] - centre);
    squares += distance * distance;
    weight += weights[i];
  }
  return std::sqrt(squares * n / (n - 1)) / weight;
}

double quantile(std::vector<float> x, double p) {
  const double place = p * static_cast<double>(x.size() - 1);
  const auto below = static_cast<size_t>(place);
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(below), x.end());
  const double low = x[below], part = place - static_cast<double>(below);
  if (part == 0) return low;
  const double high = *std::min_element(x.begin() + static_cast<std::ptrdiff_t>(below) + 1, x.end());
  return low + part * (high - low);
}

}  // namespace kvcc
