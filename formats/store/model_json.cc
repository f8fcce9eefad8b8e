#include "formats/store/model_json.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

namespace kvcc {
namespace {

/// What codebook.md asks of a model: an artifact is made from these numbers.
void check_model(const ModelInfo& model, const std::string& place) {
  constexpr int kMost = 65536;
  const auto wrong = [&](const char* name, const std::string& found, const std::string& wanted) {
    return bad_input(place, std::string("'") + name + "' is " + found, wanted);
  };
  const CacheShape& shape = model.shape;
  for (const auto& [name, number, most] :
       {std::tuple("layers", shape.layers, kMost - 1), std::tuple("query_heads", shape.query_heads, 1 << 20),
        std::tuple("kv_heads", shape.kv_heads, kMost), std::tuple("head_dim", shape.head_dim, kMost),
        std::tuple("value_head_dim", shape.value_head_dim, kMost)}) {
    if (number >= 1 && number <= most) continue;
    throw wrong(name, std::to_string(number), "a whole number from 1 to " + std::to_string(most));
  }
  if (shape.query_heads % shape.kv_heads != 0) {
    throw wrong("query_heads", std::to_string(shape.query_heads),
                "a multiple of the " + std::to_string(shape.kv_heads) + " kv_heads");
  }
  const RopeInfo& rope = model.rope;
  if (!std::isfinite(rope.theta) || rope.theta <= 0) {
    throw wrong("rope.theta", std::to_string(rope.theta), "a finite number above 0");
  }
  check_rope_scaling(rope, place + ": 'rope.scaling'", place + ": 'rope.scaling_json'");
  if (rope.kind != "half-split" && rope.kind != "interleaved") {
    throw wrong("rope.kind", "\"" + rope.kind + "\"", "half-split or interleaved");
  }
  if (rope.rotary_dim < 0 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > shape.head_dim) {
    throw wrong("rope.rotary_dim", std::to_string(rope.rotary_dim),
                "an even number from 0 to " + std::to_string(shape.head_dim) + ", head_dim");
  }
  std::set<int> seen;
  for (const int layer : model.sliding_window_layers) {
    if (layer >= 0 && layer < shape.layers && seen.insert(layer).second) continue;
    throw bad_input(place, "'sliding_window_layers' has " + std::to_string(layer),
                    "different numbers from 0 to " + std::to_string(shape.layers - 1));
  }
}

}  // namespace

void check_rope_scaling(const RopeInfo& rope, const std::string& place, const std::string& json_place) {
  constexpr const char* kScalings[] = {"none", "linear", "dynamic", "yarn", "llama3", "longrope", "by-layer"};
  if (std::find(std::begin(kScalings), std::end(kScalings), rope.scaling) == std::end(kScalings)) {
    throw bad_input(place, "is '" + rope.scaling + "'", "none, linear, dynamic, yarn, llama3, longrope or by-layer");
  }
  if (!rope.scaling_json.empty()) parse_json<nlohmann::json>(rope.scaling_json, json_place);
}

using nlohmann::ordered_json;

ordered_json to_json(const ModelInfo& model) {
  ordered_json document;
  document["name"] = model.name;
  document["architecture"] = model.architecture;
  document["weights_sha256"] = model.weights_sha256;
  document["layers"] = model.shape.layers;
  document["query_heads"] = model.shape.query_heads;
  document["kv_heads"] = model.shape.kv_heads;
  document["head_dim"] = model.shape.head_dim;
  document["value_head_dim"] = model.shape.value_head_dim;
  document["rope"] = {{"theta", model.rope.theta},
                      {"kind", model.rope.kind},
                      {"scaling", model.rope.scaling},
                      {"scaling_json", model.rope.scaling_json},
                      {"rotary_dim", model.rope.rotary_dim}};
  document["qk_norm"] = model.qk_norm;
  if (model.attention_bias) document["attention_bias"] = *model.attention_bias;
  document["sliding_window_layers"] = model.sliding_window_layers;
  document["dtype"] = model.dtype;
  return document;
}

ModelInfo model_from_json(const ordered_json& document, const std::string& place) {
  ModelInfo model;
  model.name = json_member<std::string>(document, "name", place);
  model.architecture = json_member<std::string>(document, "architecture", place);
  model.weights_sha256 = json_member<std::string>(document, "weights_sha256", place);
  model.shape.layers = json_member<int>(document, "layers", place);
  model.shape.query_heads = json_member<int>(document, "query_heads", place);
  model.shape.kv_heads = json_member<int>(document, "kv_heads", place);
  model.shape.head_dim = json_member<int>(document, "head_dim", place);
  model.shape.value_head_dim = json_member<int>(document, "value_head_dim", place);
  const ordered_json rope = json_member<ordered_json>(document, "rope", place);
  model.rope.theta = json_member<double>(rope, "theta", place + " rope");
  model.rope.kind = json_member<std::string>(rope, "kind", place + " rope");
  model.rope.scaling = json_member<std::string>(rope, "scaling", place + " rope");
  model.rope.scaling_json = json_member<std::string>(rope, "scaling_json", place + " rope");
  model.rope.rotary_dim = json_member<int>(rope, "rotary_dim", place + " rope");
  model.qk_norm = json_member<bool>(document, "qk_norm", place);
  if (document.contains("attention_bias")) model.attention_bias = json_member<bool>(document, "attention_bias", place);
  model.sliding_window_layers = json_member<std::vector<int>>(document, "sliding_window_layers", place);
  model.dtype = json_member<std::string>(document, "dtype", place);
  check_model(model, place);
  return model;
}

}  // namespace kvcc
