// One layer's keys or values under vector codebooks that are tuned by gradient (CODEBOOKS.md, recipe 6): what the cache
// gives back, gradients of codebooks and transform from that of its output, and their steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "formats/codec/vector_codec.h"
#include "formats/core/scheme.h"

namespace kvcc {

/// What the artifact holds of `scheme`'s tensor is tuned in three parts, all of which change decoding alone: the
/// vectors of each group; a shift of all vectors of a group, which is the mean in the transform's coordinates; and,
/// with `transforms`, the inverse transform, as inverse (I + A). Codes are always of the nearest vector.
class TensorTuner {
 public:
  /// `exact_first` and `exact_last`: tokens that the cache keeps at full precision (Scheme::sink, residual).
  TensorTuner(VectorQuantiser quantiser, int64_t exact_first, int64_t exact_last, bool transforms);

  /// x [1, T, H, D] as the cache gives it back, a new tensor; exact tokens rounded to fp16. Keeps the codes for add().
  at::Tensor quantise(const at::Tensor& x, int threads, const std::string& place);
  /// What quantise() returned last.
  const at::Tensor& coded() const { return coded_; }
  /// First of its tokens that are coded, and the one behind the last; the others are exact.
  std::pair<int64_t, int64_t> coded_range() const { return {begin_, begin_ + tokens_}; }
  /// Adds what a loss's gradient [1, T, H, D] with respect to that means for the parts.
  void add(const at::Tensor& gradient);
  /// Forgets codes and output, not the sums.
  void release();

  /// Moves all parts against the sums since the last step by `rate` of each group's error at the first step (root mean
  /// square), less where gradients of steps disagree, and forgets the sums.
  void step(double rate);

  const VectorQuantiser& quantiser() const { return q_; }
  /// The sums since the last step: as VectorQuantiser::vectors, and dL/dA of each unit [N, N] (none without
  /// transforms).
  const std::vector<double>& vector_gradient() const { return vector_sum_; }
  const std::vector<at::Tensor>& transform_gradient() const { return transform_sum_; }

 private:
  /// Running means of gradients of a step, and of their squares, as Adam's (arXiv 1412.6980, algorithm 1).
  struct Moments {
    std::vector<float> mean, square;
  };
  at::Tensor unit(const std::vector<float>& matrices, int64_t u) const;
  at::Tensor coordinates(int64_t u) const;
  void measure();
  void step_groups(double rate);
  void step_transforms(double rate);

  VectorQuantiser q_;
  std::vector<CodeGroup> groups_;
  int64_t exact_first_, exact_last_;
  bool transforms_;
  int64_t begin_ = 0, tokens_ = 0;  ///< coded tokens of the last pass
  std::vector<uint16_t> codes_;     ///< [groups, tokens]
  at::Tensor x_, coded_;            ///< of the last pass; x_ until the errors are measured

  std::vector<float> base_inverse_, added_;  ///< [U, N, N] the inverse before tuning, and A
  /// [U N] Root mean squares at the first step: of coordinates' errors, and of what they decode to (0 without bits).
  std::vector<float> error_, size_;
  int64_t summed_ = 0, steps_ = 0;         ///< tokens in the sums; steps done
  std::vector<double> vector_sum_;         ///< as vectors
  std::vector<int64_t> count_;             ///< of each vector
  std::vector<at::Tensor> transform_sum_;  ///< [U] of [N, N], f64
  Moments vectors_, shifts_, transform_;   ///< squares of vectors and shifts: one a group
};

}  // namespace kvcc
