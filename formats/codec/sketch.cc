#include "formats/codec/sketch.h"

#include <cmath>

#include "formats/codec/rotation.h"

namespace kvcc {

Sketch::Sketch(int dim, int size, Kind kind, uint64_t seed) : dim_(dim), size_(size) {
  if (kind == kGaussian) {
    for (const double v : normal_matrix(size, dim, seed)) matrix_.push_back(static_cast<float>(v));
  } else {
    const float length = static_cast<float>(std::sqrt(static_cast<double>(dim)));
    for (int block = 0; block < size / dim; ++block) {
      for (const float v : random_rotation(dim, seed + block)) matrix_.push_back(v * length);
    }
    size_ = size / dim * dim;
  }
  transposed_.resize(matrix_.size());
  for (int r = 0; r < size_; ++r) {
    for (int c = 0; c < dim_; ++c) {
      transposed_[static_cast<size_t>(c) * size_ + r] = matrix_[static_cast<size_t>(r) * dim_ + c];
    }
  }
}

float Sketch::norm(const float* x) const {
  double squares = 0;
  for (int c = 0; c < dim_; ++c) squares += static_cast<double>(x[c]) * x[c];
  return static_cast<float>(std::sqrt(squares));
}

void Sketch::signs(const float* x, uint16_t* signs) const {
  std::vector<float> projected(size_);
  multiply(transposed_, size_, dim_, x, projected.data());
  for (int i = 0; i < size_; ++i) signs[i] = projected[i] >= 0 ? 1 : 0;
}

void Sketch::estimate(const uint16_t* signs, float norm, float* out) const {
  std::vector<float> ones(size_);
  for (int i = 0; i < size_; ++i) ones[i] = signs[i] ? 1.0f : -1.0f;
  multiply(matrix_, dim_, size_, ones.data(), out);
  const float factor = static_cast<float>(std::sqrt(M_PI_2) / size_) * norm;
  for (int c = 0; c < dim_; ++c) out[c] *= factor;
}

}  // namespace kvcc
