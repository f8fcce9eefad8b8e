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
  void add(const Moments& other) {
    for (size_t c = 0; c < least.size(); ++c) {
      least[c] = std::min(least[c], other.least[c]);
      greatest[c] = std::max(greatest[c], other.greatest[c]);
      sum[c] += other.sum[c];
      squares[c] += other.squares[c];
      fisher[c] += other.fisher[c];
    }
    reached += other.reached;
  }
};

/// Root mean square over the channels that change of the distance of their means, in standard deviations of both parts
/// together.
double drift_of(const Moments& a, const Moments& b, int64_t rows_a, int64_t rows_b) {
  if (rows_a == 0 || rows_b == 0) return 0;
  const auto na = static_cast<double>(rows_a), nb = static_cast<double>(rows_b), n = na + nb;
  double sum = 0;
  int channels = 0;
  for (size_t c = 0; c < a.least.size(); ++c) {
    if (std::min(a.least[c], b.least[c]) == std::max(a.greatest[c], b.greatest[c])) continue;
    const double mean = (a.sum[c] + b.sum[c]) / n, variance = (a.squares[c] + b.squares[c]) / n - mean * mean;
    const double distance = a.sum[c] / na - b.sum[c] / nb;
    // Of two parts, distance^2 <= n^2 / (na nb) variance: where rounding leaves less variance, that much is there.
    const double least = distance * distance * na * nb / (n * n);
    if (std::max(variance, least) <= 0) continue;
    sum += distance * distance / std::max(variance, least);
    ++channels;
  }
  return channels > 0 ? std::sqrt(sum / channels) : 0;
}

/// In eight partial sums, so that it goes fast.
KVCC_CLONES double sum_of_squares(const float* g, int n) {
  double part[8] = {};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int k = 0; k < 8; ++k) part[k] += static_cast<double>(g[i + k]) * g[i + k];
  }
  for (; i < n; ++i) part[0] += static_cast<double>(g[i]) * g[i];
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

/// Values of each part of `column` outside the quantiles of the other.
int64_t outside_the_others(std::span<const float> column, size_t first_part, double sparse) {
  const std::span<const float> parts[2] = {column.first(first_part), column.subspan(first_part)};
  int64_t count = 0;
  for (const int p : {0, 1}) {
    const Ends ends = quantile_ends(parts[1 - p], sparse);
    const auto lower = static_cast<float>(ends.lower), upper = static_cast<float>(ends.upper);
    for (const float v : parts[p]) count += static_cast<int64_t>(v < lower) + static_cast<int64_t>(v > upper);
  }
  return count;
}

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
  // First half without first tokens, second half, first tokens.
  std::vector<Moments> parts(3, Moments(dim));
  int64_t rows_of[3] = {};
  const float* origin = in_.x.data() + static_cast<size_t>(head) * dim;
  const std::vector<float> origins(origin, origin + dim);
  double first = 0;
  const int64_t second_half = in_.second_half();
  for (int64_t row = 0, sample = 0; row < in_.rows(); ++row) {
    if (row == in_.end(sample)) ++sample;
    const bool is_first = row == in_.begin(sample);
    const size_t at = row * n + static_cast<size_t>(head) * dim;
    const float *x = in_.x.data() + at, *g = fisher ? in_.grad.data() + at : nullptr;
    const int part = is_first ? 2 : (row < second_half ? 0 : 1);
    ++rows_of[part];
    if (!add_row(parts[part], x, g, origins.data(), dim)) {
      const int64_t bad_x = first_non_finite({x, static_cast<size_t>(dim)});
      const float* from = bad_x >= 0 ? x : g;
      const int64_t channel = bad_x >= 0 ? bad_x : first_non_finite({g, static_cast<size_t>(dim)});
      throw bad_input(in_.name + (bad_x >= 0 ? "" : " gradient") + ", head " + std::to_string(head) + ", sample " +
                          std::to_string(sample) + ", token " + std::to_string(row - in_.begin(sample)) + ", channel " +
                          std::to_string(channel),
                      std::isnan(from[channel]) ? "NaN" : "infinity",
                      bad_x >= 0 ? "a finite value" : "a finite gradient, as k-means expects squared gradients",
                      "collect again; --on-nonfinite skip leaves such samples out");
    }
    if (fisher && is_first) {
      for (int c = 0; c < dim; ++c) first += static_cast<double>(g[c]) * g[c];
    }
  }
  const double drift = drift_of(parts[0], parts[1], rows_of[0], rows_of[1]);
  if (!stats_.drift.empty()) stats_.drift[head] = static_cast<float>(drift);
  Moments& m = parts[0];
  for (const int other : {1, 2}) m.add(parts[other]);
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
  if (!stats_.token_share.empty()) describe_mass(head);
}

