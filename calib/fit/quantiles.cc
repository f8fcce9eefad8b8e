#include "calib/fit/quantiles.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace kvcc {
namespace {

struct Pair {
  double at, next;
};

/// Values of rank `rank` and rank + 1 (or again `rank`, at the end) in the order `before`. Ranks of a tail are few, so
/// values beyond a guess from a sample are set aside first; a guess that keeps too few is dropped.
template <typename Before>
Pair front_pair(std::span<const float> values, size_t rank, Before before) {
  constexpr size_t kSample = 1024;
  const size_t n = values.size(), last = std::min(rank + 1, n - 1);
  std::vector<float> kept;
  if (n > 4 * kSample && last < n / 4) {
    std::vector<float> sample;
    for (size_t i = 0; i < n; i += n / kSample) sample.push_back(values[i]);
    const size_t cut = std::min(sample.size() - 1, (last + 1) * sample.size() * 3 / (2 * n) + sample.size() / 100 + 4);
    std::nth_element(sample.begin(), sample.begin() + cut, sample.end(), before);
    const float bar = sample[cut];
    kept.resize(n);
    size_t count = 0;
    for (const float v : values) {
      kept[count] = v;
      count += before(bar, v) ? 0 : 1;
    }
    kept.resize(count);
  }
  if (kept.size() <= last) kept.assign(values.begin(), values.end());
  std::nth_element(kept.begin(), kept.begin() + rank, kept.end(), before);
  const float at = kept[rank];
  const float next = last == rank ? at : *std::min_element(kept.begin() + rank + 1, kept.end(), before);
  return {at, next};
}

/// numpy's interpolation, which is exact at both ends.
double interpolate(double a, double b, double t) { return t < 0.5 ? a + (b - a) * t : b - (b - a) * (1 - t); }

}  // namespace

Ends quantile_ends(std::span<const float> values, double sparse) {
  if (sparse == 0) {
    const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
    return {*least, *greatest};
  }
  const double steps = static_cast<double>(values.size() - 1);
  const double low = 0.5 * sparse * steps, high = (1 - 0.5 * sparse) * steps;
  Ends ends;
  const Pair lower = front_pair(values, static_cast<size_t>(std::floor(low)), std::less<float>());
  ends.lower = interpolate(lower.at, lower.next, low - std::floor(low));
  const size_t below = static_cast<size_t>(std::floor(high)), above = std::min(below + 1, values.size() - 1);
  const Pair upper = front_pair(values, values.size() - 1 - above, std::greater<float>());
  ends.upper = interpolate(above == below ? upper.at : upper.next, upper.at, high - std::floor(high));
  return ends;
}

}  // namespace kvcc
