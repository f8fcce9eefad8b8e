// Weighted k-means on the line, solved to the global optimum by dynamic programming (no seeds, no restarts).
//
// Large data are first gathered into superpoints, runs of neighbouring points that stay together. That costs little,
// and how little is known: let C be optimal centres of the points. Give each superpoint that a cell boundary of C
// crosses to one side, the cheaper one. A boundary between centres at distance d that leaves weight A within a of it on
// one side and B within b on the other costs at most 2 d min(A a, B b) <= d W h / 2, where W = A + B is the
// superpoint's weight and h = a + b its extent (with several boundaries in one superpoint the same sum bounds the best
// of its cells). The distances d add up to at most the range R of the data, so
//     best partition into whole superpoints <= optimum + R max(h W) / 2.
// The dynamic programme finds the left side exactly, from exact moments.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcc {

/// Points that stay in one cluster, by their exact moments. weight > 0, low <= mean <= high.
struct Superpoint {
  double weight = 0;
  double mean = 0;
  double spread = 0;         ///< sum of weight (x - mean)^2 within
  double low = 0, high = 0;  ///< extent
};

struct KMeans1d {
  std::vector<double> centres;  ///< [k] non-decreasing; with fewer distinct points than k the last is repeated
  double objective = 0;         ///< sum of weight (x - nearest centre)^2
  double gap_bound = 0;         ///< objective <= optimum + gap_bound; 0 where superpoints are single points
  /// gap_bound over the least possible optimum: a bound on (objective - optimum) / optimum. Infinite when nothing is
  /// known.
  double relative_bound() const;
};

/// Points x [n] of weights w [n] (empty: all 1) as superpoints of extent 0: sorted, equal points joined, points of no
/// weight left out; when all weights are 0 they count as 1. Throws Error(bad_input) for values that are not finite and
/// weights that are negative or not finite, "expects squared gradients", with the index.
std::vector<Superpoint> superpoints_of(std::span<const double> x, std::span<const double> w);

/// The best partitions of ascending superpoints into at most counts[i] clusters each, all from one dynamic programme.
/// No points: all centres 0. Memory: 4 bytes times points times the largest count.
std::vector<KMeans1d> cluster_superpoints(std::span<const Superpoint> points, std::span<const int> counts);

/// Global optimum of points x [n], w [n] as superpoints_of() takes them.
std::vector<KMeans1d> kmeans_1d(std::span<const double> x, std::span<const double> w, std::span<const int> counts);

/// Joins neighbours while weight times extent of the union is at most `limit`.
std::vector<Superpoint> merge_superpoints(std::span<const Superpoint> points, double limit);

/// The greatest weight times extent that a superpoint may have for relative_bound() <= tolerance with `count` clusters,
/// estimated from a coarse solution.
double extent_limit(std::span<const Superpoint> points, int count, double tolerance);

/// cluster_superpoints() after merging up to `limit`, or further where the table of splits would pass 1 GiB.
std::vector<KMeans1d> cluster_merged(std::span<const Superpoint> points, std::span<const int> counts, double limit);

}  // namespace kvcc
