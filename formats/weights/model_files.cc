#include "formats/weights/model_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/weights/architecture.h"
#include "formats/weights/model_sources.h"

namespace kvcc {
namespace {

constexpr size_t kHashChunk = 64 << 20;  // bytes

namespace fs = std::filesystem;

// The name of a type in DecoderConfig's world: torch's for what safetensors hold, ggml's for GGUF.
std::string dtype_name(WeightType type, bool gguf) {
  if (!gguf && type == WeightType::f32) return "float32";
  if (!gguf && type == WeightType::f16) return "float16";
  if (!gguf && type == WeightType::bf16) return "bfloat16";
  return weight_type_name(type);
}

std::string main_dtype(const TensorSource& tensors, bool gguf) {
  std::map<WeightType, int64_t> elements;
  for (const TensorInfo& tensor : tensors.tensors()) elements[tensor.type] += tensor.elements();
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == elements.end() ? "" : dtype_name(most->first, gguf);
}

}  // namespace

int64_t TensorInfo::elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

const TensorInfo* TensorSource::find(const std::string& name) const {
  const std::vector<TensorInfo>& all = tensors();
  const auto it = std::lower_bound(all.begin(), all.end(), name,
                                   [](const TensorInfo& a, const std::string& b) { return name_less(a.name, b); });
  return it != all.end() && it->name == name ? &*it : nullptr;
}

ModelFiles open_model(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (!fs::exists(status)) {
    throw bad_input(path, "no such file or folder", "a Hugging Face model directory or a .gguf file");
  }
  const bool folder = fs::is_directory(status);
  ModelFiles files = folder ? open_directory_model(path) : open_gguf_model(path);
  files.dtype = main_dtype(*files.tensors, !folder);
  return files;
}

std::string decoder_json(const DecoderConfig& config) {
  nlohmann::ordered_json document{{"hidden", config.hidden},
                                  {"feed_forward", config.feed_forward},
                                  {"vocab", config.vocab},
                                  {"norm_epsilon", config.norm_epsilon},
                                  {"tied_embeddings", config.tied_embeddings},
                                  {"attention_bias", config.attention_bias},
                                  {"mlp_bias", config.mlp_bias},
                                  {"max_position", config.max_position}};
  // Members that not all decoders have are there where they say something.
  const DecoderConfig plain;
  const auto add = [&](const char* name, const auto& value, const auto& usual) {
    if (value != usual) document[name] = value;
  };
  add("activation", config.activation == Activation::gelu_tanh ? "gelu_tanh" : "silu", std::string("silu"));
  add("embedding_scale", config.embedding_scale, plain.embedding_scale);
  add("residual_scale", config.residual_scale, plain.residual_scale);
  add("logit_scale", config.logit_scale, plain.logit_scale);
  add("attention_scale", config.attention_scale, plain.attention_scale);
  add("attention_softcap", config.attention_softcap, plain.attention_softcap);
  add("logit_softcap", config.logit_softcap, plain.logit_softcap);
  add("sliding_window", config.sliding_window, plain.sliding_window);
  add("convolution", config.convolution, plain.convolution);
  if (config.experts != plain.experts) {
    const ExpertsConfig& e = config.experts;
    document["experts"] = {{"count", e.count},
                           {"used", e.used},
                           {"feed_forward", e.feed_forward},
                           {"shared_feed_forward", e.shared_feed_forward},
                           {"sigmoid", e.sigmoid},
                           {"normalise", e.normalise},
                           {"scale", e.scale},
                           {"groups", e.groups},
                           {"groups_used", e.groups_used}};
  }
  if (config.latent.used) {
    document["latent"] = {{"query_rank", config.latent.query_rank},
                          {"nope_dim", config.latent.nope_dim},
                          {"value_dim", config.latent.value_dim}};
  }
  const auto layers = [&](const char* name, auto&& has) {
    std::vector<int> numbers;
    for (size_t l = 0; l < config.kinds.size(); ++l) {
      if (has(config.kinds[l])) numbers.push_back(static_cast<int>(l));
    }
    if (!numbers.empty()) document[name] = numbers;
  };
  layers("sliding_layers", [](const LayerKind& kind) { return kind.sliding; });
  layers("expert_layers", [](const LayerKind& kind) { return kind.experts; });
  layers("layers_without_cache", [](const LayerKind& kind) { return !kind.attends; });
  return document.dump();
}

ModelInfo model_info(const ModelFiles& files) {
  ModelInfo info;
  fs::path path = fs::path(files.path).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (path == "." || path == ".." || path.empty()) path = fs::absolute(files.path).lexically_normal();
  info.name = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  info.architecture = files.config.architecture;
  Sha256 hash;
  for (const std::string& name : files.weight_files) {
    const MappedFile file(name);
    for (std::span<const std::byte> left = file.bytes(); !left.empty();) {
      const std::span<const std::byte> now = left.first(std::min(kHashChunk, left.size()));
      hash.update(now.data(), now.size());
      file.release();  // weights may be larger than the memory a run is given
      left = left.subspan(now.size());
    }
  }
  files.tensors->check_unchanged(true);  // else the hash would be of other weights than those in use
  info.weights_sha256 = hash.hex();
  const DecoderConfig& config = files.config;
  const std::vector<int> cached = config.cached_layers();
  info.shape = {static_cast<int>(cached.size()), static_cast<int>(config.query_heads),
                static_cast<int>(config.kv_heads), static_cast<int>(config.head_dim),
                static_cast<int>(config.value_head_dim)};
  info.rope = config.rope;
  info.qk_norm = find_architecture(config.architecture, files.path).qk_norm();
  if (config.attention_bias) info.attention_bias = true;
  for (size_t row = 0; row < cached.size(); ++row) {
    if (config.kinds[cached[row]].sliding) info.sliding_window_layers.push_back(static_cast<int>(row));
  }
  info.dtype = files.dtype;
  return info;
}

}  // namespace kvcc
