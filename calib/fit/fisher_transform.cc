#include "calib/fit/fisher_transform.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/codec/matrix.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int64_t kChunk = 128;       ///< tokens whose products are summed in binary32 before they add in binary64
constexpr double kUnreached = 1e-12;  ///< metric of a unit that no gradient reached, which nothing depends on
constexpr double kLeastRatio = 1e-7;  ///< of eigenvalues to the greatest, so that everything can be inverted

/// The sum over fitted tokens of factor(t)^2 y(t) y(t)^T, y = from(t) - centre.
template <typename Factor>
Matrix second_moment(const UnitRows& rows, const float* from, const std::vector<float>& centre, const Factor& factor) {
  const int n = rows.size;
  Matrix sum = Matrix::Zero(n, n);
  std::vector<float> chunk(static_cast<size_t>(kChunk) * n), product(static_cast<size_t>(n) * n);
  int64_t held = 0;
  const auto add = [&] {
    if (held == 0) return;
    multiply(n, n, static_cast<int>(held), {chunk.data(), 1, n}, {chunk.data(), n, 1}, product.data(), n);
    for (size_t i = 0; i < product.size(); ++i) sum.data()[i] += product[i];
    held = 0;
  };
  for (int64_t t = 0; t < rows.tokens; ++t) {
    const float f = rows.fitted[t] ? factor(t) : 0.0f;
    if (!(f > 0)) continue;
    const float* y = from + t * rows.step;
    float* to = chunk.data() + held * n;
    for (int i = 0; i < n; ++i) to[i] = f * (y[i] - centre[i]);
    if (++held == kChunk) add();
  }
  add();
  return sum;
}

struct Eigen2 {
  Matrix vectors;  ///< columns, greatest eigenvalue first
  Eigen::VectorXd values;
};

/// Of a symmetric matrix; signs such that each vector's greatest element is positive.
Eigen2 eigen(const Matrix& symmetric) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(symmetric);
  Eigen2 out{solver.eigenvectors().rowwise().reverse(), solver.eigenvalues().reverse()};
  for (Eigen::Index c = 0; c < out.vectors.cols(); ++c) {
    Eigen::Index at = 0;
    out.vectors.col(c).cwiseAbs().maxCoeff(&at);
    if (out.vectors(at, c) < 0) out.vectors.col(c) = -out.vectors.col(c);
  }
  const double least = std::max(out.values[0] * kLeastRatio, 1e-30);
  out.values = out.values.cwiseMax(least);
  return out;
}

struct Roots {
  Matrix root, inverse;
};

Roots roots(const Matrix& metric) {
  const Eigen2 e = eigen(metric);
  const Eigen::VectorXd root = e.values.cwiseSqrt();
  return {e.vectors * root.asDiagonal() * e.vectors.transpose(),
          e.vectors * root.cwiseInverse().asDiagonal() * e.vectors.transpose()};
}

/// Channels in blocks of `width`: the one that varies most in the metric begins a block, then always the one that the
/// block's explain best.
std::vector<uint16_t> correlated_order(const Matrix& metric, const Matrix& covariance, int width) {
  const Eigen::Index n = metric.rows();
  const Eigen::VectorXd scale = metric.diagonal().cwiseSqrt();
  const Matrix c = scale.asDiagonal() * covariance * scale.asDiagonal();
  std::vector<bool> taken(static_cast<size_t>(n));
  std::vector<uint16_t> order;
  while (static_cast<Eigen::Index>(order.size()) < n) {
    Matrix rest = c;  // what the block's channels leave unexplained
    for (int k = 0; k < width && static_cast<Eigen::Index>(order.size()) < n; ++k) {
      Eigen::Index best = -1;
      double most = -1;
      for (Eigen::Index i = 0; i < n; ++i) {
        if (taken[i]) continue;
        const double score = k == 0 ? c(i, i) : 1 - rest(i, i) / std::max(c(i, i), 1e-300);
        if (score > most) {
          most = score;
          best = i;
        }
      }
      taken[best] = true;
      order.push_back(static_cast<uint16_t>(best));
      const double pivot = rest(best, best);
      if (pivot > 1e-12 * c(best, best)) {
        const Eigen::VectorXd column = rest.col(best);
        rest -= column * column.transpose() / pivot;
      }
    }
  }
  return order;
}

std::vector<float> floats(const Matrix& m) { return {m.data(), m.data() + m.size()}; }

}  // namespace

