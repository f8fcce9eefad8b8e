#include "calib/model/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "formats/core/error.h"
#include "formats/weights/projections.h"

namespace kvcc {

void KvTap::before_rope(int, at::Tensor&, at::Tensor&) {}
void KvTap::after_rope(int, at::Tensor&) {}
at::Tensor KvTap::attend(int, const at::Tensor&, const at::Tensor&, const at::Tensor&, const AttentionRule&) {
  return {};
}

KvCache::KvCache(int64_t layers, int64_t capacity) : key_(layers), value_(layers), capacity_(capacity) {}

uint64_t KvCache::bytes(const DecoderConfig& c, int64_t batch, int64_t capacity) {
  return sizeof(float) * c.cached_layers().size() * batch * c.kv_heads * capacity * (c.head_dim + c.value_head_dim);
}

Decoder::Decoder(const ModelFiles& files, DecoderOptions options)
    : files_(files), options_(options), rope_(files.config.rope) {
  load_all();
}

void Decoder::load_all() {
  const int64_t layers = options_.layers > 0 ? std::min<int64_t>(options_.layers, config().layers) : config().layers;
  layers_.resize(static_cast<size_t>(layers));
  const Architecture& architecture = find_architecture(config().architecture, files_.path);
  std::string embedding;
  for (const ExpectedTensor& tensor : expected_tensors(architecture, config())) {
    if (tensor.layer >= layers) continue;
    load(tensor);
    release();  // what was converted is not read again
    if (tensor.part == Part::embedding) embedding = tensor.hf;
  }
  head_ = ends_[config().tied_embeddings ? Part::embedding : Part::head];
  if (!config().tied_embeddings || !options_.bf16) return;
  if (options_.streamed) {
    head_.stored = std::make_shared<StoredWeight>(*files_.tensors, embedding, at::kBFloat16, options_.device);
  } else {
    head_.weight = read_weight(*files_.tensors, embedding, at::kBFloat16).to(options_.device);
  }
}

void Decoder::load(const ExpectedTensor& tensor) {
  constexpr Part kNorms[] = {Part::attention_norm,  Part::attention_post_norm, Part::mlp_norm,
                             Part::mlp_post_norm,   Part::query_norm,          Part::key_norm,
                             Part::query_down_norm, Part::latent_norm,         Part::final_norm};
  DecoderLayer& layer = tensor.layer < 0 ? ends_ : layers_[static_cast<size_t>(tensor.layer)];
  if (tensor.expert >= 0) layer.experts.resize(static_cast<size_t>(config().experts.count));
  Linear& part = linear_of(tensor);
  const bool matrix = tensor.shape.size() == 2 && !tensor.is_bias;
  // Rows of the embedding are looked up, and a router's few products decide which experts run.
  const bool exact = !matrix || tensor.part == Part::embedding || tensor.part == Part::router;
  const at::ScalarType type = options_.bf16 && !exact ? at::kBFloat16 : at::kFloat;
  if (matrix && options_.streamed) {
    if (files_.tensors->find(tensor.hf) == nullptr) throw bad_input(files_.path, "no tensor " + tensor.hf);
    part.stored = std::make_shared<StoredWeight>(*files_.tensors, tensor.hf, type, options_.device);
    layer.named.emplace_back(tensor.hf, at::Tensor());
    return;
  }
  at::Tensor weight = read_weight(*files_.tensors, tensor.hf, type).to(options_.device);
  if (config().norm_adds_one && std::find(std::begin(kNorms), std::end(kNorms), tensor.part) != std::end(kNorms)) {
    weight = 1.0 + weight;
  }
  layer.named.emplace_back(tensor.hf, weight);
  (tensor.is_bias ? part.bias : part.weight) = weight;
}

Linear& Decoder::linear_of(const ExpectedTensor& tensor) {
  DecoderLayer& layer = tensor.layer < 0 ? ends_ : layers_[static_cast<size_t>(tensor.layer)];
  if (tensor.expert < 0) return layer.parts[static_cast<size_t>(tensor.part)];
  const size_t which = tensor.part == Part::expert_gate ? 0 : tensor.part == Part::expert_up ? 1 : 2;
  return layer.experts[static_cast<size_t>(tensor.expert)][which];
}

const at::Tensor& Decoder::weight(const ExpectedTensor& projection) const {
  return const_cast<Decoder*>(this)->linear_of(projection).weight;  // which changes nothing
}

void Decoder::replace(const ExpectedTensor& projection, const at::Tensor& weight) {
  Linear& linear = linear_of(projection);
  linear.stored = nullptr;
  linear.weight = weight.to(options_.device, options_.bf16 ? at::kBFloat16 : at::kFloat);
  for (auto& [name, tensor] : layers_[static_cast<size_t>(projection.layer)].named) {
    if (name == projection.hf) tensor = linear.weight;
  }
}

void Decoder::watch(ProductGradients* watcher) {
  for (const ExpectedTensor& projection : projections(files_)) {
    if (projection.layer < layers()) linear_of(projection).watcher = watcher;
  }
}

at::Tensor Decoder::embed(const at::Tensor& ids) const {
  const at::Tensor wide = ids.to(at::kLong);
  const at::Tensor wrong = (wide < 0).logical_or(wide >= config().vocab);
  if (wrong.any().item<bool>()) {
    const int64_t first = wide.masked_select(wrong)[0].item<int64_t>();
    throw bad_input("token ids", "id " + std::to_string(first), "0 to " + std::to_string(config().vocab - 1),
                    "the ids belong to another tokenizer");
  }
  const Linear& embedding = ends_[Part::embedding];
  const at::Tensor rows =
      embedding.stored ? embedding.stored->rows(wide) : at::embedding(embedding.weight, wide.to(options_.device));
  return config().embedding_scale == 1 ? rows : rows * config().embedding_scale;
}

at::Tensor Decoder::finish(const DecoderLayer& w, const at::Tensor& x, const at::Tensor& added, Want want) const {
  const DecoderConfig& c = config();
  const auto scaled = [&](const at::Tensor& part) { return c.residual_scale == 1 ? part : part * c.residual_scale; };
  const at::Tensor middle = x + scaled(norm_if(c, w, Part::attention_post_norm, added));
  // What a norm follows is needed for the norm's gradient.
  const Want of_mlp = w.has(Part::mlp_post_norm) ? Want::value : want;
  const at::Tensor mlp = feed_forward(c, w, norm_if(c, w, Part::mlp_norm, middle), of_mlp);
  return middle + scaled(norm_if(c, w, Part::mlp_post_norm, mlp));
}

at::Tensor Decoder::rotate_query(const at::Tensor& query, const Rope::Angles& angles, int layer) const {
  const int64_t still = config().latent.used ? config().latent.nope_dim : 0;
  if (still == 0) return rope_.rotate(query, angles, layer);
  const at::Tensor turned = rope_.rotate(query.narrow(-1, still, query.size(-1) - still), angles, layer);
  return at::cat({query.narrow(-1, 0, still), turned}, -1);
}

at::Tensor Decoder::layer(int index, const at::Tensor& x, const Rope::Angles& angles, KvTap* tap,
                          KvCache* cache) const {
  return run(index, x, angles, tap, cache, Want::value);
}

at::Tensor Decoder::layer_again(int index, const at::Tensor& x, const Rope::Angles& angles, KvTap* tap) const {
  return run(index, x, angles, tap, nullptr, Want::gradient_alone);
}

at::Tensor Decoder::run(int index, const at::Tensor& x, const Rope::Angles& angles, KvTap* tap, KvCache* cache,
                        Want want) const {
  const DecoderLayer& w = layers_.at(index);
  const DecoderConfig& c = config();
  const int64_t batch = x.size(0), tokens = x.size(1);
  if (cache != nullptr) {
    if (cache->length_ > 0 && tokens > 1) {
      throw Error(ErrorKind::failed, "decoder", "more than one token after the first pass of a cache");
    }
    if (cache->length_ + tokens > cache->capacity_) throw Error(ErrorKind::failed, "decoder", "the cache is full");
  }
  const at::Tensor normed = norm_if(c, w, Part::attention_norm, x);
  if (!c.kinds[index].attends) return finish(w, x, convolve(c, w, normed, cache ? &cache->key_[index] : nullptr), want);
  auto [query, key, value] = project_rows(c, w, normed);
  if (tap != nullptr) tap->before_rope(index, key, value);
  query = rotate_query(query, angles, index);
  key = rope_.rotate(key, angles, index);
  const AttentionRule rule = rule_of(index);
  const auto after = [&](const at::Tensor& mixed) {
    return finish(w, x, project(mixed.reshape({batch, tokens, -1}), w[Part::output]), want);
  };
  if (tap != nullptr) {
    tap->after_rope(index, key);
    if (cache == nullptr) {
      if (const at::Tensor mixed = tap->attend(index, query, key, value, rule); mixed.defined()) return after(mixed);
    }
  }
  if (cache != nullptr) {
    const int64_t length = cache->length_;
    for (auto [store, now] : {std::pair{&cache->key_[index], &key}, std::pair{&cache->value_[index], &value}}) {
      if (!store->defined()) *store = at::empty({batch, c.kv_heads, cache->capacity_, now->size(3)}, now->options());
      store->narrow(2, length, tokens).copy_(now->transpose(1, 2));
      *now = store->narrow(2, 0, length + tokens).transpose(1, 2);
    }
  }
  if (rule.expand) std::tie(key, value) = rule.expand(key, value);
  return after(mix_values(rule, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)).transpose(1, 2));
}

