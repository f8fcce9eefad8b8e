// Models of which not all layers rotate alike: rope scaling "by-layer" (formats/spec/codebook.md).
#pragma once

#include <vector>

#include "formats/core/model_info.h"

namespace kvcc {

/// The rotations of a model's layers.
struct RopeLayers {
  std::vector<RopeInfo> kinds;     ///< one where all layers rotate alike
  std::vector<int> kind_of_layer;  ///< by the model's numbers of layers, -1: no rotation; empty: all are of kind 0
  /// -1 or an index of kinds. Throws Error(bad_input) for a layer that the list does not have.
  int kind(int layer) const;
};

/// Throws Error(bad_input) for a list that is not as the format has it.
RopeLayers rope_layers(const RopeInfo& rope);

}  // namespace kvcc
