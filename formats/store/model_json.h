// ModelInfo as JSON: the activations' manifest, kvcc inspect and the exports write it in the same way.
#pragma once

#include <string>

#include "formats/core/json.h"
#include "formats/core/model_info.h"

namespace kvcc {

nlohmann::ordered_json to_json(const ModelInfo& model);
/// Throws Error(bad_input) naming `place` and the member that is missing or of another type.
ModelInfo model_from_json(const nlohmann::ordered_json& document, const std::string& place);
/// Throws Error(bad_input) at `place` for a scaling that codebook.md does not name, at `json_place` for parameters that
/// are no JSON object.
void check_rope_scaling(const RopeInfo& rope, const std::string& place, const std::string& json_place);

}  // namespace kvcc