AttentionRule Decoder::rule_of(int index) const {
  const DecoderConfig& c = config();
  AttentionRule rule;
  rule.scale = c.attention_scale;
  rule.window = c.kinds[index].sliding ? c.sliding_window : 0;
  rule.softcap = c.attention_softcap;
  if (c.latent.used) {
    rule.expand = [this, index](const at::Tensor& key, const at::Tensor& value) {
      return expand_latent(config(), layers_.at(index), key, value);
    };
  }
  return rule;
}

at::Tensor Decoder::layer(int index, const at::Tensor& x, const Rope::Angles& angles, int64_t first,
                          AttentionCache& cache) const {
  const DecoderLayer& w = layers_.at(index);
  const DecoderConfig& c = config();
  const int64_t tokens = x.size(1);
  const char* other = !c.kinds[index].attends             ? "a convolution in place of attention"
                      : c.latent.used                     ? "latent attention"
                      : c.attention_softcap > 0           ? "attention with a soft cap"
                      : c.windowed(index, first + tokens) ? "a sliding window shorter than the sequence"
                                                          : nullptr;
  if (other != nullptr) {
    throw Error(ErrorKind::usage, "layer " + std::to_string(index), other, "attention to all tokens before",
                "generation from a cache does not have it yet; kvcc collect and kvcc eval do");
  }
  auto [query, key, value] = project_rows(c, w, norm_if(c, w, Part::attention_norm, x));
  query = rope_.rotate(query, angles, index);
  if (c.attention_scale > 0) query = query * (c.attention_scale * std::sqrt(static_cast<double>(c.head_dim)));
  const at::Tensor mixed =
      cache.attend(index, first, query[0].contiguous(), key[0].contiguous(), value[0].contiguous());
  return finish(w, x, project(mixed.reshape({1, tokens, -1}), w[Part::output]), Want::value);
}

