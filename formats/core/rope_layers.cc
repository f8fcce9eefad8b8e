#include "formats/core/rope_layers.h"

#include <string>

#include "formats/core/error.h"
#include "formats/core/json.h"

namespace kvcc {
namespace {
constexpr const char* kPlace = "rope scaling by-layer";
}  // namespace

int RopeLayers::kind(int layer) const {
  if (kind_of_layer.empty()) return 0;
  if (layer < 0 || layer >= static_cast<int>(kind_of_layer.size())) {
    throw bad_input(kPlace, "no layer " + std::to_string(layer), std::to_string(kind_of_layer.size()) + " layers");
  }
  return kind_of_layer[static_cast<size_t>(layer)];
}

RopeLayers rope_layers(const RopeInfo& rope) {
  if (rope.scaling != "by-layer") return {{rope}, {}};
  RopeLayers layers;
  try {
    const auto json = parse_json<nlohmann::json>(rope.scaling_json, kPlace);
    layers.kind_of_layer = json.at("layers").get<std::vector<int>>();
    for (const nlohmann::json& kind : json.at("kinds")) {
      layers.kinds.push_back({kind.at("theta").get<double>(), rope.kind, kind.at("scaling").get<std::string>(),
                              kind.at("scaling_json").get<std::string>(), rope.rotary_dim});
    }
  } catch (const nlohmann::json::exception& error) {
    throw bad_input(kPlace, error.what());
  }
  if (layers.kinds.empty() || layers.kind_of_layer.empty()) throw bad_input(kPlace, "no kinds or no layers");
  const int kinds = static_cast<int>(layers.kinds.size());
  for (const int kind : layers.kind_of_layer) {
    if (kind >= -1 && kind < kinds) continue;
    throw bad_input(kPlace, "a layer of kind " + std::to_string(kind), "-1 or one of " + std::to_string(kinds));
  }
  return layers;
}

}  // namespace kvcc
