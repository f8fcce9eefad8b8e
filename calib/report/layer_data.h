// One layer's activations of several samples, from the shards of a folder.
#pragma once

#include <vector>

#include "formats/store/activations.h"

namespace kvcc {

/// Samples one after another: key, key_grad [N, H, D]; value, value_grad [N, H, Dv], N the tokens of all samples.
/// Gradients are empty without Fisher.
struct LayerData {
  std::vector<int64_t> starts;  ///< [samples + 1] first token of each sample, then N
  std::vector<float> key, key_grad, value, value_grad;
};

/// The first `samples` samples of a layer (0 to L - 1), read with `threads` threads. Hashes are checked unless
/// `check_hash` is false. Throws Error(bad_input) naming sample, layer and dataset.
LayerData read_layer(const ActivationsReader& reader, int layer, int64_t samples, int threads, bool check_hash = true);

}  // namespace kvcc
