#include <algorithm>
#include <cmath>
#include <set>

#include "formats/core/error.h"
#include "formats/core/json.h"
#include "formats/weights/architecture.h"
#include "formats/weights/config.h"
#include "formats/weights/config_fields.h"

namespace kvcc {
namespace {

using nlohmann::json;

Activation read_activation(const std::string& place, const Fields& fields) {
  const char* key = fields.get("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string name = fields.text(key, "silu");
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  throw bad_input(place, std::string(key) + " is " + name, "silu or gelu_pytorch_tanh");
}

/// One word a layer; empty when the configuration has none.
std::vector<std::string> layer_types(const std::string& place, const Fields& fields, int64_t layers) {
  const json* types = fields.get("layer_types");
  std::vector<std::string> words;
  if (types == nullptr) return words;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers) {
    throw bad_input(place, "layer_types is not one word a layer", std::to_string(layers) + " words");
  }
  for (const json& type : *types) {
    const std::string word = type.is_string() ? type.get<std::string>() : type.type_name();
    constexpr const char* kKnown[] = {"full_attention", "sliding_attention", "conv"};
    if (std::find(std::begin(kKnown), std::end(kKnown), word) == std::end(kKnown)) {
      throw bad_input(place, "layers of type " + word, "full_attention, sliding_attention or conv");
    }
    words.push_back(word);
  }
  return words;
}

/// Integers of a list; empty when it is absent.
std::vector<int64_t> integers(const std::string& place, const Fields& fields, const char* name) {
  const json* list = fields.get(name);
  std::vector<int64_t> numbers;
  if (list == nullptr) return numbers;
  if (!list->is_array()) throw fields.wrong(name, "a list of integers");
  for (const json& number : *list) {
    if (!number.is_number_integer()) throw bad_input(place, std::string(name) + " holds no integers");
    numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

/// Each layer is looked for, in lists that may be as long as the file likes.
std::set<int64_t> numbers_of(const std::vector<int64_t>& list) { return {list.begin(), list.end()}; }

/// Which layers have the window or no attention.
void read_kinds(const std::string& place, const Architecture& a, const Fields& fields, DecoderConfig& c) {
  c.kinds.assign(static_cast<size_t>(c.layers), {});
  if (a.layers == Layers::alike) return;
  const std::vector<std::string> types = layer_types(place, fields, c.layers);
  const std::set<int64_t> attend = numbers_of(integers(place, fields, "full_attn_idxs"));
  if (a.layers != Layers::convolutions && fields.boolean("use_sliding_window", true)) {
    c.sliding_window = fields.integer("sliding_window", 0);
  }
  const int64_t first = fields.integer("max_window_layers", 0);
  const int64_t pattern = fields.integer("sliding_window_pattern", 1);
  if (pattern < 1) throw bad_input(place, "sliding_window_pattern is " + std::to_string(pattern), "at least 1");
  for (int64_t l = 0; l < c.layers; ++l) {
    LayerKind& kind = c.kinds[l];
    const auto typed = [&](const char* word, bool otherwise) { return types.empty() ? otherwise : types[l] == word; };
    switch (a.layers) {
      case Layers::sliding:
        kind.sliding = true;
        break;
      case Layers::sliding_after:
        kind.sliding = typed("sliding_attention", l >= first);
        break;
      case Layers::sliding_but_nth:
        kind.sliding = typed("sliding_attention", (l + 1) % pattern != 0);
        break;
      case Layers::rope_but_nth:
        kind.sliding = typed("sliding_attention", false);
        break;
      case Layers::convolutions:
        kind.attends = typed("full_attention", attend.empty() || attend.contains(l));
        break;
      case Layers::alike:
        break;
    }
    if (a.layers != Layers::convolutions && typed("conv", false))
      throw bad_input(place, "layers of type conv", "attention");
    if (c.sliding_window == 0) kind.sliding = false;
  }
  if (a.layers == Layers::convolutions) {
    if (fields.boolean("conv_bias", false)) throw bad_input(place, "conv_bias is true", "convolutions without bias");
    c.convolution = fields.integer("conv_L_cache", 3);
  }
}

void read_experts(const std::string& place, const Architecture& a, const Fields& fields, DecoderConfig& c) {
  if (a.router == Router::none) return;
  ExpertsConfig& e = c.experts;
  for (const char* name : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    if (fields.get(name)) e.count = fields.integer(name);
  }
  e.used = fields.integer("num_experts_per_tok");
  e.feed_forward = fields.integer("moe_intermediate_size", c.feed_forward);
  const int64_t shared = fields.integer("n_shared_experts", 0);
  if (shared < 0 || shared > 65536 || e.feed_forward > (1 << 24)) {
    throw bad_input(place, "n_shared_experts is " + std::to_string(shared), "from 0 to 65536");
  }
  e.shared_feed_forward = shared * e.feed_forward;
  e.sigmoid = a.router == Router::sigmoid;
  e.normalise = a.router == Router::softmax_normalised || fields.boolean("norm_topk_prob", false);
  e.scale = fields.number("routed_scaling_factor", 1);
  const std::string method = fields.text("topk_method", e.sigmoid ? "noaux_tc" : "greedy");
  if (method == "noaux_tc" || method == "group_limited_greedy") {
    e.groups = fields.integer("n_group", 1);
    e.groups_used = fields.integer("topk_group", e.groups);
  } else if (method != "greedy") {
    throw bad_input(place, "topk_method is " + method, "greedy, group_limited_greedy or noaux_tc");
  }
  if (a.latent && !e.sigmoid && e.normalise) {
    throw bad_input(place, "norm_topk_prob is true", "false, as models of this architecture have it");
  }
  const int64_t first = fields.integer("first_k_dense_replace", 0), step = fields.integer("decoder_sparse_step", 1);
  const std::set<int64_t> dense = numbers_of(integers(place, fields, "mlp_only_layers"));
  if (step < 1) throw bad_input(place, "decoder_sparse_step is " + std::to_string(step), "at least 1");
  for (int64_t l = 0; l < c.layers; ++l) {
    c.kinds[l].experts = l >= first && (l + 1) % step == 0 && !dense.contains(l);
  }
}

/// Where no layer rotates otherwise, nothing changes.
void set_rope_by_layer(const std::vector<int>& kind_of_layer, const std::vector<RopeInfo>& kinds, DecoderConfig& c) {
  if (std::all_of(kind_of_layer.begin(), kind_of_layer.end(), [](int kind) { return kind == 0; })) return;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const RopeInfo& kind : kinds) {
    list.push_back({{"theta", kind.theta}, {"scaling", kind.scaling}, {"scaling_json", kind.scaling_json}});
  }
  c.rope.scaling = "by-layer";
  c.rope.scaling_json = nlohmann::ordered_json{{"layers", kind_of_layer}, {"kinds", list}}.dump();
}

}  // namespace

void read_latent(const json& object, const std::string& place, DecoderConfig& c) {
  const Fields fields(place, object);
  c.latent.used = true;
  c.latent.query_rank = fields.integer("q_lora_rank", 0);
  c.latent.nope_dim = fields.integer("qk_nope_head_dim");
  c.latent.value_dim = fields.integer("v_head_dim");
  c.head_dim = fields.integer("qk_rope_head_dim");
  c.value_head_dim = fields.integer("kv_lora_rank");
  c.kv_heads = 1;
}

void read_features(const std::string& place, const Architecture& a, const json& object,
                   const std::optional<RopeInfo>& sliding_rope, DecoderConfig& c) {
  const Fields fields(place, object);
  if (c.layers < 1 || c.layers > 65535) {
    throw bad_input(place, "number of layers is " + std::to_string(c.layers), "from 1 to 65535");
  }
  c.activation = read_activation(place, fields);
  if (fields.boolean("use_bidirectional_attention", false)) {
    throw bad_input(place, "use_bidirectional_attention is true", "attention to earlier tokens alone");
  }
  read_kinds(place, a, fields, c);
  read_experts(place, a, fields, c);
  if (a.scales_embedding) c.embedding_scale = std::sqrt(static_cast<double>(c.hidden));
  if (a.multipliers) {
    c.embedding_scale = fields.number("embedding_multiplier", 1);
    c.residual_scale = fields.number("residual_multiplier", 1);
    c.attention_scale = fields.number("attention_multiplier", 1);
    c.logit_scale = fields.number("logits_scaling", 1);
  }
  if (a.query_scalar) {
    const double scalar = fields.number("query_pre_attn_scalar", static_cast<double>(c.head_dim));
    if (!(scalar > 0)) throw bad_input(place, "query_pre_attn_scalar is " + std::to_string(scalar), "above 0");
    c.attention_scale = std::pow(scalar, -0.5);
  }
  if (a.softcaps) {
    c.attention_softcap = fields.number("attn_logit_softcapping", 0);
    c.logit_softcap = fields.number("final_logit_softcapping", 0);
    if (a.two_ropes && c.attention_softcap != 0) {  // transformers ignores it in Gemma 3; other programs do not
      throw bad_input(place, "attn_logit_softcapping is set", "none in this architecture");
    }
  }
  if (a.rope_interleaves) c.rope.kind = "interleaved";
  if (a.latent) {
    c.rope.kind = fields.boolean("rope_interleave", true) ? "interleaved" : "half-split";
    const json scaling = c.rope.scaling_json.empty() ? json::object() : parse_json<json>(c.rope.scaling_json, place);
    const Fields rope(place + ": rope", scaling);
    const double all = rope.number("mscale_all_dim", 0), factor = rope.number("factor", 1);
    if (all != 0 && factor > 1) {  // DeepSeek-V2's yarn_get_mscale, squared
      const double mscale = 0.1 * all * std::log(factor) + 1;
      c.attention_scale = mscale * mscale / std::sqrt(static_cast<double>(c.latent.nope_dim + c.head_dim));
    }
  }
  std::vector<int> kind_of_layer(c.kinds.size(), 0);
  if (a.layers == Layers::rope_but_nth) {
    const std::vector<int64_t> rotates = integers(place, fields, "no_rope_layers");
    const int64_t nth = fields.integer("no_rope_layer_interval", 4);
    if (nth < 1) throw bad_input(place, "no_rope_layer_interval is " + std::to_string(nth), "at least 1");
    if (!rotates.empty() && rotates.size() < c.kinds.size()) {
      throw bad_input(place, "no_rope_layers of " + std::to_string(rotates.size()) + " layers",
                      std::to_string(c.layers));
    }
    for (size_t l = 0; l < c.kinds.size(); ++l) {
      const bool has_rope = rotates.empty() ? (static_cast<int64_t>(l) + 1) % nth != 0 : rotates[l] != 0;
      if (!has_rope) kind_of_layer[l] = -1;
    }
    set_rope_by_layer(kind_of_layer, {c.rope}, c);
  } else if (a.two_ropes && sliding_rope) {
    for (size_t l = 0; l < c.kinds.size(); ++l) kind_of_layer[l] = c.kinds[l].sliding ? 1 : 0;
    set_rope_by_layer(kind_of_layer, {c.rope, *sliding_rope}, c);
  }
}

}  // namespace kvcc
