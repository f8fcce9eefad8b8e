#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/core/error.h"
#include "formats/export/export.h"

namespace kvcc {
namespace {

constexpr double kLargest = 448;  ///< of e4m3

/// Largest magnitude of every channel of one head.
std::vector<double> magnitudes(const TensorStats& stats, size_t head, size_t dim) {
  std::vector<double> out(dim);
  for (size_t c = 0; c < dim; ++c) {
    out[c] = std::max(std::fabs(double{stats.min[head * dim + c]}), std::fabs(double{stats.max[head * dim + c]}));
  }
  return out;
}

/// A rotation keeps the length of each pair of channels, so that no key after RoPE exceeds the longest pair.
double after_rope(const std::vector<double>& channels, const RopeInfo& rope) {
  const auto rotary = static_cast<size_t>(rope.rotary_dim), half = rotary / 2;
  double most = 0;
  for (size_t i = 0; i < half; ++i) {
    const size_t a = rope.kind == "interleaved" ? 2 * i : i, b = rope.kind == "interleaved" ? 2 * i + 1 : i + half;
    most = std::max(most, std::hypot(channels[a], channels[b]));
  }
  for (size_t c = rotary; c < channels.size(); ++c) most = std::max(most, channels[c]);
  return most;
}

/// These scalings change angles alone; yarn and longrope lengthen keys too, by a factor that the artifact doesn't hold.
void check_scaling(const RopeInfo& rope) {
  for (const char* name : {"none", "linear", "dynamic", "llama3"}) {
    if (rope.scaling == name) return;
  }
  throw bad_input("rope scaling " + rope.scaling, "may lengthen keys by a factor of its own",
                  "none, linear, dynamic or llama3, which turn them only");
}

void put_scales(Tree& tree, const Codebook& codebook, bool key, bool per_head) {
  const TensorStats& stats = (key ? codebook.key : codebook.value).stats;
  const CacheShape& shape = codebook.model.shape;
  const auto heads = static_cast<size_t>(shape.kv_heads);
  const auto dim = static_cast<size_t>(key ? shape.head_dim : shape.value_head_dim);
  const char* name = key ? "k_scale" : "v_scale";
  if (stats.min.empty() || stats.max.empty()) {
    throw bad_input(key ? "/key/stats/min" : "/value/stats/min", "the artifact has no ranges",
                    "stats/min and stats/max", "kvcc fit writes them");
  }
  for (size_t l = 0; l < static_cast<size_t>(shape.layers); ++l) {
    std::vector<double> ranges(heads);
    for (size_t h = 0; h < heads; ++h) {
      const std::vector<double> channels = magnitudes(stats, l * heads + h, dim);
      ranges[h] = key ? after_rope(channels, codebook.model.rope) : *std::max_element(channels.begin(), channels.end());
    }
    if (!per_head) ranges = {*std::max_element(ranges.begin(), ranges.end())};
    const int layer = codebook.layer_index[l];
    std::vector<float> scales;
    for (size_t h = 0; h < ranges.size(); ++h) {
      scales.push_back(fp8_scale(
          ranges[h], fmt::format("{} of layer {}{}", name, layer, per_head ? fmt::format(" head {}", h) : "")));
    }
    TreeObject& object = tree[fmt::format("/model.layers.{}.self_attn.{}", layer, name)];
    object.dataset = true;
    object.value = array_value(Element::f32, {static_cast<int64_t>(scales.size())}, scales);
  }
}

}  // namespace

float fp8_scale(double range, const std::string& place) {
  auto scale = static_cast<float>(range / kLargest);
  if (double{scale} * kLargest < range) scale = std::nextafter(scale, INFINITY);
  if (!std::isnormal(scale) || scale < 0 || !std::isfinite(1 / scale)) {
    throw bad_input(place, fmt::format("a range of {:g} makes a scale of {:g}", range, scale),
                    "a finite scale above 0 that f32 can divide by",
                    "did the model and the text give such activations?");
  }
  return scale;
}

std::string codebook_to_vllm(const Tree& artifact, const Codebook& codebook, bool per_head) {
  check_scaling(codebook.model.rope);
  Tree tree;
  put_scales(tree, codebook, true, per_head);
  put_scales(tree, codebook, false, per_head);
  auto& root = tree["/"].attributes;
  root["format"] = text_value("pt");  // what loaders of model weights ask for
  root["content_sha256"] = text_value(codebook.content_sha256);
  root["format_version"] = text_value(codebook.format_version);
  root["scheme"] = text_value(to_string(codebook.scheme));
  for (const char* group : {"/model", "/provenance"}) tree[group].attributes = artifact.at(group).attributes;
  tree = describe_export(std::move(tree), codebook);
  auto& about = tree["/export"].attributes;
  about["key_scale"] = text_value("dequantisation multiplier: key = e4m3 * k_scale");
  about["value_scale"] = text_value("dequantisation multiplier: value = e4m3 * v_scale");
  about["granularity"] = text_value(per_head ? "one per KV head" : "one per tensor, the largest over heads");
  about["key_range"] =
      text_value("bound after RoPE: the largest sqrt(a^2 + b^2) over rotary pairs, a and b the ranges before RoPE");
  about["value_range"] = text_value("largest magnitude on the calibration text");
  return tree_to_safetensors(tree);
}

std::string vllm_cache_scheme(bool per_head) {
  nlohmann::ordered_json scheme;
  scheme["num_bits"] = 8;
  scheme["type"] = "float";
  scheme["strategy"] = per_head ? "attn_head" : "tensor";
  scheme["dynamic"] = false;
  scheme["symmetric"] = true;
  nlohmann::ordered_json document;
  document["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                     {"config_groups", nlohmann::ordered_json::object()},
                                     {"ignore", nlohmann::ordered_json::array()},
                                     {"kv_cache_scheme", scheme}};
  return document.dump(2) + "\n";
}

}  // namespace kvcc
