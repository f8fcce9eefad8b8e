#include <algorithm>

#include "formats/core/error.h"
#include "formats/core/json.h"
#include "formats/weights/architecture.h"
#include "formats/weights/config.h"

namespace kvcc {
namespace {

using nlohmann::json;

constexpr uint64_t kMostBytes = 16 << 20;

// Members of one JSON object; null counts as absent.
class Fields {
 public:
  Fields(std::string place, const json& object) : place_(std::move(place)), object_(object) {}

  const json* get(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  int64_t integer(const char* name, int64_t otherwise) const {
    const json* v = get(name);
    if (!v) return otherwise;
    if (!v->is_number_integer() || (v->is_number_unsigned() && v->get<uint64_t>() > INT64_MAX))
      throw wrong(name, "an integer");
    return v->get<int64_t>();
  }
  int64_t integer(const char* name) const {
    if (!get(name)) throw bad_input(place_, std::string(name) + " is absent", "an integer");
    return integer(name, 0);
  }
  double number(const char* name, double otherwise) const {
    const json* v = get(name);
    if (!v) return otherwise;
    if (!v->is_number()) throw wrong(name, "a number");
    return v->get<double>();
  }
  bool boolean(const char* name, bool otherwise) const {
    const json* v = get(name);
    if (!v) return otherwise;
    if (!v->is_boolean()) throw wrong(name, "true or false");
    return v->get<bool>();
  }
  std::string text(const char* name, const std::string& otherwise) const {
    const json* v = get(name);
    if (!v) return otherwise;
    if (!v->is_string()) throw wrong(name, "a string");
    return v->get<std::string>();
  }
  /// bos and eos may be one id or a list, of which the first counts.
  int64_t token(const char* name) const {
    const json* v = get(name);
    if (v && v->is_array()) v = v->empty() ? nullptr : &v->front();
    if (!v) return -1;
    if (!v->is_number_integer()) throw wrong(name, "a token id");
    return v->get<int64_t>();
  }
  Error wrong(const char* name, const char* wanted) const {
    return bad_input(place_, std::string(name) + " is " + json_brief(*get(name)), wanted);
  }

 private:
  std::string place_;
  const json& object_;
};

RopeInfo read_rope(const std::string& place, const Fields& fields, int64_t head_dim) {
  const json* parameters = fields.get("rope_parameters");
  const json* scaling = fields.get("rope_scaling");
  RopeInfo rope;
  double partial = fields.number("partial_rotary_factor", 1.0);
  rope.theta = fields.number("rope_theta", 10000.0);
  json kept = json::object();
  for (const json* object : {scaling, parameters}) {
    if (!object) continue;
    const char* name = object == parameters ? "rope_parameters" : "rope_scaling";
    if (!object->is_object()) throw fields.wrong(name, "an object");
    const Fields inner(place + ": " + name, *object);
    for (const auto& [key, value] : object->items()) {
      const bool nested =
          value.is_object() ||
          (value.is_array() && std::any_of(value.begin(), value.end(), [](auto& v) { return v.is_structured(); }));
      if (nested) {
        throw bad_input(place + ": " + name, "parameters per kind of layer (" + key + ")", "one set of parameters");
      }
    }
    rope.theta = inner.number("rope_theta", rope.theta);
    partial = inner.number("partial_rotary_factor", partial);
    std::string type = inner.text("rope_type", inner.text("type", "default"));
    if (type == "default") type = "none";
    constexpr const char* kKnown[] = {"none", "linear", "dynamic", "yarn", "llama3", "longrope"};
    if (std::find(std::begin(kKnown), std::end(kKnown), type) == std::end(kKnown)) {
      throw bad_input(place + ": " + name, "rope type " + type, "default, linear, dynamic, yarn, llama3 or longrope");
    }
    rope.scaling = type;
    kept = *object;
    kept.erase("type");
    kept["rope_type"] = type;
  }
  if (rope.scaling != "none") rope.scaling_json = kept.dump();
  if (fields.boolean("rope_interleaved", false)) {
    throw bad_input(place, "rope_interleaved is true", "half-split rotary pairs");
  }
  if (!(partial > 0 && partial <= 1)) {
    throw bad_input(place, "partial_rotary_factor is " + std::to_string(partial), "a number above 0, up to 1");
  }
  // Clamped so that it fits; check_config refuses what is out of range.
  rope.rotary_dim = static_cast<int>(static_cast<double>(std::clamp<int64_t>(head_dim, -2, 1 << 24)) * partial);
  return rope;
}

}  // namespace

DecoderConfig config_from_json(const std::string& path) {
  const json root = read_json<json>(path, kMostBytes);
  const Fields fields(path, root);
  DecoderConfig config;
  config.architecture = find_architecture(fields.text("model_type", ""), path).name;
  if (const json* quantised = fields.get("quantization_config")) {
    const std::string method =
        quantised->is_object() ? Fields(path, *quantised).text("quant_method", "unknown") : "unknown";
    throw bad_input(path, "weights quantised by \"" + method + "\"", "F32, F16 or BF16 weights",
                    "use the full-precision model or a GGUF file");
  }
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") throw bad_input(path, "hidden_act is " + activation, "silu");

  config.hidden = fields.integer("hidden_size");
  config.layers = fields.integer("num_hidden_layers");
  config.query_heads = fields.integer("num_attention_heads");
  config.kv_heads = fields.integer("num_key_value_heads", config.query_heads);
  config.feed_forward = fields.integer("intermediate_size");
  config.vocab = fields.integer("vocab_size");
  config.norm_epsilon = fields.number("rms_norm_eps", 1e-6);  // transformers' default
  config.tied_embeddings = fields.boolean("tie_word_embeddings", false);
  config.attention_bias = fields.boolean("attention_bias", false);
  config.mlp_bias = fields.boolean("mlp_bias", false);
  config.max_position = fields.integer("max_position_embeddings", 2048);
  config.bos_id = fields.token("bos_token_id");
  config.eos_id = fields.token("eos_token_id");
  const bool derived = !fields.get("head_dim");
  if (derived && (config.query_heads < 1 || config.hidden % config.query_heads != 0)) {
    throw bad_input(
        path, "hidden_size " + std::to_string(config.hidden) + " with " + std::to_string(config.query_heads) + " heads",
        "head_dim, or a hidden_size that the heads divide");
  }
  config.head_dim = derived ? config.hidden / config.query_heads : fields.integer("head_dim");
  config.rope = read_rope(path, fields, config.head_dim);
  check_config(path, config);
  return config;
}

}  // namespace kvcc
