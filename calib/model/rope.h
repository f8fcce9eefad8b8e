// Rotary position embedding, by the model's own rule and in the float arithmetic of transformers.
#pragma once

#include <ATen/core/Tensor.h>

#include "formats/core/model_info.h"

namespace kvcc {

class Rope {
 public:
  /// Throws Error(bad_input) for a kind or scaling that is not known, by name.
  explicit Rope(const RopeInfo& info);

  /// Angle per position of each pair, f32 [rotary_dim / 2].
  const at::Tensor& inverse_frequencies() const { return inverse_frequencies_; }

  /// Cosines and sines of positions [first, first + count).
  struct Angles {
    at::Tensor cos, sin;  ///< f32 [count, 1, rotary_dim]
  };
  Angles angles(int64_t first, int64_t count) const;

  /// x [B, T, heads, D] rotated, the T positions those of `angles`; channels from rotary_dim on are kept as they are.
  at::Tensor rotate(const at::Tensor& x, const Angles& angles) const;

 private:
  int64_t rotary_dim_;
  at::Tensor inverse_frequencies_;
};

}  // namespace kvcc
