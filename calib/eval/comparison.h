// Token by token comparison of a scheme's predictions with full precision's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace kvcc {

/// What was measured of each prediction of a window, in order.
struct Predictions {
  std::vector<float> nll;       ///< cross-entropy, nats
  std::vector<float> kl;        ///< KL(full precision || scheme), nats
  std::vector<uint8_t> agreed;  ///< 1: same most likely token; the lowest id wins a tie
};

/// Full precision's predictions of a chunk of tokens, made once and compared with every scheme.
class ReferenceChunk {
 public:
  /// logits [rows, vocab], whose memory is used; labels [rows], the ids that follow.
  ReferenceChunk(at::Tensor logits, std::vector<int32_t> labels);
  /// Adds full precision's own predictions.
  void add_self(Predictions& out) const;
  /// Adds a scheme's, from its logits of the same tokens, which are overwritten.
  void add(at::Tensor logits, Predictions& out) const;

 private:
  at::Tensor log_probability_, probability_;  ///< [rows, vocab]
  std::vector<int32_t> labels_;
  std::vector<int64_t> top_;  ///< [rows]
};

}  // namespace kvcc
