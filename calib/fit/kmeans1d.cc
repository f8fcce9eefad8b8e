#include "calib/fit/kmeans1d.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Prefix sums carry the cost of every interval; long double keeps light clusters beside heavy ones apart.
using Real = long double;

/// D[k][j] = min over i of D[k-1][i] + cost(i, j), layer by layer. The best i never decreases in j (the cost is concave
/// Monge), so each layer is filled by halving; nor does it decrease in k, which narrows the search from below.
class Programme {
 public:
  Programme(std::span<const Superpoint> points, int clusters) : size_(points.size()) {
    Real weight = 0, moment = 0;
    for (const Superpoint& p : points) {
      weight += p.weight;
      moment += static_cast<Real>(p.weight) * p.mean;
    }
    const Real centre = moment / weight;  // sums about the mean cancel least
    sums_.resize(size_ + 1);
    for (size_t i = 0; i < size_; ++i) {
      const Real x = points[i].mean - centre, w = points[i].weight;
      sums_[i + 1] = {sums_[i].w + w, sums_[i].x + w * x, sums_[i].xx + w * x * x};
    }
    previous_.resize(size_ + 1);
    current_.resize(size_ + 1);
    for (size_t j = 1; j <= size_; ++j) previous_[j] = cost(0, j);
    splits_.resize(clusters - 1);
    for (int k = 2; k <= clusters; ++k) {
      splits_[k - 2].assign(size_ + 1, 0);
      fill(k);
      std::swap(previous_, current_);
    }
  }

  /// Ends of the clusters of the best partition into k.
  std::vector<size_t> ends(int k) const {
    std::vector<size_t> ends(k);
    size_t end = size_;
    for (int cluster = k; cluster >= 1; --cluster) {
      ends[cluster - 1] = end;
      if (cluster > 1) end = splits_[cluster - 2][end];
    }
    return ends;
  }

 private:
  struct Sums {
    Real w = 0, x = 0, xx = 0;
  };
  size_t size_;
  std::vector<Sums> sums_;
  std::vector<Real> previous_, current_;
  std::vector<std::vector<uint32_t>> splits_;  ///< [k - 2][j]: start of the last of k clusters of the first j points

  Real cost(size_t i, size_t j) const {  // of points [i, j) as one cluster, i < j
    const Sums &a = sums_[i], &b = sums_[j];
    const Real x = b.x - a.x, value = (b.xx - a.xx) - x * x / (b.w - a.w);
    return value > 0 ? value : 0;
  }

  void fill(int k) {
    std::vector<uint32_t>& split = splits_[k - 2];
    const std::vector<uint32_t>* below = k > 2 ? &splits_[k - 3] : nullptr;
    struct Range {
      size_t first, last, low, high;  // j in [first, last], best i in [low, high]
    };
    const size_t least = static_cast<size_t>(k) - 1;  // k clusters need k points; fewer points are never asked for
    std::vector<Range> stack{{static_cast<size_t>(k), size_, least, size_ - 1}};
    while (!stack.empty()) {
      const Range range = stack.back();
      stack.pop_back();
      if (range.first > range.last) continue;
      const size_t j = (range.first + range.last) / 2;
      size_t low = range.low;
      const size_t high = std::min(range.high, j - 1);
      if (below && j > least) low = std::min(std::max<size_t>(low, (*below)[j]), high);
      Real best = previous_[low] + cost(low, j);
      size_t at = low;
      for (size_t i = low + 1; i <= high; ++i) {
        const Real value = previous_[i] + cost(i, j);
        if (value < best) {
          best = value;
          at = i;
        }
      }
      current_[j] = best;
      split[j] = static_cast<uint32_t>(at);
      stack.push_back({j + 1, range.last, at, range.high});
      stack.push_back({range.first, j - 1, range.low, at});
    }
  }
};

/// Centres and objective of a partition, from the points themselves rather than from prefix sums.
KMeans1d solution(std::span<const Superpoint> points, std::span<const size_t> ends, int count) {
  KMeans1d result;
  Real objective = 0;
  size_t begin = 0;
  for (const size_t end : ends) {
    Real weight = 0, moment = 0;
    const Real origin = points[begin].mean;
    for (size_t i = begin; i < end; ++i) {
      weight += points[i].weight;
      moment += points[i].weight * (points[i].mean - origin);
    }
    const Real centre = origin + moment / weight;
    for (size_t i = begin; i < end; ++i) {
      const Real distance = points[i].mean - centre;
      objective += points[i].spread + points[i].weight * distance * distance;
    }
    result.centres.push_back(std::clamp(static_cast<double>(centre), points[begin].low, points[end - 1].high));
    begin = end;
  }
  result.centres.resize(count, result.centres.back());
  result.objective = static_cast<double>(objective);
  return result;
}

double range_of(std::span<const Superpoint> points) { return points.back().high - points.front().low; }

double greatest_extent(std::span<const Superpoint> points) {
  double most = 0;
  for (const Superpoint& p : points) most = std::max(most, p.weight * (p.high - p.low));
  return most;
}