at::Tensor Decoder::final_norm(const at::Tensor& x) const { return norm_if(config(), ends_, Part::final_norm, x); }

at::Tensor Decoder::logits(const at::Tensor& normed, const at::Tensor& head) const {
  at::Tensor logits = times_transposed(normed, head);
  if (config().logit_scale != 1) logits = logits / config().logit_scale;
  if (config().logit_softcap > 0) logits = at::tanh(logits / config().logit_softcap) * config().logit_softcap;
  return logits;
}

at::Tensor Decoder::logits_backward(const at::Tensor& gradient, const at::Tensor& logits,
                                    const at::Tensor& head) const {
  at::Tensor inner = gradient;
  if (config().logit_softcap > 0) inner = inner * (1 - (logits / config().logit_softcap).square());
  if (config().logit_scale != 1) inner = inner / config().logit_scale;
  return times_transposed(inner, head.t());
}

at::Tensor Decoder::forward(const at::Tensor& ids, KvTap* tap) const {
  const c10::NoGradGuard no_gradient;
  const Rope::Angles angles = rope_.angles(0, ids.size(1));
  at::Tensor x = embed(ids);
  for (int l = 0; l < layers(); ++l) {
    check_interrupt();
    x = layer(l, x, angles, tap);
  }
  return final_norm(x);
}

std::string Decoder::nonfinite_weights(int index) const {
  std::string text;
  const auto look = [&](const std::string& name, at::Tensor weight) {
    if (!weight.defined()) weight = read_weight(*files_.tensors, name, at::kFloat);
    const at::Tensor rows = at::isfinite(weight).view({weight.size(0), -1}).all(1).logical_not();
    if (!rows.any().item<bool>()) return;
    text += (text.empty() ? "" : ", ") + name + " row " + std::to_string(rows.nonzero()[0].item<int64_t>());
  };
  for (const auto& [name, weight] : (index < 0 ? ends_ : layers_.at(index)).named) look(name, weight);
  return text;
}

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const int64_t tokens = query.size(0), heads = query.size(1), dim = query.size(2), rows = key.size(1);
  const at::Tensor keys = key.unsqueeze(0), values = value.unsqueeze(0);
  if (tokens == 1) {
    // The query heads of a key/value head as its rows: nothing is copied for each of them.
    const at::Tensor grouped = query.view({1, key.size(0), heads / key.size(0), dim});
    return at::scaled_dot_product_attention(grouped, keys, values).view({1, heads, value.size(2)});
  }
  std::optional<at::Tensor> mask;
  if (rows > tokens) mask = at::ones({tokens, rows}, query.options().dtype(at::kBool)).tril(rows - tokens);
  const at::Tensor mixed = at::scaled_dot_product_attention(query.transpose(0, 1).unsqueeze(0), keys, values, mask, 0.0,
                                                            !mask, std::nullopt, heads != key.size(0));
  return mixed[0].transpose(0, 1);
}

int64_t logits_chunk_rows(const DecoderConfig& c) {
  constexpr int64_t kChunkBytes = 64 << 20;
  return std::clamp<int64_t>(kChunkBytes / (static_cast<int64_t>(sizeof(float)) * c.vocab), 16, 512);
}

uint64_t loaded_bytes(const ModelFiles& files) {
  uint64_t bytes = 320ull << 20;  // libraries, allocator, oneDNN's scratch
  for (const TensorInfo& tensor : files.tensors->tensors()) bytes += tensor.elements() * sizeof(float);
  return bytes;
}

at::Tensor ids_tensor(const std::vector<int32_t>& ids) {
  at::Tensor tensor = at::empty({1, static_cast<int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

}  // namespace kvcc
