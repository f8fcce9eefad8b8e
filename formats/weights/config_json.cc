#include <algorithm>

#include "formats/core/error.h"
#include "formats/core/json.h"
#include "formats/weights/architecture.h"
#include "formats/weights/config.h"
#include "formats/weights/config_fields.h"
#include "formats/weights/wrappers.h"

namespace kvcc {
namespace {

using nlohmann::json;

/// Parameters that scalings need and the configuration may have outside of them, put where RopeInfo keeps them.
void complete_scaling(const Fields& fields, const std::string& type, int64_t max_position, json& kept) {
  const auto absent = [&](const char* name) { return !kept.contains(name) || kept[name].is_null(); };
  const char* original = "original_max_position_embeddings";
  if (type == "dynamic") kept[original] = max_position;  // transformers has the model's own context for it
  if (type == "llama3" || type == "yarn" || type == "longrope") {
    if (fields.get(original)) {
      kept[original] = fields.integer(original);  // before what the scaling says, as in transformers
    } else if (absent(original)) {
      kept[original] = max_position;
    }
  }
  if ((type == "yarn" || type == "longrope") && absent("factor") && kept[original].is_number() &&
      kept[original].get<double>() > 0) {
    kept["factor"] = static_cast<double>(max_position) / kept[original].get<double>();
  }
}

/// One set of parameters; rope_scaling is the older name. `theta`: where they do not say.
RopeInfo read_rope(const std::string& place, const Fields& fields, int64_t head_dim, int64_t max_position, double theta,
                   const json* scaling, const json* parameters) {
  RopeInfo rope;
  double partial = fields.number("partial_rotary_factor", 1.0);
  rope.theta = theta;
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
    if (type == "su" || (type == "yarn" && inner.get("short_factor"))) type = "longrope";  // older names of Phi-3
    constexpr const char* kKnown[] = {"none", "linear", "dynamic", "yarn", "llama3", "longrope"};
    if (std::find(std::begin(kKnown), std::end(kKnown), type) == std::end(kKnown)) {
      throw bad_input(place + ": " + name, "rope type " + type, "default, linear, dynamic, yarn, llama3 or longrope");
    }
    rope.scaling = type;
    kept = *object;
    kept.erase("type");
    kept["rope_type"] = type;
    complete_scaling(fields, type, max_position, kept);
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

/// Sets the rotation; returns that of sliding layers where the architecture has one.
std::optional<RopeInfo> read_ropes(const std::string& place, const Architecture& architecture, const Fields& fields,
                                   DecoderConfig& c) {
  const json* scaling = fields.get("rope_scaling");
  const json* parameters = fields.get("rope_parameters");
  const double theta = fields.number("rope_theta", 10000.0);
  const auto read = [&](double base, const json* old, const json* now) {
    return read_rope(place, fields, c.head_dim, c.max_position, base, old, now);
  };
  const auto nested = [&](const char* kind) -> const json* {
    const bool has = parameters && parameters->is_object() && parameters->contains(kind);
    return has && (*parameters)[kind].is_object() ? &(*parameters)[kind] : nullptr;
  };
  if (!architecture.two_ropes) {
    c.rope = read(theta, scaling, parameters);
    return std::nullopt;
  }
  const json* full = nested("full_attention");
  const json* sliding = nested("sliding_attention");
  const bool by_layer = full || sliding;
  c.rope = read(theta, scaling, by_layer ? full : parameters);
  return read(fields.number("rope_local_base_freq", 10000.0), nullptr, sliding);
}

/// LFM2 states what its feed-forward size is made from (Lfm2MLP).
int64_t feed_forward(const Fields& fields) {
  const int64_t size = fields.integer(fields.get("block_ff_dim") ? "block_ff_dim" : "intermediate_size");
  if (!fields.boolean("block_auto_adjust_ff_dim", false) || size < 1 || size > (1 << 24)) return size;
  if (!fields.get("block_ffn_dim_multiplier")) return 2 * size / 3;
  const int64_t multiple = std::max<int64_t>(fields.integer("block_multiple_of", 1), 1);
  const auto adjusted =
      static_cast<int64_t>(fields.number("block_ffn_dim_multiplier", 1) * static_cast<double>(2 * size / 3));
  return (adjusted + multiple - 1) / multiple * multiple;
}

}  // namespace

DecoderConfig config_from_json(const std::string& file_path) {
  json file = read_json<json>(file_path, kMostConfig);
  DecoderConfig config;
  std::string path = file_path;
  config.architecture = Fields(path, file).text("model_type", "");
  const Wrapper* wrapper = find_wrapper(config.architecture);
  if (wrapper != nullptr) {
    config.wrapper = wrapper->name;
    file = text_config(*wrapper, file, path);
    path += ": text_config";
    config.architecture = Fields(path, file).text("model_type", "");
  }
  const Architecture& architecture = find_architecture(config.architecture, path);
  json root = parse_json<json>(architecture.defaults, architecture.name);
  if (wrapper != nullptr) root.update(parse_json<json>(architecture.nested_defaults, architecture.name));
  for (const auto& [key, value] : file.items()) root[key] = value;
  const Fields fields(path, root);
  config.hidden = fields.integer("hidden_size");
  config.layers = fields.integer("num_hidden_layers");
  config.query_heads = fields.integer("num_attention_heads");
  config.kv_heads = fields.integer("num_key_value_heads", config.query_heads);
  config.feed_forward = feed_forward(fields);
  config.vocab = fields.integer("vocab_size");
  config.norm_epsilon = fields.number("rms_norm_eps", fields.number("norm_eps", 1e-6));  // transformers' default
  config.norm_adds_one = architecture.norm_adds_one;
  config.tied_embeddings = fields.boolean("tie_embedding", fields.boolean("tie_word_embeddings", false));
  const bool configured = architecture.biases == Biases::configured;
  config.attention_bias =
      architecture.biases == Biases::always || (configured && fields.boolean("attention_bias", false));
  config.mlp_bias = configured && fields.boolean("mlp_bias", false);
  config.max_position = fields.integer("max_position_embeddings", 2048);
  config.bos_id = fields.token("bos_token_id");
  config.eos_id = fields.token("eos_token_id");
  if (architecture.latent) {
    read_latent(root, path, config);
  } else {
    const bool derived = !fields.get("head_dim");
    if (derived && (config.query_heads < 1 || config.hidden % config.query_heads != 0)) {
      throw bad_input(
          path,
          "hidden_size " + std::to_string(config.hidden) + " with " + std::to_string(config.query_heads) + " heads",
          "head_dim, or a hidden_size that the heads divide");
    }
    config.value_head_dim = config.head_dim = derived ? config.hidden / config.query_heads : fields.integer("head_dim");
  }
  const std::optional<RopeInfo> sliding = read_ropes(path, architecture, fields, config);
  read_features(path, architecture, root, sliding, config);
  check_config(path, config);
  return config;
}

}  // namespace kvcc