void check_points(std::span<const double> x, std::span<const double> w) {
  if (!w.empty() && w.size() != x.size()) {
    throw Error(ErrorKind::failed, "k-means", std::to_string(w.size()) + " weights", std::to_string(x.size()));
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const std::string index = std::to_string(i);
    if (!std::isfinite(x[i])) throw bad_input("k-means, value " + index, std::to_string(x[i]), "a finite value");
    if (!w.empty() && !(std::isfinite(w[i]) && w[i] >= 0)) {
      throw bad_input("k-means, weight " + index, std::to_string(w[i]), "0 or more, finite",
                      "k-means expects squared gradients");
    }
  }
}

}  // namespace

double KMeans1d::relative_bound() const {
  if (gap_bound == 0) return 0;
  const double least = objective - gap_bound;
  return least > 0 ? gap_bound / least : std::numeric_limits<double>::infinity();
}

std::vector<Superpoint> superpoints_of(std::span<const double> x, std::span<const double> w) {
  check_points(x, w);
  if (std::all_of(w.begin(), w.end(), [](double v) { return v == 0; })) w = {};
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return x[a] < x[b]; });
  std::vector<Superpoint> points;
  for (const uint32_t i : order) {
    const double weight = w.empty() ? 1.0 : w[i];
    if (weight == 0) continue;
    if (!points.empty() && points.back().mean == x[i]) {
      points.back().weight += weight;
    } else {
      points.push_back({weight, x[i], 0, x[i], x[i]});
    }
  }
  return points;
}

std::vector<KMeans1d> cluster_superpoints(std::span<const Superpoint> points, std::span<const int> counts) {
  std::vector<KMeans1d> results;
  if (counts.empty()) return results;
  if (*std::min_element(counts.begin(), counts.end()) < 1) {
    throw Error(ErrorKind::usage, "k-means", "fewer than one cluster", "1 or more");
  }
  if (points.size() > std::numeric_limits<uint32_t>::max()) {
    throw Error(ErrorKind::resource, "k-means", std::to_string(points.size()) + " points", "at most 2^32");
  }
  const int most = static_cast<int>(
      std::min<size_t>(points.size(), static_cast<size_t>(*std::max_element(counts.begin(), counts.end()))));
  if (most == 0) {
    for (const int count : counts) results.push_back({std::vector<double>(count, 0.0), 0, 0});
    return results;
  }
  const Programme programme(points, most);
  const double bound = 0.5 * range_of(points) * greatest_extent(points);
  for (const int count : counts) {
    results.push_back(solution(points, programme.ends(std::min(count, most)), count));
    results.back().gap_bound = std::min(bound, results.back().objective);
  }
  return results;
}

std::vector<KMeans1d> kmeans_1d(std::span<const double> x, std::span<const double> w, std::span<const int> counts) {
  return cluster_superpoints(superpoints_of(x, w), counts);
}

std::vector<Superpoint> merge_superpoints(std::span<const Superpoint> points, double limit) {
  std::vector<Superpoint> merged;
  for (const Superpoint& p : points) {
    if (!merged.empty()) {
      Superpoint& last = merged.back();
      const double weight = last.weight + p.weight;
      if (weight * (p.high - last.low) <= limit) {
        const double distance = p.mean - last.mean, share = p.weight / weight;
        last.spread += p.spread + last.weight * share * distance * distance;
        last.mean = std::clamp(last.mean + share * distance, last.low, p.high);
        last.weight = weight;
        last.high = std::max(last.high, p.high);
        continue;
      }
    }
    merged.push_back(p);
  }
  return merged;
}

double extent_limit(std::span<const Superpoint> points, int count, double tolerance) {
  constexpr int kCoarse = 64;  // superpoints a cluster in the coarse solution
  if (points.size() <= static_cast<size_t>(count)) return 0;
  double weight = 0;
  for (const Superpoint& p : points) weight += p.weight;
  const double range = range_of(points), pieces = static_cast<double>(kCoarse) * count;
  const std::vector<Superpoint> coarse = merge_superpoints(points, range * weight / (pieces * pieces));
  const KMeans1d guess = cluster_superpoints(coarse, std::span(&count, 1)).front();
  const double optimum = std::max(guess.objective - guess.gap_bound, 0.5 * guess.objective);
  return range > 0 ? 2 * tolerance * optimum / range : 0;
}

std::vector<KMeans1d> cluster_merged(std::span<const Superpoint> points, std::span<const int> counts, double limit) {
  constexpr size_t kMostSplits = size_t{1} << 28;
  const size_t most = counts.empty() ? 1 : static_cast<size_t>(*std::max_element(counts.begin(), counts.end()));
  std::vector<Superpoint> merged = merge_superpoints(points, limit);
  while (merged.size() * most > kMostSplits) {  // accuracy gives way to memory; the bound tells
    limit = std::max(2 * limit, 1e-12 * greatest_extent(points) + 1e-300);
    merged = merge_superpoints(points, limit);
  }
  return cluster_superpoints(merged, counts);
}

}  // namespace kvcc
