#include "calib/fit/histogram.h"

#include <algorithm>

namespace kvcc {
namespace {
double centre_of(int bin) { return (bin + 0.5) * (2.0 / kHistogramBins) - 1.0; }
}  // namespace

void Histogram::add(const float* y, const double* w, int n) {
  for (int i = 0; i < n; ++i) {
    if (w[i] == 0) continue;
    const int number = histogram_bin(y[i]);
    Bin& bin = bins_[number];
    const double d = y[i] - centre_of(number), wd = w[i] * d;
    bin.w += w[i];
    bin.wd += wd;
    bin.wdd += wd * d;
    bin.low = std::min(bin.low, y[i]);
    bin.high = std::max(bin.high, y[i]);
  }
}

void Histogram::merge(const Histogram& other) {
  for (int i = 0; i < kHistogramBins; ++i) {
    Bin& bin = bins_[i];
    const Bin& from = other.bins_[i];
    bin.w += from.w;
    bin.wd += from.wd;
    bin.wdd += from.wdd;
    bin.low = std::min(bin.low, from.low);
    bin.high = std::max(bin.high, from.high);
  }
}

double Histogram::weight() const {
  double sum = 0;
  for (const Bin& bin : bins_) sum += bin.w;
  return sum;
}

std::vector<Superpoint> Histogram::superpoints(std::vector<int>& bins) const {
  std::vector<Superpoint> points;
  bins.clear();
  for (int i = 0; i < kHistogramBins; ++i) {
    const Bin& bin = bins_[i];
    if (bin.w == 0) continue;
    const double shift = bin.wd / bin.w;
    const double mean = std::clamp<double>(centre_of(i) + shift, bin.low, bin.high);
    const double spread = bin.low == bin.high ? 0.0 : std::max(0.0, bin.wdd - bin.wd * shift);
    points.push_back({bin.w, mean, spread, bin.low, bin.high});
    bins.push_back(i);
  }
  return points;
}

}  // namespace kvcc
