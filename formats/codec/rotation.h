// Rotations of a head's vector, applied before coding and undone after decoding. Host only.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/core/scheme.h"

namespace kvcc {

/// Normalised Walsh-Hadamard transform in place, Sylvester's order, of blocks of `block` values (a power of two): its
/// own inverse (METHODS.md 1.2).
void hadamard(float* x, int n, int block);

/// [rows, columns] of independent normal numbers: std::mt19937_64 with this seed, Box-Muller in double.
std::vector<double> normal_matrix(int rows, int columns, uint64_t seed);
/// [dim, dim] Haar-distributed: the Q of normal_matrix's QR decomposition whose R has a positive diagonal (METHODS.md
/// 6.1).
std::vector<float> random_rotation(int dim, uint64_t seed);

/// out = M x and out = M^T x for M [rows, columns], binary32 sums in the order of x's elements. x and out differ.
void multiply(const std::vector<float>& transposed, int rows, int columns, const float* x, float* out);

/// One of the scheme grammar's rotations for heads of `dim` channels.
class HeadRotation {
 public:
  /// Throws Error(usage) when the heads can't be turned so.
  HeadRotation(Rotation kind, int dim);
  /// By a matrix of its own, [dim, dim] by rows, orthogonal: x becomes matrix x (Rotation::spectral).
  HeadRotation(std::vector<float> matrix, int dim);
  bool any() const { return kind_ != Rotation::none; }
  void apply(float* x) const;  ///< in place, x [dim]
  void undo(float* x) const;

 private:
  Rotation kind_;
  int dim_, block_ = 0;
  std::vector<float> matrix_, transposed_;  ///< [dim, dim] of a random or spectral one
};

}  // namespace kvcc
