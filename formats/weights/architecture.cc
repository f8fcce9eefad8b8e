#include "formats/weights/architecture.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string_view>

#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/weights/wrappers.h"

namespace kvcc {
namespace {

/// Tensors of old files that carry nothing (inv_freq is computed), and those that the configuration reads.
constexpr const char* kIgnoredSuffixes[] = {"rotary_emb.inv_freq"};
constexpr const char* kIgnoredGguf[] = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"};

int64_t extent(Extent which, const DecoderConfig& c) {
  const LatentConfig& latent = c.latent;
  const int64_t query_dim = latent.used ? latent.nope_dim + c.head_dim : c.head_dim;
  switch (which) {
    case Extent::one:
      return 1;
    case Extent::hidden:
      return c.hidden;
    case Extent::vocab:
      return c.vocab;
    case Extent::query_rows:
      return c.query_heads * query_dim;
    case Extent::kv_rows:
      return c.kv_heads * c.head_dim;
    case Extent::query_key_value_rows:
      return (c.query_heads + 2 * c.kv_heads) * c.head_dim;
    case Extent::attention_columns:
      return c.query_heads * (latent.used ? latent.value_dim : c.head_dim);
    case Extent::head_dim:
      return c.head_dim;
    case Extent::feed_forward:
      return c.feed_forward;
    case Extent::gate_up_rows:
      return 2 * c.feed_forward;
    case Extent::experts:
      return c.experts.count;
    case Extent::expert_feed_forward:
      return c.experts.feed_forward;
    case Extent::shared_feed_forward:
      return c.experts.shared_feed_forward;
    case Extent::query_rank:
      return latent.query_rank;
    case Extent::latent:
      return c.value_head_dim;
    case Extent::latent_down_rows:
      return c.value_head_dim + c.head_dim;
    case Extent::latent_up_rows:
      return c.query_heads * (latent.nope_dim + latent.value_dim);
    case Extent::convolution:
      return c.convolution;
    case Extent::convolution_in_rows:
      return 3 * c.hidden;
    case Extent::none:
      break;
  }
  return 0;
}

/// `layer` -1: of no layer.
bool present(Presence presence, const DecoderConfig& c, int64_t layer) {
  const LayerKind kind = layer < 0 ? LayerKind{} : c.kinds[layer];
  switch (presence) {
    case Presence::untied:
      return !c.tied_embeddings;
    case Presence::attention:
      return kind.attends;
    case Presence::no_attention:
      return !kind.attends;
    case Presence::dense:
      return !kind.experts;
    case Presence::experts:
      return kind.experts;
    case Presence::sigmoid:
      return kind.experts && c.experts.sigmoid;
    case Presence::compressed:
      return c.latent.query_rank > 0;
    case Presence::plain:
      return c.latent.query_rank == 0;
    case Presence::always:
      break;
  }
  return true;
}

bool has_bias(Bias bias, const DecoderConfig& c) {
  return (bias == Bias::attention && c.attention_bias) || (bias == Bias::mlp && c.mlp_bias);
}

std::string filled(std::string pattern, int64_t layer, int64_t expert) {
  for (const int64_t number : {layer, expert}) {
    const size_t at = pattern.find("{}");
    if (at != std::string::npos) pattern.replace(at, 2, std::to_string(number));
  }
  return pattern;
}

bool of_layer(const TensorRule& rule) { return std::string_view(rule.hf).find("{}") != std::string_view::npos; }

bool of_expert(const TensorRule& rule) {
  return rule.part == Part::expert_gate || rule.part == Part::expert_up || rule.part == Part::expert_down;
}

bool interleaves(Part part) { return part == Part::query || part == Part::key; }

/// DeepSeek-V3 ships layers for predicting several tokens after the decoder's own.
bool beyond_last_layer(const DecoderConfig& config, const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (config.architecture != "deepseek_v3" || !name.starts_with(kLayers)) return false;
  return std::atoll(name.c_str() + kLayers.size()) >= config.layers;
}

bool ignorable(const Architecture& architecture, const DecoderConfig& config, bool gguf, const std::string& name) {
  const auto is = [&](const char* other) { return name == other; };
  for (const char* suffix : kIgnoredSuffixes) {
    if (name.ends_with(suffix)) return true;
  }
  if (gguf && std::any_of(std::begin(kIgnoredGguf), std::end(kIgnoredGguf), is)) return true;
  if (!gguf && beyond_last_layer(config, name)) return true;
  // A redundant copy of tied weights.
  for (const std::span<const TensorRule> rules : architecture.rules) {
    for (const TensorRule& rule : rules) {
      if (rule.presence == Presence::untied && config.tied_embeddings && is(gguf ? rule.gguf : rule.hf)) return true;
    }
  }
  return false;
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

std::vector<int> DecoderConfig::cached_layers() const {
  std::vector<int> numbers;
  for (size_t l = 0; l < kinds.size(); ++l) {
    if (kinds[l].attends) numbers.push_back(static_cast<int>(l));
  }
  return numbers;
}

bool Architecture::qk_norm() const {
  return std::any_of(rules.begin(), rules.end(), [](std::span<const TensorRule> part) {
    return std::any_of(part.begin(), part.end(), [](const TensorRule& rule) { return rule.part == Part::key_norm; });
  });
}

const Architecture& find_architecture(const std::string& name, const std::string& place) {
  std::string known;
  for (const Architecture& architecture : architectures()) {
    if (architecture.name == name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  for (const Wrapper& wrapper : wrappers()) known += ", " + std::string(wrapper.name);
  throw bad_input(place, name.empty() ? "no architecture is named" : "architecture " + name, "one of: " + known,
                  "kvcc models lists what is supported");
}

const Architecture& find_gguf_architecture(const std::string& name, Router router, const std::string& place) {
  std::string known;
  const Architecture* named = nullptr;
  for (const Architecture& architecture : architectures()) {
    if (architecture.gguf == name) {
      if (architecture.router == router) return architecture;
      if (named == nullptr) named = &architecture;
    }
    if (known.find(architecture.gguf) == std::string::npos) {
      known += (known.empty() ? "" : ", ") + std::string(architecture.gguf);
    }
  }
  if (named != nullptr && (named->router == Router::none) == (router == Router::none)) return *named;
  if (named != nullptr) {
    throw bad_input(place,
                    router == Router::none ? "no experts in architecture " + name : "experts in architecture " + name,
                    "what this architecture has");
  }
  throw bad_input(place, name.empty() ? "no architecture is named" : "architecture " + name, "one of: " + known,
                  "kvcc models lists what is supported");
}

std::vector<int64_t> ExpectedTensor::gguf_shape() const {
  std::vector<int64_t> extents;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1 || shape.size() < 3) extents.push_back(shape[i]);
  }
  return extents;
}

std::vector<ExpectedTensor> expected_tensors(const Architecture& architecture, const DecoderConfig& config) {
  std::vector<ExpectedTensor> expected;
  const auto add = [&](const TensorRule& rule, int64_t layer, int64_t expert) {
    ExpectedTensor tensor{
        filled(rule.hf, layer, expert), filled(rule.gguf, layer, expert), {}, 0, rule.part, layer, expert, false};
    for (const Extent e : rule.shape) {
      if (e != Extent::none) tensor.shape.push_back(extent(e, config));
    }
    if (architecture.gguf_interleaves && interleaves(rule.part)) {
      tensor.interleaved_heads = rule.part == Part::query ? config.query_heads : config.kv_heads;
    }
    expected.push_back(tensor);
    if (!has_bias(rule.bias, config)) return;
    constexpr size_t kWeight = sizeof("weight") - 1;
    tensor.hf.replace(tensor.hf.size() - kWeight, kWeight, "bias");
    tensor.gguf.replace(tensor.gguf.size() - kWeight, kWeight, "bias");
    tensor.shape.resize(1);
    tensor.is_bias = true;
    expected.push_back(std::move(tensor));
  };
  const auto add_all = [&](int64_t layer) {
    for (const std::span<const TensorRule> rules : architecture.rules) {
      for (const TensorRule& rule : rules) {
        if (of_layer(rule) != (layer >= 0) || !present(rule.presence, config, layer)) continue;
        const int64_t experts = of_expert(rule) ? config.experts.count : 0;
        if (experts == 0) add(rule, layer, -1);
        for (int64_t e = 0; e < experts; ++e) add(rule, layer, e);
      }
    }
  };
  for (int64_t layer = -1; layer < config.layers; ++layer) add_all(layer);
  return expected;
}

void check_tensors(const std::string& place, const Architecture& architecture, const DecoderConfig& config,
                   const std::vector<ExpectedTensor>& expected, bool gguf_names,
                   const std::vector<FoundTensor>& found) {
  std::map<std::string, const FoundTensor*> left;
  for (const FoundTensor& tensor : found) left[tensor.name] = &tensor;
  std::vector<std::string> missing, wrong, unused;
  for (const ExpectedTensor& want : expected) {
    if (gguf_names && want.expert > 0) continue;  // slices of one tensor
    const std::string& name = gguf_names ? want.gguf : want.hf;
    std::vector<int64_t> shape = gguf_names ? want.gguf_shape() : want.shape;
    if (gguf_names && want.expert == 0) shape.insert(shape.begin(), config.experts.count);
    const auto it = left.find(name);
    if (it == left.end()) {
      missing.push_back(name + " " + shape_text(shape));
      continue;
    }
    if (!it->second->bad_type.empty()) {
      wrong.push_back(name + " has type " + it->second->bad_type);
    } else if (it->second->shape != shape) {
      wrong.push_back(name + " is " + shape_text(it->second->shape) + ", not " + shape_text(shape));
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
  const auto check = [&](bool needed, const char* name, int64_t value, int64_t least, int64_t most) {
    if (!needed || (value >= least && value <= most)) return;
    throw bad_input(place, std::string(name) + " is " + std::to_string(value),
                    "from " + std::to_string(least) + " to " + std::to_string(most));
  };
  const ExpertsConfig& e = c.experts;
  const bool experts = e.count > 0;
  check(true, "number of experts", e.count, 0, 4096);
  check(experts, "experts of a token", e.used, 1, e.count);
  check(experts, "experts in all layers", e.count * c.layers, 1, 1 << 20);
  check(experts, "feed-forward size of experts", e.feed_forward, 1, kLargest);
  check(experts, "feed-forward size of shared experts", e.shared_feed_forward, 0, kLargest);
  check(experts, "groups of experts", e.groups, 1, e.count);
  check(experts, "groups of experts of a token", e.groups_used, 1, e.groups);
  if (experts && e.count % e.groups != 0) {
    throw bad_input(place, std::to_string(e.count) + " experts in " + std::to_string(e.groups) + " groups",
                    "groups of one size");
  }
  check(experts, "experts of a token", e.used, 1, e.count / std::max<int64_t>(e.groups, 1) * e.groups_used);
  check(c.latent.used, "rank of the latent", c.value_head_dim, 1, 65536);
  check(c.latent.used, "rank of the queries' latent", c.latent.query_rank, 0, kLargest);
  check(c.latent.used, "channels of a head without rotation", c.latent.nope_dim, 1, 65536);
  check(c.latent.used, "channels of a head's value", c.latent.value_dim, 1, 65536);
  check(c.sliding_window != 0, "sliding window", c.sliding_window, 1, INT64_MAX);
  check(c.cached_layers().size() < c.kinds.size(), "tokens of the convolutions", c.convolution, 1, 65536);
  check(true, "number of layers with attention", static_cast<int64_t>(c.cached_layers().size()), 1, 65535);
  for (const auto& [name, value] : {std::pair{"embedding multiplier", c.embedding_scale},
                                    {"residual multiplier", c.residual_scale},
                                    {"logits scaling", c.logit_scale}}) {
    if (!(value > 0) || !(value < 1e30)) {
      throw bad_input(place, std::string(name) + " is " + std::to_string(value), "a positive number");
    }
  }
  for (const auto& [name, value] : {std::pair{"scale of attention", c.attention_scale},
                                    {"soft cap of attention", c.attention_softcap},
                                    {"soft cap of logits", c.logit_softcap}}) {
    if (!(value >= 0) || !(value < 1e30)) {
      throw bad_input(place, std::string(name) + " is " + std::to_string(value), "a positive number");
    }
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
