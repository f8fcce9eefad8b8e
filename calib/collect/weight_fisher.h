// Fisher information of weights: squared gradients of the loss, summed over samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "calib/model/decoder.h"
#include "formats/weights/projections.h"

namespace kvcc {

/// Layers [begin, end) whose sums are held at a time; the samples are run once for each sweep.
struct WeightSweep {
  int begin = 0, end = 0;
};

struct WeightFisherPlan {
  std::vector<WeightSweep> sweeps;  ///< last layers first
  uint64_t peak_bytes = 0;          ///< estimate of the resident memory
  uint64_t memory_limit = 0;
};

/// As few sweeps as fit into max_memory (0: what the machine has available). Throws Error(resource) when not even one
/// layer does. `result_bytes`: what the caller keeps of the layers that are done.
WeightFisherPlan plan_weight_fisher(const ModelFiles& files, int64_t seqlen, uint64_t max_memory,
                                    uint64_t result_bytes);

/// One projection: weight [out, in] and sum over samples of squared gradients, same shape; f32.
struct WeightFisher {
  ExpectedTensor tensor;
  at::Tensor weight, fisher;
};

struct WeightFisherCallbacks {
  std::function<void(std::vector<WeightFisher>&)> done;  ///< the projections of a sweep, layers ascending
  std::function<void(uint64_t done, uint64_t total)> progress;
};

/// The diagonal of SqueezeLLM's equation 3 (arXiv 2306.07629): F = sum over samples of g^2, g the gradient of a
/// sample's summed next-token cross-entropy with respect to a weight. (Its 1/|D| and a mean over tokens are factors
/// that change no fit.) ids [samples][seqlen]. The same for any plan. Returns the mean cross-entropy, nats. Throws
/// NonFinite, Interrupted.
double collect_weight_fisher(const ModelFiles& files, const std::vector<std::vector<int32_t>>& ids,
                             const WeightFisherPlan& plan, int threads, const WeightFisherCallbacks& callbacks);

}  // namespace kvcc
