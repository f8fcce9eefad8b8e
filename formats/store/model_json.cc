#include "formats/store/model_json.h"

namespace kvcc {

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
  return model;
}

}  // namespace kvcc
