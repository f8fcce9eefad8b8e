// Transforms in the metric of the loss (CODEBOOKS.md, "The recipe"): for one unit, that is a head or all heads of a
// layer side by side, the metric M = E[g g^T] of its gradients, and the Karhunen-Loeve transform of (x - mean) M^(1/2).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/core/scheme.h"

namespace kvcc {

/// Vectors of one unit: those of token t begin at t * step. Not owned.
struct UnitRows {
  int64_t tokens = 0;
  int size = 0;  ///< N
  int64_t step = 0;
  const float* x = nullptr;
  const float* grad = nullptr;  ///< null: every token weighs 1 and the metric is the identity
  /// [tokens] 0 for tokens that have no part in the fit (first tokens of samples, samples that are held out).
  std::span<const uint8_t> fitted;
};

/// z = forward (x - mean), x = inverse z + mean.
struct UnitTransform {
  std::vector<float> mean;              ///< [N] token-weighted
  std::vector<float> forward, inverse;  ///< [N, N]
  std::vector<uint16_t> order;          ///< [N] without a rotation: the channel of each coordinate; else empty
};

struct FisherOptions {
  Rotation rotation = Rotation::fklt_head;  ///< or none: channels grouped by correlation, in blocks of `width`
  int width = 0;
  double shrink = 0.1;      ///< of the metric, towards its diagonal
  double weight_power = 1;  ///< of tokens' weights in mean and covariance
};

/// [tokens] w(t): the token's mean over channels of g^2 / E[g^2], for all tokens; heavy tokens are divided by its root
/// before they add to the metric, so that w(t) M stands for the token's own g g^T. 1 without gradients, and where no
/// fitted token has any.
std::vector<float> token_weights(const UnitRows& rows);

/// `weights` of token_weights(). A unit that no gradient reached gets next to no weight. Throws Error(bad_input) with
/// `place` where there is nothing to fit.
UnitTransform fisher_transform(const UnitRows& rows, std::span<const float> weights, const FisherOptions& options,
                               const std::string& place);

/// Coordinates of the rows, plane by plane: z [N, tokens] = forward (x - mean).
void transform_rows(const UnitTransform& transform, const UnitRows& rows, float* z, int64_t begin, int64_t end);

}  // namespace kvcc
