#include <algorithm>
#include <cmath>
#include <numbers>

#include "formats/core/error.h"
#include "formats/core/json.h"
#include "formats/weights/architecture.h"
#include "formats/weights/block_formats.h"
#include "formats/weights/config.h"

namespace kvcc {
namespace {

using nlohmann::json;

// Metadata below "<architecture>.".
class Keys {
 public:
  Keys(const GgufFile& file, const std::string& architecture) : file_(file), prefix_(architecture + ".") {}
  std::optional<int64_t> integer(const std::string& key) const { return file_.integer(prefix_ + key); }
  std::optional<double> number(const std::string& key) const { return file_.number(prefix_ + key); }
  std::optional<bool> boolean(const std::string& key) const { return file_.boolean(prefix_ + key); }
  std::optional<std::string> text(const std::string& key) const { return file_.text(prefix_ + key); }
  int64_t needed(const std::string& key) const {
    const auto value = integer(key);
    if (!value) throw bad_input(file_.path(), "metadata " + prefix_ + key + " is absent", "an integer");
    return *value;
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

/// One positive divisor a rotary pair.
std::vector<float> rope_factors(const GgufFile& file, const GgufTensor& tensor, int rotary_dim) {
  const std::string place = file.path() + ": tensor " + tensor.name;
  std::vector<float> factors(static_cast<size_t>(std::max(rotary_dim, 0) / 2));
  const std::vector<int64_t> wanted{rotary_dim / 2};
  if (tensor.shape != wanted) {
    throw bad_input(place, "not one factor per rotary pair", std::to_string(factors.size()) + " values");
  }
  if (tensor.type != WeightType::f32) throw bad_input(place, "not F32");
  dequantize(tensor.type, tensor.bytes, factors);
  for (const float factor : factors) {
    if (!(factor > 0) || !std::isfinite(factor)) throw bad_input(place, "a factor that is not a positive number");
  }
  return factors;
}

// Llama 3's parameters are not in the metadata; rope_freqs.weight holds the divisor of each frequency. The published
// parameters are recovered where they give these divisors; the divisors themselves are always kept.
void read_rope_factors(const GgufFile& file, const GgufTensor& tensor, RopeInfo& rope) {
  const std::vector<float> factors = rope_factors(file, tensor, rope.rotary_dim);
  const double factor = *std::max_element(factors.begin(), factors.end());
  if (factor == 1.0) return;
  const double low = 1, high = 4, original = 8192;
  bool same = true;
  for (size_t i = 0; i < factors.size(); ++i) {
    const double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.rotary_dim);
    const double wavelength = 2 * std::numbers::pi / frequency;
    double divisor = 1;
    if (wavelength > original / low) {
      divisor = factor;
    } else if (wavelength >= original / high) {
      const double s = (original / wavelength - low) / (high - low);
      divisor = 1 / ((1 - s) / factor + s);
    }
    same = same && std::abs(divisor - factors[i]) <= 1e-5 * divisor;
  }
  rope.scaling = "llama3";
  json parameters = {{"rope_type", "llama3"}, {"freq_factors", factors}};
  if (same) {
    parameters.update({{"factor", factor},
                       {"low_freq_factor", low},
                       {"high_freq_factor", high},
                       {"original_max_position_embeddings", static_cast<int64_t>(original)}});
  }
  rope.scaling_json = parameters.dump();
}

/// Phi-3's two lists of divisors are tensors too.
void read_long_factors(const GgufFile& file, const Keys& keys, int64_t max_position, RopeInfo& rope) {
  json parameters = {{"rope_type", "longrope"}};
  for (const auto& [tensor, name] :
       {std::pair{"rope_factors_long.weight", "long_factor"}, {"rope_factors_short.weight", "short_factor"}}) {
    const GgufTensor* found = file.find(tensor);
    if (!found) throw bad_input(file.path(), std::string("no tensor ") + tensor, "both lists of rope factors");
    parameters[name] = rope_factors(file, *found, rope.rotary_dim);
  }
  const int64_t original = keys.integer("rope.scaling.original_context_length").value_or(max_position);
  if (original < 1) throw bad_input(file.path(), "rope.scaling.original_context_length is not positive");
  parameters["original_max_position_embeddings"] = original;
  parameters["factor"] = static_cast<double>(max_position) / static_cast<double>(original);
  if (const auto attention = keys.number("rope.scaling.attn_factor")) parameters["attention_factor"] = *attention;
  rope.scaling = "longrope";
  rope.scaling_json = parameters.dump();
}

RopeInfo read_rope(const GgufFile& file, const Keys& keys, int64_t head_dim, int64_t max_position) {
  RopeInfo rope;
  const int64_t rotary = keys.integer("rope.dimension_count").value_or(head_dim);
  rope.rotary_dim = static_cast<int>(std::clamp<int64_t>(rotary, -1, 1 << 24));
  rope.theta = keys.number("rope.freq_base").value_or(10000.0);
  std::string type = keys.text("rope.scaling.type").value_or("none");
  auto factor = keys.number("rope.scaling.factor");
  if (const auto linear = keys.number("rope.scale_linear"); linear && *linear != 1.0) {  // files of 2023
    type = "linear";
    factor = linear;
  }
  if (file.find("rope_factors_long.weight") || file.find("rope_factors_short.weight")) {
    read_long_factors(file, keys, max_position, rope);
    return rope;
  }
  if (type == "none") return rope;
  if (type == "longrope") {
    throw bad_input(file.path(), "rope scaling longrope without rope_factors_long.weight",
                    "both lists of rope factors");
  }
  if (type != "linear" && type != "yarn") {
    throw bad_input(file.path(), "rope scaling " + type, "none, linear or yarn");
  }
  if (!factor || !(*factor > 0)) throw bad_input(file.path(), "rope scaling " + type + " without a positive factor");
  if (*factor == 1.0 && type == "linear") return rope;
  rope.scaling = type;
  json parameters = {{"rope_type", type}, {"factor", *factor}};
  if (type == "yarn") {
    parameters["original_max_position_embeddings"] =
        keys.integer("rope.scaling.original_context_length").value_or(max_position);
    // The multiplier of DeepSeek's mscale, a tenth of it; mscale is mscale_all_dim in the models that have it.
    if (const auto log_factor = keys.number("rope.scaling.yarn_log_multiplier"); log_factor && *log_factor != 0) {
      parameters["mscale"] = parameters["mscale_all_dim"] = *log_factor * 10;
    }
    for (const auto& [key, name] : {std::pair{"rope.scaling.attn_factor", "attention_factor"},
                                    std::pair{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                    std::pair{"rope.scaling.yarn_beta_slow", "beta_slow"}}) {
      if (const auto value = keys.number(key)) parameters[name] = *value;
    }
  }
  rope.scaling_json = parameters.dump();
  return rope;
}

bool has_suffix(const GgufFile& file, std::initializer_list<const char*> suffixes) {
  return std::any_of(file.tensors().begin(), file.tensors().end(), [&](const GgufTensor& tensor) {
    return std::any_of(suffixes.begin(), suffixes.end(), [&](const char* s) { return tensor.name.ends_with(s); });
  });
}

/// The metadata in the words of config.json, on top of the architecture's defaults of what GGUF has no keys for.
json in_words_of_config(const GgufFile& file, const Keys& keys, const Architecture& architecture,
                        const DecoderConfig& c) {
  json object = json::object();
  const json defaults = parse_json<json>(architecture.defaults, architecture.name);
  for (const char* name : {"hidden_activation", "sliding_window_pattern", "no_rope_layer_interval"}) {
    if (defaults.contains(name)) object[name] = defaults[name];
  }
  constexpr std::pair<const char*, const char*> kIntegers[] = {{"attention.sliding_window", "sliding_window"},
                                                               {"expert_count", "num_experts"},
                                                               {"expert_used_count", "num_experts_per_tok"},
                                                               {"expert_feed_forward_length", "moe_intermediate_size"},
                                                               {"expert_shared_count", "n_shared_experts"},
                                                               {"leading_dense_block_count", "first_k_dense_replace"},
                                                               {"expert_group_count", "n_group"},
                                                               {"expert_group_used_count", "topk_group"},
                                                               {"shortconv.l_cache", "conv_L_cache"},
                                                               {"attention.q_lora_rank", "q_lora_rank"},
                                                               {"attention.kv_lora_rank", "kv_lora_rank"},
                                                               {"rope.dimension_count", "qk_rope_head_dim"}};
  for (const auto& [key, name] : kIntegers) {
    if (const auto value = keys.integer(key)) object[name] = *value;
  }
  constexpr std::pair<const char*, const char*> kNumbers[] = {
      {"attn_logit_softcapping", "attn_logit_softcapping"}, {"final_logit_softcapping", "final_logit_softcapping"},
      {"embedding_scale", "embedding_multiplier"},          {"residual_scale", "residual_multiplier"},
      {"attention.scale", "attention_multiplier"},          {"logit_scale", "logits_scaling"},
      {"expert_weights_scale", "routed_scaling_factor"}};
  for (const auto& [key, name] : kNumbers) {
    if (const auto value = keys.number(key)) object[name] = *value;
  }
  if (object.value("routed_scaling_factor", 1.0) == 0.0) object["routed_scaling_factor"] = 1.0;  // 0: none
  // Qwen3-MoE's files have no key, as all of its models normalise.
  object["norm_topk_prob"] = keys.boolean("expert_weights_norm").value_or(!architecture.latent);
  if (object.value("n_group", int64_t{1}) > 1 && architecture.router == Router::softmax) {
    object["topk_method"] = "group_limited_greedy";
  }
  if (architecture.query_scalar) {
    const bool wide = c.layers == architecture.gguf_wide_layers && c.query_heads > 0;
    object["query_pre_attn_scalar"] = wide ? c.hidden / c.query_heads : c.head_dim;
  }
  const std::string pattern_key = std::string(architecture.gguf) + ".attention.sliding_window_pattern";
  if (const GgufValue* pattern = file.value(pattern_key)) {  // every how many, or what each layer is
    if (const auto* layers = std::get_if<std::vector<int64_t>>(pattern)) {
      for (const int64_t sliding : *layers) {
        object["layer_types"].push_back(sliding ? "sliding_attention" : "full_attention");
      }
    } else {
      object["sliding_window_pattern"] = *file.integer(pattern_key);
    }
  }
  if (architecture.layers == Layers::convolutions) {  // heads by layer, 0 where it has no attention
    object["full_attn_idxs"] = json::array();
    const std::vector<int64_t> heads = file.integers(std::string(architecture.gguf) + ".attention.head_count_kv");
    for (size_t l = 0; l < heads.size(); ++l) {
      if (heads[l] > 0) object["full_attn_idxs"].push_back(l);
    }
  }
  if (architecture.latent) {
    const auto length = [&](const char* mla, const char* plain) {
      return keys.integer(mla) ? *keys.integer(mla) : keys.needed(plain);
    };
    object["qk_nope_head_dim"] =
        length("attention.key_length_mla", "attention.key_length") - object.value("qk_rope_head_dim", int64_t{0});
    object["v_head_dim"] = length("attention.value_length_mla", "attention.value_length");
  }
  return object;
}

/// Key/value heads of the layers that have any; of one layer in most files, of all in some.
int64_t kv_heads(const GgufFile& file, const std::string& key, int64_t otherwise) {
  const GgufValue* value = file.value(key);
  if (!value || !std::holds_alternative<std::vector<int64_t>>(*value)) return file.integer(key).value_or(otherwise);
  int64_t heads = 0;
  for (const int64_t layer : std::get<std::vector<int64_t>>(*value)) {
    if (layer > 0 && heads > 0 && layer != heads) {
      throw bad_input(file.path(),
                      "layers of " + std::to_string(heads) + " and of " + std::to_string(layer) + " key/value heads",
                      "one number of heads");
    }
    heads = std::max(heads, layer);
  }
  return heads;
}

}  // namespace

DecoderConfig config_from_gguf(const GgufFile& file) {
  const std::string& path = file.path();
  DecoderConfig config;
  const std::string named = file.text("general.architecture").value_or("");
  const Keys keys(file, named);
  Router router = Router::none;
  if (keys.integer("expert_count").value_or(0) > 0) {
    const bool sigmoid = keys.integer("expert_gating_func").value_or(1) == 2;
    router = sigmoid ? Router::sigmoid : named == "llama" ? Router::softmax_normalised : Router::softmax;
  }
  const Architecture& architecture = find_gguf_architecture(named, router, path);
  config.architecture = architecture.name;
  config.hidden = keys.needed("embedding_length");
  config.layers = keys.needed("block_count");
  config.query_heads = keys.needed("attention.head_count");
  config.kv_heads = kv_heads(file, named + ".attention.head_count_kv", config.query_heads);
  config.feed_forward = keys.needed("feed_forward_length");
  config.max_position = keys.integer("context_length").value_or(2048);
  const auto epsilon = keys.number("attention.layer_norm_rms_epsilon");
  if (!epsilon) throw bad_input(path, "metadata attention.layer_norm_rms_epsilon is absent", "a number");
  config.norm_epsilon = *epsilon;

  const auto key_length = architecture.latent ? std::optional<int64_t>(0) : keys.integer("attention.key_length");
  const auto value_length = keys.integer("attention.value_length");
  if (!key_length && (config.query_heads < 1 || config.hidden % config.query_heads != 0)) {
    throw bad_input(
        path,
        "embedding_length " + std::to_string(config.hidden) + " with " + std::to_string(config.query_heads) + " heads",
        "attention.key_length, or a length that the heads divide");
  }
  config.head_dim = key_length ? *key_length : config.hidden / config.query_heads;
  if (value_length && *value_length != config.head_dim && !architecture.latent) {
    throw bad_input(
        path,
        "values of " + std::to_string(*value_length) + " and keys of " + std::to_string(config.head_dim) + " channels",
        "the same length");
  }
  const GgufTensor* embedding = file.find("token_embd.weight");
  config.vocab = keys.integer("vocab_size")
                     .value_or(embedding && !embedding->shape.empty()
                                   ? embedding->shape[0]
                                   : static_cast<int64_t>(file.texts("tokenizer.ggml.tokens").size()));
  config.tied_embeddings = !file.find("output.weight");
  config.attention_bias = has_suffix(file, {".attn_q.bias", ".attn_k.bias", ".attn_v.bias", ".attn_output.bias"});
  config.mlp_bias = has_suffix(file, {".ffn_gate.bias", ".ffn_up.bias", ".ffn_down.bias"});
  config.bos_id = file.integer("tokenizer.ggml.bos_token_id").value_or(-1);
  config.eos_id = file.integer("tokenizer.ggml.eos_token_id").value_or(-1);
  config.value_head_dim = config.head_dim;
  const json object = in_words_of_config(file, keys, architecture, config);
  if (architecture.latent) read_latent(object, path, config);
  config.rope = read_rope(file, keys, config.head_dim, config.max_position);
  std::optional<RopeInfo> sliding;
  if (architecture.two_ropes) {  // no scaling on these, as in llama.cpp
    sliding.emplace();
    sliding->theta = keys.number("rope.freq_base_swa").value_or(10000.0);
    sliding->rotary_dim = config.rope.rotary_dim;
  }
  if (config.rope.rotary_dim < 0 || config.rope.rotary_dim > 65536) {
    throw bad_input(path, "rotary dimension is " + std::to_string(config.rope.rotary_dim),
                    "an even number up to the head dimension");
  }
  if (const GgufTensor* factors = file.find("rope_freqs.weight")) read_rope_factors(file, *factors, config.rope);
  read_features(path, architecture, object, sliding, config);
  check_config(path, config);
  return config;
}

}  // namespace kvcc
