#include "formats/weights/architecture.h"

#include <algorithm>
#include <map>

#include "formats/core/error.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

using enum Extent;

constexpr TensorRule kLlamaTensors[] = {
    {"model.embed_tokens.weight", "token_embd.weight", {vocab, hidden}},
    {"model.norm.weight", "output_norm.weight", {hidden, none}},
    {"lm_head.weight", "output.weight", {vocab, hidden}, Presence::untied},
    {"model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight", {hidden, none}},
    {"model.layers.{}.self_attn.q_proj.weight",
     "blk.{}.attn_q.weight",
     {query_rows, hidden},
     Presence::always,
     RowOrder::query_heads},
    {"model.layers.{}.self_attn.k_proj.weight",
     "blk.{}.attn_k.weight",
     {kv_rows, hidden},
     Presence::always,
     RowOrder::kv_heads},
    {"model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight", {kv_rows, hidden}},
    {"model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight", {hidden, query_rows}},
    {"model.layers.{}.self_attn.q_proj.bias",
     "blk.{}.attn_q.bias",
     {query_rows, none},
     Presence::attention_bias,
     RowOrder::query_heads},
    {"model.layers.{}.self_attn.k_proj.bias",
     "blk.{}.attn_k.bias",
     {kv_rows, none},
     Presence::attention_bias,
     RowOrder::kv_heads},
    {"model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias", {kv_rows, none}, Presence::attention_bias},
    {"model.layers.{}.self_attn.o_proj.bias", "blk.{}.attn_output.bias", {hidden, none}, Presence::attention_bias},
    {"model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight", {hidden, none}},
    {"model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight", {feed_forward, hidden}},
    {"model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight", {feed_forward, hidden}},
    {"model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight", {hidden, feed_forward}},
    {"model.layers.{}.mlp.gate_proj.bias", "blk.{}.ffn_gate.bias", {feed_forward, none}, Presence::mlp_bias},
    {"model.layers.{}.mlp.up_proj.bias", "blk.{}.ffn_up.bias", {feed_forward, none}, Presence::mlp_bias},
    {"model.layers.{}.mlp.down_proj.bias", "blk.{}.ffn_down.bias", {hidden, none}, Presence::mlp_bias},
};
// rope_freqs.weight of GGUF is read by the configuration; inv_freq is recomputed from it.
constexpr const char* kLlamaIgnored[] = {"rotary_emb.inv_freq", "rope_freqs.weight"};

constexpr Architecture kArchitectures[] = {{"llama", kLlamaTensors, kLlamaIgnored}};

int64_t extent(Extent which, const DecoderConfig& c) {
  switch (which) {
    case hidden:
      return c.hidden;
    case vocab:
      return c.vocab;
    case query_rows:
      return c.query_heads * c.head_dim;
    case kv_rows:
      return c.kv_heads * c.head_dim;
    case feed_forward:
      return c.feed_forward;
    case none:
      break;
  }
  return 0;
}

bool present(Presence presence, const DecoderConfig& c) {
  switch (presence) {
    case Presence::untied:
      return !c.tied_embeddings;
    case Presence::attention_bias:
      return c.attention_bias;
    case Presence::mlp_bias:
      return c.mlp_bias;
    case Presence::always:
      break;
  }
  return true;
}

std::string with_layer(std::string pattern, int64_t layer) {
  const size_t at = pattern.find("{}");
  return at == std::string::npos ? pattern : pattern.replace(at, 2, std::to_string(layer));
}

bool ignorable(const Architecture& architecture, const DecoderConfig& config, bool gguf, const std::string& name) {
  for (const char* suffix : architecture.ignored_suffixes) {
    if (name.ends_with(suffix)) return true;
  }
  // A redundant copy of tied weights.
  return std::any_of(architecture.tensors.begin(), architecture.tensors.end(), [&](const TensorRule& rule) {
    return rule.presence == Presence::untied && config.tied_embeddings && name == (gguf ? rule.gguf : rule.hf);
  });
}

// "a, b, c and 17 more"
std::string listed(const std::vector<std::string>& items) {
  constexpr size_t kShown = 60;
  std::string text;
  for (size_t i = 0; i < std::min(items.size(), kShown); ++i) text += (i ? ", " : "") + items[i];
  if (items.size() > kShown) text += " and " + std::to_string(items.size() - kShown) + " more";
  return text;
}

}  // namespace

const Architecture& find_architecture(const std::string& name, const std::string& place) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  throw bad_input(place, name.empty() ? "no architecture is named" : "architecture " + name, "one of: " + known);
}

std::vector<ExpectedTensor> expected_tensors(const Architecture& architecture, const DecoderConfig& config) {
  std::vector<ExpectedTensor> expected;
  const auto add = [&](const TensorRule& rule, int64_t layer) {
    ExpectedTensor tensor{with_layer(rule.hf, layer), with_layer(rule.gguf, layer), {}, 0};
    for (const Extent e : rule.shape) {
      if (e != none) tensor.shape.push_back(extent(e, config));
    }
    if (rule.gguf_rows == RowOrder::query_heads) tensor.interleaved_heads = config.query_heads;
    if (rule.gguf_rows == RowOrder::kv_heads) tensor.interleaved_heads = config.kv_heads;
    expected.push_back(std::move(tensor));
  };
  const auto add_all = [&](bool per_layer, int64_t layer) {
    for (const TensorRule& rule : architecture.tensors) {
      const bool layered = std::string_view(rule.hf).find("{}") != std::string_view::npos;
      if (layered == per_layer && present(rule.presence, config)) add(rule, layer);
    }
  };
  add_all(false, 0);
  for (int64_t layer = 0; layer < config.layers; ++layer) add_all(true, layer);
  return expected;
}

