// Stages 2 and 3: distributions of normalised values, and their best levels.
#include <algorithm>
#include <cmath>
#include <utility>

#include "calib/fit/tensor_fit.h"
#include "formats/codec/clones.h"

namespace kvcc {
namespace {

constexpr double kTarget = 2e-5;     // relative bound on the gap to the optimum that merging aims at
constexpr double kTolerance = 1e-4;  // and the one that makes it try again with finer superpoints

/// y = normalised x clamped to [-1, 1], w = factor g^2, 0 outside the thresholds. `g` may be null: 1.
KVCC_CLONES void channel_points(const float* x, const float* g, const float* scale, const float* zero,
                                const float* lower, const float* upper, const double* factor, int n, float* y,
                                double* w) {
  for (int c = 0; c < n; ++c) {
    const float v = normalise(x[c], scale[c], zero[c]);
    y[c] = v < -1.0f ? -1.0f : (v > 1.0f ? 1.0f : v);
  }
  for (int c = 0; c < n; ++c) {
    const double gradient = g != nullptr ? g[c] : 1.0f;
    w[c] = outside_thresholds(x[c], lower[c], upper[c]) ? 0.0 : factor[c] * (gradient * gradient);
  }
}

KVCC_CLONES void token_points(const float* x, const float* g, float scale, float zero, double factor, int n, float* y,
                              double* w) {
  for (int c = 0; c < n; ++c) {
    const float v = normalise(x[c], scale, zero);
    y[c] = v < -1.0f ? -1.0f : (v > 1.0f ? 1.0f : v);
  }
  for (int c = 0; c < n; ++c) {
    const double gradient = g != nullptr ? g[c] : 1.0f;
    w[c] = factor * (gradient * gradient);
  }
}

}  // namespace

/// Calls use(y [D], w [D]) for each token of the head that takes part; points of weight 0 among them do not count.
template <typename Use>
void TensorFitter::walk(const Weighting& weighting, int head, bool weighted, const Use& use) const {
  const Normaliser& norm = normalisers_[weighting.normaliser];
  const int dim = in_.dim, n = in_.row_size(), first_column = head * dim;
  const bool by_scale = weighted && weighting.weight == FitWeight::fs2;
  const bool by_gradient = weighted && weighting.weight != FitWeight::none && !in_.grad.empty();
  std::vector<float> y(dim);
  std::vector<double> w(dim), factor(dim);
  for (int c = 0; c < dim && norm.axis == Axis::channel; ++c) {
    const double scale = norm.scale[first_column + c];
    factor[c] = norm.scale[first_column + c] == kLeastScale ? 0.0 : (by_scale ? scale * scale : 1.0);
  }
  for (int64_t row = 0, sample = 0; row < in_.rows(); ++row) {
    if (row == in_.end(sample)) ++sample;
    if (!weighting.first && row == in_.begin(sample)) continue;
    const float* x = in_.x.data() + row * n + first_column;
    const float* g = by_gradient ? in_.grad.data() + row * n + first_column : nullptr;
    if (norm.axis == Axis::channel) {
      channel_points(x, g, norm.scale.data() + first_column, norm.zero.data() + first_column,
                     norm.lower.data() + first_column, norm.upper.data() + first_column, factor.data(), dim, y.data(),
                     w.data());
    } else {
      const double scale = norm.token_scale[row];
      if (scale == 0) continue;
      token_points(x, g, norm.token_scale[row], norm.token_zero[row], by_scale ? scale * scale : 1.0, dim, y.data(),
                   w.data());
      for (int i = 0; i < 2 * norm.tail; ++i) {
        const int column = norm.columns[row * 2 * norm.tail + i] - first_column;
        if (column >= 0 && column < dim) w[column] = 0;
      }
    }
    use(y.data(), w.data());
  }
}

Histogram TensorFitter::histogram(const Weighting& weighting, int head, bool weighted) const {
  Histogram result;
  walk(weighting, head, weighted, [&](const float* y, const double* w) { result.add(y, w, in_.dim); });
  return result;
}

void TensorFitter::cluster(Clustering& clustering, int task) {
  const Weighting& weighting = weightings_[clustering.weighting];
  const bool one = clustering.scope == CodebookScope::head;
  const int begin = one ? task : 0, end = one ? task + 1 : in_.heads;
  Histogram sum;
  for (int h = begin; h < end; ++h) sum.merge(*weighting.heads[h]);
  const bool weighted = sum.weight() > 0;
  if (!weighted) {
    for (int h = begin; h < end; ++h) sum.merge(histogram(weighting, h, false));
  }
  std::vector<int> bins;
  const std::vector<Superpoint> whole = sum.superpoints(bins);
  double limit = extent_limit(whole, clustering.most, kTarget);
  std::vector<KMeans1d>& results = clustering.results[task];
  for (int attempt = 0; attempt < 6; ++attempt) {
    // Bins too heavy for their extent are taken apart into their points.
    std::vector<uint8_t> heavy(kHistogramBins, 0);
    bool any = false;
    for (size_t i = 0; i < whole.size(); ++i) {
      heavy[bins[i]] = whole[i].weight * (whole[i].high - whole[i].low) > limit;
      any |= heavy[bins[i]] != 0;
    }
    std::vector<Superpoint> points;
    if (any) {
      std::vector<double> x, w;
      for (int h = begin; h < end; ++h) {
        walk(weighting, h, weighted, [&](const float* y, const double* v) {
          for (int c = 0; c < in_.dim; ++c) {
            if (v[c] == 0 || !heavy[histogram_bin(y[c])]) continue;
            x.push_back(y[c]);
            w.push_back(v[c]);
          }
        });
      }
      points = superpoints_of(x, w);
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      if (!heavy[bins[i]]) points.push_back(whole[i]);
    }
    std::sort(points.begin(), points.end(), [](const Superpoint& a, const Superpoint& b) { return a.low < b.low; });
    results = cluster_merged(points, clustering.counts, limit);
    const KMeans1d& finest = results.front();  // of clustering.most codes: the greatest relative bound
    if (finest.relative_bound() <= kTolerance || limit == 0) return;
    // Aim at the optimum as it is known now; the last attempt takes every point by itself.
    limit = attempt == 4 ? 0 : std::min(limit / 4, kTarget * finest.objective);
  }
}

void TensorFitter::match_moments(int plan, int head) {
  const TensorPlan& asked = plans_[plan];
  Work& work = work_[plan];
  if (!asked.qnorm || work.clustering < 0) return;
  const Clustering& c = clusterings_[work.clustering];
  const bool one = c.scope == CodebookScope::head;
  if (!one && head > 0) return;  // the first head does the layer's
  const std::vector<double>& centres = c.results[one ? head : 0][work.count].centres;
  const std::vector<float> levels(centres.begin(), centres.end());
  double count = 0, sum[2] = {}, squares[2] = {};  // of inliers, and of what they decode to
  for (int h = one ? head : 0; h < (one ? head + 1 : in_.heads); ++h) {
    walk(weightings_[c.weighting], h, false, [&](const float* y, const double* w) {
      for (int i = 0; i < in_.dim; ++i) {
        if (w[i] == 0) continue;
        const double q = levels[nearest_level(levels.data(), static_cast<int>(levels.size()), y[i])];
        count += 1;
        sum[0] += y[i];
        squares[0] += static_cast<double>(y[i]) * y[i];
        sum[1] += q;
        squares[1] += q * q;
      }
    });
  }
  double scale = 1, offset = 0;
  if (count > 0) {
    const double mean = sum[0] / count, decoded_mean = sum[1] / count;
    const double variance = squares[0] / count - mean * mean;
    const double decoded_variance = squares[1] / count - decoded_mean * decoded_mean;
    if (variance > 0 && decoded_variance > 0) scale = std::sqrt(variance / decoded_variance);
    offset = mean - decoded_mean * scale;
  }
  for (int h = one ? head : 0; h < (one ? head + 1 : in_.heads); ++h) {
    work.norm_scale[h] = static_cast<float>(scale);
    work.norm_offset[h] = static_cast<float>(offset);
  }
}

}  // namespace kvcc
