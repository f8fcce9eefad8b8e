#include "calib/fit/key_regression.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>

#include "formats/codec/matrix.h"

namespace kvcc {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int64_t kChunk = 128;  ///< tokens whose products are summed in binary32 before they add in binary64
constexpr double kRidge = 1e-4;

std::vector<float> mean_of(const RegressionRows& rows, std::span<const float> weights, double total) {
  std::vector<double> sum(rows.size);
  for (size_t t = 0; t < weights.size(); ++t) {
    if (!(weights[t] > 0)) continue;
    const float* row = rows.data + static_cast<int64_t>(t) * rows.step;
    for (int i = 0; i < rows.size; ++i) sum[i] += double{weights[t]} * row[i];
  }
  std::vector<float> mean;
  for (const double s : sum) mean.push_back(static_cast<float>(s / total));
  return mean;
}

}  // namespace

std::vector<float> regress_on_keys(const RegressionRows& keys, const RegressionRows& values,
                                   std::span<const float> weights) {
  const int k = keys.size, n = values.size, both = k + n;
  std::vector<float> map(static_cast<size_t>(n) * k);
  double total = 0;
  for (const float w : weights) total += w;
  if (!(total > 0)) return map;
  const std::vector<float> key_mean = mean_of(keys, weights, total), value_mean = mean_of(values, weights, total);
  // Products of keys and values side by side with keys: [K + N, K].
  Matrix moment = Matrix::Zero(both, k);
  std::vector<float> chunk(static_cast<size_t>(kChunk) * both), product(static_cast<size_t>(both) * k);
  int64_t held = 0;
  const auto add = [&] {
    if (held == 0) return;
    multiply(both, k, static_cast<int>(held), {chunk.data(), 1, both}, {chunk.data(), both, 1}, product.data(), k);
    for (size_t i = 0; i < product.size(); ++i) moment.data()[i] += product[i];
    held = 0;
  };
  for (size_t t = 0; t < weights.size(); ++t) {
    if (!(weights[t] > 0)) continue;
    const float root = std::sqrt(weights[t]);
    const float *key = keys.data + static_cast<int64_t>(t) * keys.step,
                *value = values.data + static_cast<int64_t>(t) * values.step;
    float* to = chunk.data() + held * both;
    for (int i = 0; i < k; ++i) to[i] = root * (key[i] - key_mean[i]);
    for (int i = 0; i < n; ++i) to[k + i] = root * (value[i] - value_mean[i]);
    if (++held == kChunk) add();
  }
  add();
  Matrix gram = moment.topRows(k) / total;
  gram.diagonal().array() += std::max(kRidge * gram.trace() / k, 1e-30);
  const Matrix solved = gram.ldlt().solve((moment.bottomRows(n) / total).transpose());  // [K, N]
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < k; ++j) map[static_cast<size_t>(i) * k + j] = static_cast<float>(solved(j, i));
  }
  return map;
}

}  // namespace kvcc
