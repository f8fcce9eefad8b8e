// Token by token comparison of a scheme's predictions with full precision's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace kvcc {

/// Sums over the predictions of a window.
struct PredictionSums {
  double nll = 0;      ///< cross-entropy, nats
  double kl = 0;       ///< KL(full precision || scheme), nats
  int64_t agreed = 0;  ///< same most likely token; the lowest id wins a tie
};

/// Full precision's predictions of a chunk of tokens, made once and compared with every scheme.
class ReferenceChunk {
 public:
  /// logits [rows, vocab]; labels [rows], the ids that follow.
  ReferenceChunk(const at::Tensor& logits, std::vector<int32_t> labels);
  /// Adds full precision's own cross-entropy.
  void add_self(PredictionSums& sums) const;
  /// Adds a scheme's logits of the same tokens.
  void add(const at::Tensor& logits, PredictionSums& sums) const;

 private:
  at::Tensor log_probability_, probability_;  ///< [rows, vocab]
  std::vector<int32_t> labels_;
  std::vector<int64_t> top_;  ///< [rows]
};

}  // namespace kvcc