void check_tensors(const std::string& place, const Architecture& architecture, const DecoderConfig& config,
                   const std::vector<ExpectedTensor>& expected, bool gguf_names,
                   const std::vector<FoundTensor>& found) {
  std::map<std::string, const FoundTensor*> left;
  for (const FoundTensor& tensor : found) left[tensor.name] = &tensor;
  std::vector<std::string> missing, wrong, unused;
  for (const ExpectedTensor& want : expected) {
    const std::string& name = gguf_names ? want.gguf : want.hf;
    const auto it = left.find(name);
    if (it == left.end()) {
      missing.push_back(name + " " + shape_text(want.shape));
      continue;
    }
    if (!it->second->bad_type.empty()) {
      wrong.push_back(name + " has type " + it->second->bad_type);
    } else if (it->second->shape != want.shape) {
      wrong.push_back(name + " is " + shape_text(it->second->shape) + ", not " + shape_text(want.shape));
    }
    left.erase(it);
  }
  for (const auto& [name, tensor] : left) {
    if (!ignorable(architecture, config, gguf_names, name)) unused.push_back(name);
  }
  std::string text;
  const auto part = [&](const char* title, const std::vector<std::string>& items) {
    if (!items.empty()) text += (text.empty() ? "" : "; ") + (title + listed(items));
  };
  part("missing tensors: ", missing);
  part("unusable tensors: ", wrong);
  part("tensors that this architecture does not use: ", unused);
  if (!text.empty()) throw bad_input(place, text, "the tensors of " + std::string(architecture.name));
}

void check_config(const std::string& place, const DecoderConfig& c) {
  constexpr int64_t kLargest = 1 << 24;  // far above any model; keeps every product of two extents in range
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden size", c.hidden},       {"number of layers", c.layers}, {"number of heads", c.query_heads},
      {"key/value heads", c.kv_heads}, {"head dimension", c.head_dim}, {"feed-forward size", c.feed_forward},
      {"vocabulary", c.vocab}};
  for (const auto& [name, value] : sizes) {
    const int64_t limit = value == c.layers && name == std::string("number of layers") ? 65535 : kLargest;
    if (value < 1 || value > limit) {
      throw bad_input(place, std::string(name) + " is " + std::to_string(value), "from 1 to " + std::to_string(limit));
    }
  }
  constexpr int64_t kMostPositions = int64_t{1} << 40;
  if (c.max_position < 1 || c.max_position > kMostPositions) {
    throw bad_input(place, "maximal position is " + std::to_string(c.max_position),
                    "from 1 to " + std::to_string(kMostPositions));
  }
  for (const auto& [name, id] : {std::pair("bos", c.bos_id), std::pair("eos", c.eos_id)}) {
    if (id < -1 || id > INT32_MAX) {
      throw bad_input(place, std::string(name) + " token id is " + std::to_string(id), "a token id, or none");
    }
  }
  if (c.query_heads % c.kv_heads != 0) {
    throw bad_input(
        place, std::to_string(c.query_heads) + " query heads and " + std::to_string(c.kv_heads) + " key/value heads",
        "query heads to be a multiple of key/value heads");
  }
  if (c.head_dim > 65536) throw bad_input(place, "head dimension is " + std::to_string(c.head_dim), "at most 65536");
  if (c.head_dim % 2 != 0) throw bad_input(place, "head dimension is " + std::to_string(c.head_dim), "an even number");
  if (c.rope.rotary_dim < 2 || c.rope.rotary_dim > c.head_dim || c.rope.rotary_dim % 2 != 0) {
    throw bad_input(place, "rotary dimension is " + std::to_string(c.rope.rotary_dim),
                    "an even number up to the head dimension, " + std::to_string(c.head_dim));
  }
  if (!(c.rope.theta > 0) || !(c.rope.theta < 1e30)) {
    throw bad_input(place, "rope theta is " + std::to_string(c.rope.theta), "a positive number");
  }
  if (!(c.norm_epsilon >= 0) || !(c.norm_epsilon < 1)) {
    throw bad_input(place, "norm epsilon is " + std::to_string(c.norm_epsilon), "a number from 0 to 1");
  }
}

bool name_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      size_t p = i, q = j;
      while (p < a.size() && digit(a[p])) ++p;
      while (q < b.size() && digit(b[q])) ++q;
      const auto value = [](const std::string& s, size_t from, size_t to) {  // digits without leading zeros
        while (from + 1 < to && s[from] == '0') ++from;
        return std::string_view(s).substr(from, to - from);
      };
      const std::string_view x = value(a, i, p), y = value(b, j, q);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      i = p, j = q;
    } else {
      if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
      ++i, ++j;
    }
  }
  if (i != a.size() || j != b.size()) return j != b.size();  // the shorter one first
  return a < b;                                              // equal but for leading zeros
}

}  // namespace kvcc
