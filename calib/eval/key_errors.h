// How much of the error of quantised keys is one of their length (METHODS.md 11.1, KVarN section 3.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace kvcc {

/// Per cent of a head's tokens, those of the largest errors.
constexpr std::array<double, 6> kWorstPercents{0.1, 1, 5, 10, 50, 100};

/// Sums over windows and heads, of the worst tokens of each: E_T = |K - K'|^2 and E_M = (|K| - |K'|)^2, in which
/// E_D = E_T - E_M. [L][kWorstPercents].
struct KeyErrors {
  KeyErrors() = default;
  explicit KeyErrors(int64_t layers)
      : magnitude(layers * kWorstPercents.size()), total(layers * kWorstPercents.size()) {}
  /// Adds one window's keys of a layer, exact and quantised [T, H, D], before or after RoPE. Of each head the worst
  /// ceil(percent of T) tokens count.
  void add(int layer, const at::Tensor& exact, const at::Tensor& quantised);
  void add(const KeyErrors& other);
  /// Mean over layers of the share of E_M in E_T; NaN where nothing was wrong.
  double magnitude_share(size_t percent) const;
  double magnitude_share(int64_t layer, size_t percent) const;

  std::vector<double> magnitude, total;
};

}  // namespace kvcc
