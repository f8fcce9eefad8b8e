// Fine histogram of normalised values with the exact moments and extent of each bin: the superpoints of large data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calib/fit/kmeans1d.h"

namespace kvcc {

constexpr int kHistogramBins = 65536;

/// Number of the bin of y in [-1, 1].
inline int histogram_bin(float y) {
  const int bin = static_cast<int>((y + 1.0f) * (kHistogramBins / 2));
  return bin < kHistogramBins ? bin : kHistogramBins - 1;
}

class Histogram {
 public:
  Histogram() : bins_(kHistogramBins) {}
  /// Values y [n] in [-1, 1] of weights w [n] >= 0; those of no weight are left out.
  void add(const float* y, const double* w, int n);
  void merge(const Histogram& other);
  double weight() const;  ///< of all
  /// One superpoint for each bin that holds something, ascending; bin numbers beside them.
  std::vector<Superpoint> superpoints(std::vector<int>& bins) const;

 private:
  struct Bin {
    double w = 0, wd = 0, wdd = 0;  ///< moments of d = y - the bin's centre, so that nothing cancels
    float low = 2, high = -2;
  };
  std::vector<Bin> bins_;
};

}  // namespace kvcc
