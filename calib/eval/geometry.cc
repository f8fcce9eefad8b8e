#include "calib/eval/geometry.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/core/error.h"

namespace kvcc {

std::vector<std::string> geometry_differences(const ModelInfo& a, const ModelInfo& m) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* field, const auto& artifact, const auto& model) {
    if (artifact != model) differences.push_back(fmt::format("{}: artifact {}, model {}", field, artifact, model));
  };
  compare("architecture", a.architecture, m.architecture);
  compare("layers", a.shape.layers, m.shape.layers);
  compare("query_heads", a.shape.query_heads, m.shape.query_heads);
  compare("kv_heads", a.shape.kv_heads, m.shape.kv_heads);
  compare("head_dim", a.shape.head_dim, m.shape.head_dim);
  compare("value_head_dim", a.shape.value_head_dim, m.shape.value_head_dim);
  compare("rope theta", a.rope.theta, m.rope.theta);
  compare("rope kind", a.rope.kind, m.rope.kind);
  compare("rope scaling", a.rope.scaling, m.rope.scaling);
  compare("rope scaling parameters", a.rope.scaling_json, m.rope.scaling_json);
  compare("rotary_dim", a.rope.rotary_dim, m.rope.rotary_dim);
  compare("qk_norm", a.qk_norm, m.qk_norm);
  return differences;
}

void check_geometry(const std::string& path, const Codebook& artifact, const ModelInfo& model,
                    const std::vector<int>& cached_layers) {
  std::vector<std::string> differences = geometry_differences(artifact.model, model);
  for (const uint16_t layer : artifact.layer_index) {
    if (std::binary_search(cached_layers.begin(), cached_layers.end(), int{layer})) continue;
    const bool all = cached_layers.back() + 1 == static_cast<int>(cached_layers.size());
    differences.push_back(fmt::format(
        "layer_index: artifact has layer {}, the model layers {}", layer,
        all ? fmt::format("0 to {}", cached_layers.back()) : fmt::format("{}", fmt::join(cached_layers, ", "))));
    break;
  }
  if (differences.empty()) return;
  throw bad_input(path,
                  fmt::format("made for another model ({}): {}", artifact.model.name, fmt::join(differences, "; ")),
                  "a codebook of " + model.name, "kvcc calibrate makes one");
}

}  // namespace kvcc
