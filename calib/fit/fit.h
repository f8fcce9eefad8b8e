// Fit: from one layer's activations to thresholds, scales, zero-points and codebooks. Functions of statistics, no
// files.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/codec/reference.h"
#include "formats/core/scheme.h"

namespace kvcc {

/// One layer's activations of all samples, one after another, N rows (tokens). Not owned.
struct LayerActivations {
  std::vector<int64_t> starts;  ///< [samples + 1] first row of each sample, then N; no sample is empty
  int heads = 0, dim = 0, value_dim = 0;
  std::span<const float> key, key_grad;      ///< [N, H, D]; grad signed; empty grad: weights are 1
  std::span<const float> value, value_grad;  ///< [N, H, Dv]
  int layer = 0;                             ///< the model's number, for errors
};

/// Result for one tensor of one layer; arrays [H, …] as in formats/store/codebook.h.
struct TensorFit {
  LevelTable table;
  std::vector<float> norm_scale, norm_offset;                        ///< [H], Q-Norm only
  std::vector<float> scale, zero, threshold_lower, threshold_upper;  ///< [H, D], static only
  /// [H] Measured over the tokens that the scheme quantises, that is without its sinks. weighted_sse: sum of F (x -
  /// x^)^2 with F the squared gradient (1 without gradients); sqnr_db at most 200, which stands for no error at all.
  std::vector<float> outlier_fraction, weighted_sse, sqnr_db;
  /// [H] Bound on (objective - optimum) / optimum of the k-means; 0 for grids that need no data.
  std::vector<float> fit_gap_bound;
  /// [H] Distinct levels; fewer than codes where the data hold fewer distinct values: the last level is then repeated.
  std::vector<uint32_t> distinct;
  /// [H, D] Over all tokens. variance: population; fisher: mean squared gradient, 0 without gradients.
  std::vector<float> min, max, mean, variance, fisher;
  /// [H] Share of the Fisher mass on the first token of samples; 0 without gradients.
  std::vector<float> first_token_share;
  // The rest is in formats/spec/statistics.md; empty where it is not measured.
  /// [H, kUsageBins], [H, C] shares of the elements that the scheme quantises.
  std::vector<float> histogram, code_use;
  /// [H] Share outside thresholds that were fitted to the other half of the samples (of one sample: of its tokens).
  std::vector<float> held_out_outliers;
  /// [H] Without first tokens: root mean square over channels of the distance of the two halves' means, in deviations.
  std::vector<float> drift;
  /// [H] Of the Fisher mass without first tokens: the greatest share of a sample and of a token, and which they are.
  std::vector<float> sample_share, token_share;
  std::vector<uint32_t> heaviest_sample, token_sample, token_position;
  /// [H] Tokens with a gradient other than 0; all tokens without gradients.
  std::vector<uint32_t> reached;
};
struct LayerFit {
  TensorFit key, value;
};

/// Static channels: thresholds are the quantiles sparse/2 and 1 - sparse/2 of a channel, scale is half their distance
/// (kLeastScale where that is less: a constant channel) and zero their centre. Levels minimise the weighted squared
/// error of the normalised values that are no outliers; constant channels and tokens, which decode to themselves
/// whatever the levels, have no say. All weights 0: they count as 1. int and nf grids take their fixed levels. A
/// full-precision tensor gets a table of 16 bits without levels.
///
/// Fits every scheme; work that schemes share (thresholds, histograms, one dynamic programme for all widths) is done
/// once. The result does not depend on `threads`. Throws Error(bad_input) for NaN or infinity, with layer, head, token,
/// channel.
std::vector<LayerFit> fit_layer(const LayerActivations& activations, std::span<const Scheme> schemes, int threads = 1);

}  // namespace kvcc
