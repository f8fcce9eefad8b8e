// Forward and backward pass of one sample: keys, values and the gradient of the loss with respect to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "calib/model/decoder.h"
#include "formats/core/error.h"

namespace kvcc {

/// Something is NaN or infinite: names tensor, layer, sample and token (F36).
class NonFinite : public Error {
 public:
  using Error::Error;
};

struct LayerActs {
  at::Tensor key, value;            ///< [T, H, D], keys before RoPE
  at::Tensor key_grad, value_grad;  ///< same shapes; undefined without Fisher
};

struct SamplePass {
  bool fisher = true;      ///< run the backward pass
  bool recompute = false;  ///< keep the layers' inputs only and run each layer again before its backward pass
  std::string sample;      ///< "sample 3", for errors
  /// From 0: the pass is about the weights of this layer and those after it, whose products tell the decoder's watcher
  /// (Decoder::watch). Then inputs alone are kept, and `done` is not called.
  int weights_from = -1;
  /// Layers that have a cache, by the model's numbers; last to first, first to last without Fisher.
  std::function<void(int layer, const LayerActs&)> done;
  std::function<void(int units)> progress;  ///< one unit a layer forward, two a layer backward
};

/// Gradients are of the cross-entropy in nats summed over the T - 1 predictions, with respect to the tapped keys and
/// values; under GQA summed over the query heads that share them. Nothing is accumulated for weights, and logits exist
/// for a chunk of tokens at a time. Returns the summed cross-entropy (NaN without Fisher). Throws NonFinite,
/// Interrupted.
double run_sample(const Decoder& decoder, const std::vector<int32_t>& ids, const SamplePass& pass);

/// Bytes that one layer's saved tensors take for each of `seqlen` tokens.
uint64_t saved_bytes_per_token(const DecoderConfig& config, int64_t seqlen);

}  // namespace kvcc
