// OSCAR's rotations (arXiv 2605.17757, METHODS.md 7.3): each head is turned into the eigenvectors of what attention
// reads it with, and those are spread by Hadamard's matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/core/scheme.h"

namespace kvcc {

class Decoder;

/// One layer's keys or values.
struct SpectralTensor {
  std::vector<std::vector<float>> rotation;  ///< [heads][D D] by rows: orthogonal, a head's x becomes matrix x
  double clip = 1;                           ///< of the ranges
};

struct SpectralRotations {
  std::vector<SpectralTensor> key, value;  ///< [layers of the model]
  std::string sha256;                      ///< of all numbers, for journals
};

/// (U H P)^T of a head: U the eigenvectors of `covariance` f64 [D, D] by falling eigenvalue, each with its component of
/// greatest magnitude positive; H Sylvester's Hadamard matrix over sqrt(D); P the bit-reversal of the channels. Throws
/// Error(usage) when D is no power of two.
std::vector<float> spectral_rotation(const at::Tensor& covariance);

/// From exact passes over `windows`: keys by C_K = Q^T Q of the queries that read a head (after RoPE), values by C_S =
/// (S V)^T (S V) of the outputs that a head gives. A layer's clip is that of 1, 0.95, … 0.5 with the least error on
/// up to kClipRows of its rows: tr(E C_K E^T) for keys, |E|^2 for values; the greatest of equal ones. `progress` gets
/// the windows done.
SpectralRotations fit_rotations(const Decoder& decoder, const Scheme& scheme,
                                const std::vector<std::vector<int32_t>>& windows, int threads,
                                const std::function<void(uint64_t done)>& progress);
constexpr int64_t kClipRows = 512;

}  // namespace kvcc
