// Stages 0 and 1: checks and statistics; thresholds, scales and zero-points.
#include <algorithm>
#include <cmath>
#include <limits>

#include "calib/fit/quantiles.h"
#include "calib/fit/tensor_fit.h"
#include "formats/codec/clones.h"
#include "formats/codec/tails.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Sums of one head's channels, [D] each; x relative to the first row, so that a large offset costs no precision.
struct Moments {
  std::vector<float> least, greatest;
  std::vector<double> sum, squares, fisher;
  int64_t reached = 0;  ///< rows with a gradient other than 0, or without gradients
  explicit Moments(int dim)
      : least(dim, std::numeric_limits<float>::max()),
        greatest(dim, std::numeric_limits<float>::lowest()),
        sum(dim),
        squares(dim),
        fisher(dim) {}
};

/// Adds a row; returns whether all of it is finite. `g` may be null.
KVCC_CLONES bool add_row(Moments& m, const float* x, const float* g, const float* origin, int dim) {
  int bad = 0, reached = g == nullptr;
  float *least = m.least.data(), *greatest = m.greatest.data();
  double *sum = m.sum.data(), *squares = m.squares.data(), *fisher = m.fisher.data();
  for (int c = 0; c < dim; ++c) {
    bad |= !(std::fabs(x[c]) <= std::numeric_limits<float>::max());
    least[c] = x[c] < least[c] ? x[c] : least[c];
    greatest[c] = x[c] > greatest[c] ? x[c] : greatest[c];
    const double d = static_cast<double>(x[c]) - origin[c];
    sum[c] += d;
    squares[c] += d * d;
  }
  for (int c = 0; g != nullptr && c < dim; ++c) {
    bad |= !(std::fabs(g[c]) <= std::numeric_limits<float>::max());
    fisher[c] += static_cast<double>(g[c]) * g[c];
    reached |= g[c] != 0;
  }
  m.reached += reached;
  return bad == 0;
}

}  // namespace

void TensorFitter::describe_head(int head) {
  const int dim = in_.dim, n = in_.row_size();
  const bool fisher = !in_.grad.empty();
  Moments m(dim);
  const float* origin = in_.x.data() + static_cast<size_t>(head) * dim;
  const std::vector<float> origins(origin, origin + dim);
  double first = 0;
  for (int64_t row = 0; row < in_.rows(); ++row) {
    const size_t at = row * n + static_cast<size_t>(head) * dim;
    const float *x = in_.x.data() + at, *g = fisher ? in_.grad.data() + at : nullptr;
    if (!add_row(m, x, g, origins.data(), dim)) {
      const int64_t bad_x = first_non_finite({x, static_cast<size_t>(dim)});
      const float* from = bad_x >= 0 ? x : g;
      const int64_t channel = bad_x >= 0 ? bad_x : first_non_finite({g, static_cast<size_t>(dim)});
      throw bad_input(in_.name + (bad_x >= 0 ? "" : " gradient") + ", head " + std::to_string(head) + ", sample " +
                          std::to_string(row / in_.seqlen) + ", token " + std::to_string(row % in_.seqlen) +
                          ", channel " + std::to_string(channel),
                      std::isnan(from[channel]) ? "NaN" : "infinity",
                      bad_x >= 0 ? "a finite value" : "a finite gradient, as k-means expects squared gradients",
                      "collect again; --on-nonfinite skip leaves such samples out");
    }
    if (fisher && row % in_.seqlen == 0) {
      for (int c = 0; c < dim; ++c) first += static_cast<double>(g[c]) * g[c];
    }
  }
  const double rows = static_cast<double>(in_.rows());
  double mass = 0;
  for (int c = 0; c < dim; ++c) {
    const size_t at = static_cast<size_t>(head) * dim + c;
    const double mean = m.sum[c] / rows;
    stats_.min[at] = m.least[c];
    stats_.max[at] = m.greatest[c];
    stats_.mean[at] = static_cast<float>(origins[c] + mean);
    stats_.variance[at] = static_cast<float>(std::max(0.0, m.squares[c] / rows - mean * mean));
    stats_.fisher[at] = static_cast<float>(m.fisher[c] / rows);
    mass += m.fisher[c];
  }
  stats_.reached[head] = static_cast<uint32_t>(std::min<int64_t>(m.reached, UINT32_MAX));
  stats_.first_token_share[head] = mass > 0 ? static_cast<float>(first / mass) : 0.0f;
}

void TensorFitter::normalise_channels(Normaliser& normaliser, int head) {
  constexpr int kTogether = 16;  // channels gathered in one pass: a cache line
  const int64_t rows = in_.rows() - (normaliser.first ? 0 : in_.samples);
  std::vector<float> columns(kTogether * rows);
  for (int begin = 0; begin < in_.dim; begin += kTogether) {
    const int width = std::min(kTogether, in_.dim - begin);
    int64_t out = 0;
    for (int64_t row = 0; row < in_.rows(); ++row) {
      if (!normaliser.first && row % in_.seqlen == 0) continue;
      const float* from = in_.x.data() + row * in_.row_size() + static_cast<int64_t>(head) * in_.dim + begin;
      for (int c = 0; c < width; ++c) columns[c * rows + out] = from[c];
      ++out;
    }
    for (int c = 0; c < width; ++c) {
      const Ends ends = quantile_ends({columns.data() + c * rows, static_cast<size_t>(rows)}, normaliser.sparse);
      const size_t at = static_cast<size_t>(head) * in_.dim + begin + c;
      normaliser.lower[at] = static_cast<float>(ends.lower);
      normaliser.upper[at] = static_cast<float>(ends.upper);
      // Of the thresholds as they are stored, so that they are the ends of the grid.
      const double lower = normaliser.lower[at], upper = normaliser.upper[at];
      normaliser.scale[at] = std::max(static_cast<float>(0.5 * (upper - lower)), kLeastScale);
      normaliser.zero[at] = static_cast<float>(0.5 * (upper + lower));
    }
  }
}

void TensorFitter::normalise_tokens(Normaliser& normaliser, int64_t sample) {
  const int n = in_.row_size();
  RowTails tails;
  for (int64_t row = sample * in_.seqlen; row < (sample + 1) * in_.seqlen; ++row) {
    split_tails(in_.x.subspan(row * n, n), normaliser.tail, tails);
    std::copy(tails.columns.begin(), tails.columns.end(), normaliser.columns.begin() + row * 2 * normaliser.tail);
    TokenRange range = token_range(tails.low, tails.high);
    if (half_is_infinite(range.scale) || half_is_infinite(range.zero)) {
      range = checked_range(
          tails.low, tails.high,
          in_.name + ", sample " + std::to_string(sample) + ", token " + std::to_string(row % in_.seqlen));
    }
    normaliser.token_scale[row] = tails.low == tails.high ? 0.0f : half_to_float(range.scale);
    normaliser.token_zero[row] = half_to_float(range.zero);
  }
}

}  // namespace kvcc
