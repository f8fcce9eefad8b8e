#include "calib/model/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "formats/core/error.h"

namespace kvcc {

void KvTap::before_rope(int, at::Tensor&, at::Tensor&) {}
void KvTap::after_rope(int, at::Tensor&) {}
at::Tensor KvTap::attend(int, const at::Tensor&, const at::Tensor&, const at::Tensor&, const AttentionRule&) {
  return {};
}

KvCache::KvCache(int64_t layers, int64_t capacity) : key_(layers), value_(layers), capacity_(capacity) {}

uint64_t KvCache::bytes(const DecoderConfig& c, int64_t batch, int64_t capacity) {
  return 2ull * sizeof(float) * c.layers * batch * c.kv_heads * capacity * c.head_dim;
}

Decoder::Decoder(const ModelFiles& files)
    : files_(files), description_(describe_decoder(files.config.architecture)), rope_(files.config.rope) {
  const TensorNames& names = description_.names;
  const DecoderConfig& c = files.config;
  embedding_ = load(names.embedding);
  final_norm_ = load(names.final_norm);
  head_ = c.tied_embeddings ? embedding_ : load(names.head);
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string prefix = names.layer + std::to_string(l) + ".";
    layers_.push_back(
        {load(prefix + names.attention_norm), load(prefix + names.mlp_norm),
         load_linear(prefix + names.query, c.attention_bias), load_linear(prefix + names.key, c.attention_bias),
         load_linear(prefix + names.value, c.attention_bias), load_linear(prefix + names.output, c.attention_bias),
         load_linear(prefix + names.gate, c.mlp_bias), load_linear(prefix + names.up, c.mlp_bias),
         load_linear(prefix + names.down, c.mlp_bias)});
  }
}

at::Tensor Decoder::load(const std::string& name) {
  const TensorInfo* info = files_.tensors->find(name);
  if (info == nullptr) throw bad_input(files_.path, "no tensor " + name);
  const std::span<const std::byte> raw = files_.tensors->raw(name);
  if (info->type == WeightType::f32 && !raw.empty() && reinterpret_cast<uintptr_t>(raw.data()) % alignof(float) == 0) {
    // Read only: nothing here writes to a weight, so dropping const is safe. The map lives as long as files_.
    return at::from_blob(const_cast<std::byte*>(raw.data()), info->shape, at::kFloat);
  }
  at::Tensor weight = at::empty(info->shape, at::kFloat);
  files_.tensors->read(name, {weight.mutable_data_ptr<float>(), static_cast<size_t>(weight.numel())});
  return weight;
}

Linear Decoder::load_linear(const std::string& name, bool bias) {
  return {load(name + ".weight"), bias ? load(name + ".bias") : at::Tensor()};
}

at::Tensor Decoder::norm(const at::Tensor& x, const at::Tensor& weight) const {
  switch (description_.norm) {
    case NormKind::rms:
      return weight * (x * (x.pow(2).mean(-1, true) + files_.config.norm_epsilon).rsqrt());
  }
  throw Error(ErrorKind::failed, "decoder", "norm without code");
}

at::Tensor Decoder::embed(const at::Tensor& ids) const {
  const at::Tensor wide = ids.to(at::kLong);
  const at::Tensor wrong = (wide < 0).logical_or(wide >= config().vocab);
  if (wrong.any().item<bool>()) {
    const int64_t first = wide.masked_select(wrong)[0].item<int64_t>();
    throw bad_input("token ids", "id " + std::to_string(first), "0 to " + std::to_string(config().vocab - 1),
                    "the ids belong to another tokenizer");
  }
  return at::embedding(embedding_, wide);
}

Decoder::Rows Decoder::project_rows(const Layer& w, const at::Tensor& x) const {
  const DecoderConfig& c = config();
  const int64_t batch = x.size(0), tokens = x.size(1);
  const at::Tensor normed = norm(x, w.attention_norm);
  return {project(normed, w.query).view({batch, tokens, c.query_heads, c.head_dim}),
          project(normed, w.key).view({batch, tokens, c.kv_heads, c.head_dim}),
          project(normed, w.value).view({batch, tokens, c.kv_heads, c.head_dim})};
}

