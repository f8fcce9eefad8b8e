#include "formats/codec/varn.h"

#include <algorithm>
#include <cmath>

#include "formats/codec/clones.h"

namespace kvcc {
namespace {

constexpr int kLanes = 8;

/// Unbiased standard deviation from sums of n values and of their squares.
float deviation(double sum, double squares, int n) {
  return static_cast<float>(std::sqrt(std::max(0.0, (squares - sum * sum / n) / (n - 1))));
}

/// Adds a row to the columns' sums, and gives the row's own, lane by lane so that it becomes vector code.
KVCC_CLONES void add_row(const float* row, int n, double* sums, double* squares, double& sum, double& square) {
  double lane_sum[kLanes] = {}, lane_square[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const double x = row[i + l], xx = x * x;
      sums[i + l] += x;
      squares[i + l] += xx;
      lane_sum[l] += x;
      lane_square[l] += xx;
    }
  }
  for (; i < n; ++i) {
    const double x = row[i], xx = x * x;
    sums[i] += x;
    squares[i] += xx;
    lane_sum[0] += x;
    lane_square[0] += xx;
  }
  for (int l = 0; l < kLanes; ++l) {
    sum += lane_sum[l];
    square += lane_square[l];
  }
}

/// out = row / columns / scale.
KVCC_CLONES void divide(const float* row, const float* columns, float scale, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = row[i] / columns[i] / scale;
}

struct Deviations {
  std::vector<float> column, row;

  void measure(const float* tile, int rows, int columns) {
    std::vector<double> sums(columns), squares(columns);
    column.resize(columns);
    row.resize(rows);
    for (int r = 0; r < rows; ++r) {
      double sum = 0, square = 0;
      add_row(tile + static_cast<size_t>(r) * columns, columns, sums.data(), squares.data(), sum, square);
      row[r] = deviation(sum, square, columns);
    }
    for (int c = 0; c < columns; ++c) column[c] = deviation(sums[c], squares[c], rows);
  }
  static float ratio(const std::vector<float>& x) {
    return *std::max_element(x.begin(), x.end()) / std::max(*std::min_element(x.begin(), x.end()), 1e-8f);
  }
  float imbalance() const { return ratio(column) + ratio(row); }
};

/// Moves log-scales by the logarithm of the deviations.
void step(const std::vector<float>& deviations, std::vector<float>& logs, std::vector<float>& scales) {
  for (size_t i = 0; i < logs.size(); ++i) {
    const double clamped = std::clamp(deviations[i], 1e-3f, 1e3f);
    logs[i] = std::clamp(logs[i] + static_cast<float>(std::log(clamped)), -0.3f, 10.0f);
    scales[i] = static_cast<float>(std::exp(static_cast<double>(logs[i])));
  }
}

}  // namespace

VarnScales varn(std::span<const float> tile, int rows, int columns, int iterations) {
  std::vector<float> current(tile.begin(), tile.end()), column_logs(columns), row_logs(rows);
  std::vector<float> column(columns, 1.0f), row(rows, 1.0f);
  const auto apply = [&] {
    for (int r = 0; r < rows; ++r) {
      const size_t at = static_cast<size_t>(r) * columns;
      divide(tile.data() + at, column.data(), row[r], columns, current.data() + at);
    }
  };
  Deviations deviations;
  deviations.measure(current.data(), rows, columns);
  VarnScales best{column, row, deviations.imbalance()};
  for (int i = 0; i < iterations; ++i) {
    step(deviations.column, column_logs, column);
    apply();
    deviations.measure(current.data(), rows, columns);
    step(deviations.row, row_logs, row);
    apply();
    deviations.measure(current.data(), rows, columns);
    const float imbalance = deviations.imbalance();
    if (imbalance <= best.imbalance) best = {column, row, imbalance};
  }
  return best;
}

float varn_imbalance(std::span<const float> tile, int rows, int columns) {
  Deviations deviations;
  deviations.measure(tile.data(), rows, columns);
  return deviations.imbalance();
}

}  // namespace kvcc
