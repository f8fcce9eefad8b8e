// Does an artifact belong to a model?
#pragma once

#include <string>
#include <vector>

#include "formats/core/model_info.h"
#include "formats/store/codebook.h"

namespace kvcc {

/// Fields in which an artifact's model is another one ("kv_heads: artifact 3, model 2"); empty when it fits.
std::vector<std::string> geometry_differences(const ModelInfo& artifact, const ModelInfo& model);

/// Throws Error(bad_input) when the artifact was made for a model of other geometry, with the differing fields, or has
/// codebooks of layers other than `cached_layers`, the model's that have a cache.
void check_geometry(const std::string& path, const Codebook& artifact, const ModelInfo& model,
                    const std::vector<int>& cached_layers);

}  // namespace kvcc