at::Tensor Decoder::finish(const Layer& w, const at::Tensor& x, const at::Tensor& mixed) const {
  const at::Tensor middle = x + project(mixed.reshape({x.size(0), x.size(1), -1}), w.output);
  const at::Tensor normed = norm(middle, w.mlp_norm);
  switch (description_.mlp) {
    case MlpKind::swiglu:
      return middle + project(at::silu(project(normed, w.gate)) * project(normed, w.up), w.down);
  }
  throw Error(ErrorKind::failed, "decoder", "MLP without code");
}

at::Tensor Decoder::layer(int index, const at::Tensor& x, const Rope::Angles& angles, KvTap* tap,
                          KvCache* cache) const {
  const Layer& w = layers_.at(index);
  const DecoderConfig& c = config();
  const int64_t batch = x.size(0), tokens = x.size(1);
  auto [query, key, value] = project_rows(w, x);
  if (tap != nullptr) tap->before_rope(index, key, value);
  query = rope_.rotate(query, angles);
  key = rope_.rotate(key, angles);
  if (tap != nullptr) {
    tap->after_rope(index, key);
    if (cache == nullptr) {
      if (const at::Tensor mixed = tap->attend(index, query, key, value, {}); mixed.defined())
        return finish(w, x, mixed);
    }
  }
  query = query.transpose(1, 2);
  key = key.transpose(1, 2);
  value = value.transpose(1, 2);
  bool causal = true;
  if (cache != nullptr) {
    const int64_t length = cache->length_;
    if (length > 0 && tokens > 1) {
      throw Error(ErrorKind::failed, "decoder", "more than one token after the first pass of a cache");
    }
    if (length + tokens > cache->capacity_) throw Error(ErrorKind::failed, "decoder", "the cache is full");
    for (auto [store, now] : {std::pair{&cache->key_[index], &key}, std::pair{&cache->value_[index], &value}}) {
      if (!store->defined()) *store = at::empty({batch, c.kv_heads, cache->capacity_, c.head_dim}, at::kFloat);
      store->narrow(2, length, tokens).copy_(*now);
      *now = store->narrow(2, 0, length + tokens);
    }
    causal = length == 0;
  }
  const at::Tensor mixed =
      at::scaled_dot_product_attention(query, key, value, {}, 0.0, causal, std::nullopt, c.query_heads != c.kv_heads);
  return finish(w, x, mixed.transpose(1, 2));
}

at::Tensor Decoder::layer(int index, const at::Tensor& x, const Rope::Angles& angles, int64_t first,
                          AttentionCache& cache) const {
  const Layer& w = layers_.at(index);
  const auto [query, key, value] = project_rows(w, x);
  const at::Tensor mixed = cache.attend(index, first, rope_.rotate(query, angles)[0].contiguous(), key[0].contiguous(),
                                        value[0].contiguous());
  return finish(w, x, mixed);
}

at::Tensor Decoder::final_norm(const at::Tensor& x) const { return norm(x, final_norm_); }

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
  const auto look = [&](const std::string& name, const at::Tensor& weight) {
    if (!weight.defined()) return;
    const at::Tensor rows = at::isfinite(weight).view({weight.size(0), -1}).all(1).logical_not();
    if (!rows.any().item<bool>()) return;
    text += (text.empty() ? "" : ", ") + name + " row " + std::to_string(rows.nonzero()[0].item<int64_t>());
  };
  const TensorNames& names = description_.names;
  if (index < 0) {
    look(names.embedding, embedding_);
    look(names.final_norm, final_norm_);
    if (!config().tied_embeddings) look(names.head, head_);
    return text;
  }
  const Layer& w = layers_.at(index);
  const std::string prefix = names.layer + std::to_string(index) + ".";
  look(prefix + names.attention_norm, w.attention_norm);
  look(prefix + names.mlp_norm, w.mlp_norm);
  for (const auto& [name, part] : {std::pair<const char*, const Linear&>{names.query, w.query},
                                   {names.key, w.key},
                                   {names.value, w.value},
                                   {names.output, w.output},
                                   {names.gate, w.gate},
                                   {names.up, w.up},
                                   {names.down, w.down}}) {
    look(prefix + name + ".weight", part.weight);
    look(prefix + name + ".bias", part.bias);
  }
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
  if (rows > tokens) mask = at::ones({tokens, rows}, at::kBool).tril(rows - tokens);
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
