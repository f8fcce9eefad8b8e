// One window forward and backward under codebooks that are being tuned.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "calib/model/decoder.h"
#include "calib/refine/tensor_tuner.h"
#include "formats/codec/key_prediction.h"

namespace kvcc {

/// The tuners of the layers that have a cache, by the model's layer; null elsewhere. Not owned.
struct Tuners {
  std::vector<TensorTuner*> key, value;
  std::vector<KeyPrediction> prediction;  ///< of values, by the model's layer; none where no layer's are predicted
};

/// Of `predictions` rows of hidden states after the final norm, [T, hidden]: the mean KL divergence of `exact` from
/// `coded`, and its gradient with respect to `coded` where that is asked for. Throws Error(failed) with `place` for
/// predictions that are not finite.
double divergence(const Decoder& decoder, const at::Tensor& exact, const at::Tensor& coded, at::Tensor* gradient,
                  const std::string& place);

/// Runs `ids` under the tuners, and back from the divergence; adds its gradients to the tuners. `exact`: what
/// Decoder::forward made of ids at full precision, [T, hidden]. `recompute` keeps the layers' inputs alone. Returns the
/// divergence. Codes are chosen without a gradient, and pass it on as if they changed nothing (straight through).
double tuning_pass(const Decoder& decoder, const std::vector<int32_t>& ids, const at::Tensor& exact,
                   const Tuners& tuners, bool recompute, int threads, const std::string& place);

}  // namespace kvcc
