// Fit: from one layer's activations to thresholds, scales, zero-points and codebooks. Functions of statistics, no
// files.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/codec/reference.h"
#include "formats/core/scheme.h"

namespace kvcc {

/// One layer's activations of all samples, one after another. N = samples * seqlen rows. Not owned.
struct LayerActivations {
  int64_t samples = 0, seqlen = 0;
  int heads = 0, dim = 0, value_dim = 0;
  std::span<const float> key, key_grad;      ///< [N, H, D]; grad signed; empty grad: weights are 1
  std::span<const float> value, value_grad;  ///< [N, H, Dv]
  int layer = 0;                             ///< the model's number, for errors
};

/// Result for one tensor of one layer; arrays [H, …] as in formats/store/codebook.h.
struct TensorFit {
  LevelTable table;
  std::vector<float> scale, zero, threshold_lower, threshold_upper;  ///< [H, D], static only
  std::vector<float> outlier_fraction;                               ///< [H]
  std::vector<float> weighted_sse, sqnr_db, fit_gap_bound;           ///< [H]
  std::vector<uint32_t> distinct;                                    ///< [H]
  std::vector<float> min, max, mean, variance, fisher;               ///< [H, D]
  std::vector<float> first_token_share;                              ///< [H]
};
struct LayerFit {
  TensorFit key, value;
};

/// Fits every scheme; work that schemes share (thresholds, histograms, one dynamic programme for all widths) is done
/// once. The result does not depend on `threads`. Throws Error(bad_input) for NaN or infinity, with layer, head, token,
/// channel.
std::vector<LayerFit> fit_layer(const LayerActivations& activations, std::span<const Scheme> schemes, int threads = 1);

}  // namespace kvcc
