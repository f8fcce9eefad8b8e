#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "formats/core/error.h"
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

// Llama 3's parameters are not in the metadata; rope_freqs.weight holds the divisor of each frequency. The published
// parameters are recovered where they give these divisors; the divisors themselves are always kept.
void read_rope_factors(const GgufFile& file, const GgufTensor& tensor, RopeInfo& rope) {
  std::vector<float> factors(static_cast<size_t>(rope.rotary_dim / 2));
  const std::vector<int64_t> wanted{rope.rotary_dim / 2};
  if (tensor.shape != wanted) {
    throw bad_input(file.path() + ": tensor rope_freqs.weight", "not one factor per rotary pair",
                    std::to_string(factors.size()) + " values");
  }
  if (tensor.type != WeightType::f32) throw bad_input(file.path() + ": tensor rope_freqs.weight", "not F32");
  dequantize(tensor.type, tensor.bytes, factors);
  for (const float factor : factors) {
    if (!(factor > 0) || !std::isfinite(factor))
      throw bad_input(file.path() + ": tensor rope_freqs.weight", "a factor that is not a positive number");
  }
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
  if (type == "none") return rope;
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

}  // namespace

DecoderConfig config_from_gguf(const GgufFile& file) {
  const std::string& path = file.path();
  DecoderConfig config;
  config.architecture = find_architecture(file.text("general.architecture").value_or(""), path).name;
  const Keys keys(file, config.architecture);
  if (keys.integer("expert_count").value_or(0) > 0) {
    throw bad_input(path, "a mixture of experts", "one feed-forward network a layer");
  }
  config.hidden = keys.needed("embedding_length");
  config.layers = keys.needed("block_count");
  config.query_heads = keys.needed("attention.head_count");
  config.kv_heads = keys.integer("attention.head_count_kv").value_or(config.query_heads);
  config.feed_forward = keys.needed("feed_forward_length");
  config.max_position = keys.integer("context_length").value_or(2048);
  const auto epsilon = keys.number("attention.layer_norm_rms_epsilon");
  if (!epsilon) throw bad_input(path, "metadata attention.layer_norm_rms_epsilon is absent", "a number");
  config.norm_epsilon = *epsilon;

  const auto key_length = keys.integer("attention.key_length");
  const auto value_length = keys.integer("attention.value_length");
  if (!key_length && (config.query_heads < 1 || config.hidden % config.query_heads != 0)) {
    throw bad_input(
        path,
        "embedding_length " + std::to_string(config.hidden) + " with " + std::to_string(config.query_heads) + " heads",
        "attention.key_length, or a length that the heads divide");
  }
  config.head_dim = key_length ? *key_length : config.hidden / config.query_heads;
  if (value_length && *value_length != config.head_dim) {
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
  config.rope = read_rope(file, keys, config.head_dim, config.max_position);
  check_config(path, config);
  if (const GgufTensor* factors = file.find("rope_freqs.weight")) read_rope_factors(file, *factors, config.rope);
  return config;
}

}  // namespace kvcc