/// The heaviest token and sample, first tokens left out.
void TensorFitter::describe_mass(int head) {
  double total = 0, most_token = 0, most_sample = 0;
  int64_t token = 0, heaviest = 0;
  for (int64_t sample = 0; sample < in_.samples; ++sample) {
    double of_sample = 0;
    for (int64_t row = in_.begin(sample) + 1; row < in_.end(sample); ++row) {
      const double mass = sum_of_squares(in_.grad.data() + row * in_.row_size() + head * in_.dim, in_.dim);
      of_sample += mass;
      if (mass > most_token) {
        most_token = mass;
        token = row;
      }
    }
    total += of_sample;
    if (of_sample > most_sample) {
      most_sample = of_sample;
      heaviest = sample;
    }
  }
  if (total == 0) return;
  stats_.sample_share[head] = static_cast<float>(most_sample / total);
  stats_.token_share[head] = static_cast<float>(most_token / total);
  stats_.heaviest_sample[head] = static_cast<uint32_t>(heaviest);
  stats_.token_sample[head] = static_cast<uint32_t>(in_.sample_of(token));
  stats_.token_position[head] = static_cast<uint32_t>(token - in_.begin(in_.sample_of(token)));
}

void TensorFitter::normalise_channels(Normaliser& normaliser, int head) {
  constexpr int kTogether = 16;  // channels gathered in one pass: a cache line
  const int64_t rows = in_.rows() - (normaliser.first ? 0 : in_.samples);
  std::vector<float> columns(kTogether * rows);
  const int64_t half = in_.second_half();
  const int64_t first_half = normaliser.first ? half : half - (in_.samples > 1 ? (in_.samples + 1) / 2 : 1);
  int64_t held_out = 0;
  for (int begin = 0; begin < in_.dim; begin += kTogether) {
    const int width = std::min(kTogether, in_.dim - begin);
    int64_t out = 0;
    for (int64_t row = 0, sample = 0; row < in_.rows(); ++row) {
      if (row == in_.end(sample)) ++sample;
      if (!normaliser.first && row == in_.begin(sample)) continue;
      const float* from = in_.x.data() + row * in_.row_size() + static_cast<int64_t>(head) * in_.dim + begin;
      for (int c = 0; c < width; ++c) columns[c * rows + out] = from[c];
      ++out;
    }
    for (int c = 0; c < width; ++c) {
      const std::span<const float> column(columns.data() + c * rows, static_cast<size_t>(rows));
      const Ends ends = quantile_ends(column, normaliser.sparse);
      if (!normaliser.held_out.empty()) {
        held_out += outside_the_others(column, static_cast<size_t>(first_half), normaliser.sparse);
      }
      const size_t at = static_cast<size_t>(head) * in_.dim + begin + c;
      normaliser.lower[at] = static_cast<float>(ends.lower);
      normaliser.upper[at] = static_cast<float>(ends.upper);
      // Of the thresholds as they are stored, so that they are the ends of the grid.
      const double lower = normaliser.lower[at], upper = normaliser.upper[at];
      normaliser.scale[at] = std::max(static_cast<float>(0.5 * (upper - lower)), kLeastScale);
      normaliser.zero[at] = static_cast<float>(0.5 * (upper + lower));
    }
  }
  if (normaliser.held_out.empty()) return;
  normaliser.held_out[head] = static_cast<float>(static_cast<double>(held_out) / static_cast<double>(rows * in_.dim));
}

void TensorFitter::normalise_tokens(Normaliser& normaliser, int64_t sample) {
  const int n = in_.row_size();
  RowTails tails;
  for (int64_t row = in_.begin(sample); row < in_.end(sample); ++row) {
    split_tails(in_.x.subspan(row * n, n), normaliser.tail, tails);
    std::copy(tails.columns.begin(), tails.columns.end(), normaliser.columns.begin() + row * 2 * normaliser.tail);
    TokenRange range = token_range(tails.low, tails.high);
    if (half_is_infinite(range.scale) || half_is_infinite(range.zero)) {
      range = checked_range(
          tails.low, tails.high,
          in_.name + ", sample " + std::to_string(sample) + ", token " + std::to_string(row - in_.begin(sample)));
    }
    normaliser.token_scale[row] = tails.low == tails.high ? 0.0f : half_to_float(range.scale);
    normaliser.token_zero[row] = half_to_float(range.zero);
  }
}

}  // namespace kvcc
