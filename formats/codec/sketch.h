// Signs of random projections of a vector, from which its inner products are estimated without bias (QJL, METHODS.md
// 6.2, 6.6). Host only.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcc {

class Sketch {
 public:
  enum Kind {
    kGaussian,    ///< independent normal entries
    kOrthogonal,  ///< blocks of `dim` orthogonal rows of length sqrt(dim)
  };
  /// S [size, dim]; an orthogonal one has whole blocks. One fixed matrix for each (dim, size, kind, seed).
  Sketch(int dim, int size, Kind kind, uint64_t seed = 2);
  int size() const { return size_; }
  /// The length of x [dim].
  float norm(const float* x) const;
  /// signs[i] is 1 when (S x)_i >= 0.
  void signs(const float* x, uint16_t* signs) const;
  /// The vector whose inner products are the estimates: sqrt(pi / 2) / size * norm * S^T sign.
  void estimate(const uint16_t* signs, float norm, float* out) const;

 private:
  int dim_, size_;
  std::vector<float> matrix_, transposed_;  ///< [size, dim], [dim, size]
};

}  // namespace kvcc