std::vector<float> token_weights(const UnitRows& rows) {
  std::vector<float> weights(rows.tokens, 1.0f);
  if (rows.grad == nullptr) return weights;
  std::vector<double> mean(rows.size);
  int64_t count = 0;
  for (int64_t t = 0; t < rows.tokens; ++t) {
    if (!rows.fitted[t]) continue;
    ++count;
    for (int i = 0; i < rows.size; ++i) {
      const double g = rows.grad[t * rows.step + i];
      mean[i] += g * g;
    }
  }
  if (std::all_of(mean.begin(), mean.end(), [](double m) { return m == 0; })) return weights;
  for (double& m : mean) m /= static_cast<double>(std::max<int64_t>(count, 1));
  for (int64_t t = 0; t < rows.tokens; ++t) {
    double sum = 0;
    for (int i = 0; i < rows.size; ++i) {
      const double g = rows.grad[t * rows.step + i];
      if (mean[i] > 0) sum += g * g / mean[i];
    }
    weights[t] = static_cast<float>(sum / rows.size);
  }
  return weights;
}

UnitTransform fisher_transform(const UnitRows& rows, std::span<const float> weights, const FisherOptions& options,
                               const std::string& place) {
  const int n = rows.size;
  double gradients = 0;
  for (int64_t t = 0; t < rows.tokens; ++t) {
    if (!rows.fitted[t] || !(weights[t] > 0)) continue;
    gradients += 1;
  }
  // Few tokens have most of the weight, too few for the directions of a large unit.
  const auto weight_of = [&](int64_t t) {
    return weights[t] > 0 ? std::pow(static_cast<double>(weights[t]), options.weight_power) : 0.0;
  };
  double total = 0;
  std::vector<double> mean(n);
  for (int64_t t = 0; t < rows.tokens; ++t) {
    if (!rows.fitted[t]) continue;
    const double weight = weight_of(t);
    total += weight;
    for (int i = 0; i < n && weight > 0; ++i) mean[i] += weight * rows.x[t * rows.step + i];
  }
  if (!(total > 0)) throw bad_input(place, "no tokens to fit", "samples of 2 tokens or more");
  UnitTransform out;
  for (double& m : mean) out.mean.push_back(static_cast<float>(m / total));

  Matrix metric = Matrix::Identity(n, n);
  if (rows.grad != nullptr) {
    metric = second_moment(rows, rows.grad, std::vector<float>(n, 0.0f),
                           [&](int64_t t) { return weights[t] > 0 ? 1 / std::sqrt(weights[t]) : 0.0f; }) /
             gradients;
    if (!(metric.trace() > 0)) metric = kUnreached * Matrix::Identity(n, n);
    const Matrix diagonal = metric.diagonal().asDiagonal();
    metric = (1 - options.shrink) * metric + options.shrink * diagonal;
  }
  const Matrix covariance =
      second_moment(rows, rows.x, out.mean, [&](int64_t t) { return static_cast<float>(std::sqrt(weight_of(t))); }) /
      total;

  Matrix forward, inverse;
  if (options.rotation == Rotation::none) {
    out.order = correlated_order(metric, covariance, options.width);
    forward = Matrix::Zero(n, n);
    inverse = Matrix::Zero(n, n);
    for (int begin = 0; begin < n; begin += options.width) {
      const int width = std::min(options.width, n - begin);
      const auto channel = [&](int i) { return static_cast<Eigen::Index>(out.order[begin + i]); };
      Matrix block(width, width);
      for (int i = 0; i < width; ++i) {
        for (int j = 0; j < width; ++j) block(i, j) = metric(channel(i), channel(j));
      }
      const Roots r = roots(block);
      for (int i = 0; i < width; ++i) {
        for (int j = 0; j < width; ++j) {
          forward(begin + i, channel(j)) = r.root(i, j);
          inverse(channel(j), begin + i) = r.inverse(j, i);
        }
      }
    }
  } else {
    const Roots r = roots(metric);
    const Eigen2 e = eigen(r.root * covariance * r.root);
    forward = e.vectors.transpose() * r.root;
    inverse = r.inverse * e.vectors;
  }
  out.forward = floats(forward);
  out.inverse = floats(inverse);
  return out;
}

void transform_rows(const UnitTransform& transform, const UnitRows& rows, float* z, int64_t begin, int64_t end) {
  const int n = rows.size;
  std::vector<float> centred(static_cast<size_t>(n) * kChunk);
  for (int64_t t = begin; t < end; t += kChunk) {
    const int64_t count = std::min(kChunk, end - t);
    for (int64_t k = 0; k < count; ++k) {
      for (int i = 0; i < n; ++i) centred[i * kChunk + k] = rows.x[(t + k) * rows.step + i] - transform.mean[i];
    }
    multiply(n, static_cast<int>(count), n, {transform.forward.data(), n, 1}, {centred.data(), kChunk, 1}, z + t,
             rows.tokens);
  }
}

}  // namespace kvcc
