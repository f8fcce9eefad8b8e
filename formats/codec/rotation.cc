#include "formats/codec/rotation.h"

#include <cmath>
#include <random>
#include <string>

#include "formats/codec/clones.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr uint64_t kRotationSeed = 1;  ///< of the one random rotation; part of the formats, as codes depend on it

std::vector<float> transpose(const std::vector<float>& m, int rows, int columns) {
  std::vector<float> out(m.size());
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) out[static_cast<size_t>(c) * rows + r] = m[static_cast<size_t>(r) * columns + c];
  }
  return out;
}

/// a, b = a + b, a - b over `n` pairs.
KVCC_CLONES void butterfly(float* a, float* b, int n) {
  for (int i = 0; i < n; ++i) {
    const float sum = a[i] + b[i], difference = a[i] - b[i];
    a[i] = sum;
    b[i] = difference;
  }
}

KVCC_CLONES void scale_all(float* x, int n, float factor) {
  for (int i = 0; i < n; ++i) x[i] *= factor;
}

constexpr int kTogether = 32;  ///< sums that are kept in registers

/// out[0..n) = sum over c of column c's numbers times x[c], in the order of c; `stride` numbers from column to column.
KVCC_CLONES void sum_columns(const float* matrix, int stride, int columns, const float* x, int n, float* out) {
  int i = 0;
  for (; i + kTogether <= n; i += kTogether) {
    float sums[kTogether] = {};
    for (int c = 0; c < columns; ++c) {
      const float* column = matrix + static_cast<size_t>(c) * stride + i;
      for (int l = 0; l < kTogether; ++l) sums[l] += column[l] * x[c];
    }
    for (int l = 0; l < kTogether; ++l) out[i + l] = sums[l];
  }
  for (; i < n; ++i) {
    float sum = 0;
    for (int c = 0; c < columns; ++c) sum += matrix[static_cast<size_t>(c) * stride + i] * x[c];
    out[i] = sum;
  }
}

}  // namespace

void hadamard(float* x, int n, int block) {
  for (int half = 1; half < block; half *= 2) {
    for (int i = 0; i < n; i += 2 * half) butterfly(x + i, x + i + half, half);
  }
  scale_all(x, n, static_cast<float>(1 / std::sqrt(static_cast<double>(block))));
}

std::vector<double> normal_matrix(int rows, int columns, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  std::vector<double> m(static_cast<size_t>(rows) * columns);
  for (size_t i = 0; i < m.size(); i += 2) {
    const double radius = std::sqrt(-2 * std::log(uniform())), angle = 2 * M_PI * uniform();
    m[i] = radius * std::cos(angle);
    if (i + 1 < m.size()) m[i + 1] = radius * std::sin(angle);
  }
  return m;
}

std::vector<float> random_rotation(int dim, uint64_t seed) {
  std::vector<double> q = normal_matrix(dim, dim, seed);  // by columns: column c is q[c * dim …]
  const auto column = [&](int c) { return q.data() + static_cast<size_t>(c) * dim; };
  const auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (int i = 0; i < dim; ++i) sum += a[i] * b[i];
    return sum;
  };
  for (int c = 0; c < dim; ++c) {
    for (int pass = 0; pass < 2; ++pass) {  // twice is enough for orthogonality to rounding
      for (int b = 0; b < c; ++b) {
        const double along = dot(column(b), column(c));
        for (int i = 0; i < dim; ++i) column(c)[i] -= along * column(b)[i];
      }
    }
    const double length = std::sqrt(dot(column(c), column(c)));
    for (int i = 0; i < dim; ++i) column(c)[i] /= length;
  }
  std::vector<float> matrix(q.size());
  for (int c = 0; c < dim; ++c) {
    for (int r = 0; r < dim; ++r) matrix[static_cast<size_t>(r) * dim + c] = static_cast<float>(column(c)[r]);
  }
  return matrix;
}

void multiply(const std::vector<float>& transposed, int rows, int columns, const float* x, float* out) {
  sum_columns(transposed.data(), rows, columns, x, rows, out);
}

HeadRotation::HeadRotation(std::vector<float> matrix, int dim)
    : kind_(Rotation::spectral), dim_(dim), matrix_(std::move(matrix)) {
  if (matrix_.size() != static_cast<size_t>(dim) * dim) {
    throw Error(ErrorKind::failed, "rotation", std::to_string(matrix_.size()) + " numbers",
                std::to_string(dim) + " times as many");
  }
  transposed_ = transpose(matrix_, dim, dim);
}

HeadRotation::HeadRotation(Rotation kind, int dim) : kind_(kind), dim_(dim) {
  if (kind == Rotation::spectral) {
    throw Error(ErrorKind::usage, "rotation", "a scheme that needs statistics of the model",
                "the rotations that kvcc eval makes");
  }
  if (kind == Rotation::hadamard) block_ = dim & -dim;
  if (kind == Rotation::hadamard_64) block_ = 64;
  if (block_ != 0 && (block_ < 2 || dim % block_ != 0)) {
    throw Error(ErrorKind::usage, "rotation", "heads of " + std::to_string(dim) + " channels",
                kind == Rotation::hadamard ? "an even number of channels" : "a multiple of 64 channels");
  }
  if (kind == Rotation::random) {
    matrix_ = random_rotation(dim, kRotationSeed);
    transposed_ = transpose(matrix_, dim, dim);
  }
}

void HeadRotation::apply(float* x) const {
  if (block_ != 0) return hadamard(x, dim_, block_);
  if (kind_ == Rotation::none) return;
  const std::vector<float> copy(x, x + dim_);
  multiply(transposed_, dim_, dim_, copy.data(), x);
}

void HeadRotation::undo(float* x) const {
  if (block_ != 0) return hadamard(x, dim_, block_);
  if (kind_ == Rotation::none) return;
  const std::vector<float> copy(x, x + dim_);
  multiply(matrix_, dim_, dim_, copy.data(), x);
}

}  // namespace kvcc
