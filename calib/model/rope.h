// Rotary position embedding, by the model's own rule and in the float arithmetic of transformers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "formats/core/model_info.h"

namespace kvcc {

class Rope {
 public:
  /// Throws Error(bad_input) for a kind or scaling that is not known, by name, and for parameters that are missing.
  explicit Rope(const RopeInfo& info);

  /// Cosines and sines of some positions, one pair for each kind of rotation that the layers have.
  struct Angles {
    std::vector<std::pair<at::Tensor, at::Tensor>> kinds;  ///< f32 [count, 1, rotary_dim]
    /// Those of positions [begin, begin + count) of these.
    Angles narrow(int64_t begin, int64_t count) const;
    Angles to(at::Device device) const;
  };
  /// Of positions [first, first + count). Where the scaling depends on a sequence's length (dynamic, longrope), that is
  /// first + count.
  Angles angles(int64_t first, int64_t count) const;

  /// x [B, T, heads, D] of a layer rotated, the T positions those of `angles`; channels from rotary_dim on are kept as
  /// they are, and all of them in a layer without rotation. Layer 0 stands for all where layers do not differ.
  at::Tensor rotate(const at::Tensor& x, const Angles& angles, int layer = 0) const;

  /// Angle per position of each pair, f32 [rotary_dim / 2], in a sequence of `length` tokens; of the first kind.
  at::Tensor inverse_frequencies(int64_t length = 0) const { return frequencies(kinds_.front(), length).inverse; }

 private:
  struct Frequencies {
    at::Tensor inverse;           ///< f32 [rotary_dim / 2]
    double attention_factor = 1;  ///< of cosines and sines
  };
  Frequencies frequencies(const RopeInfo& kind, int64_t length) const;

  int64_t rotary_dim_;
  bool interleaved_;
  std::vector<RopeInfo> kinds_;
  std::vector<Frequencies> fixed_;  ///< of each kind, where the length is of no concern: made once
  std::vector<int> kind_of_layer_;  ///< -1: no rotation; empty: all layers have the first kind
};

}  // namespace kvcc
