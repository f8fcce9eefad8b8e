#include "calib/eval/incremental_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>
#include <vector>

#include "calib/eval/vector_quantiser.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

std::span<float> numbers(at::Tensor& x) { return {x.mutable_data_ptr<float>(), static_cast<size_t>(x.numel())}; }

}  // namespace

IncrementalCache::IncrementalCache(const Rope& rope, int sink, int residual, bool turns_keys, int threads)
    : rope_(rope), sink_(sink), residual_(residual), turns_keys_(turns_keys), threads_(threads) {}

IncrementalCache::IncrementalCache(const Codebook& codebook, const Rope& rope, int layers, int threads)
    : IncrementalCache(rope, codebook.scheme.sink, codebook.scheme.residual, codebook.scheme.key.site == Site::pre_rope,
                       threads) {
  layers_.resize(layers);
  if (codebook.layer_index.size() != layers_.size()) {
    throw bad_input("codebook", std::to_string(codebook.layer_index.size()) + " layers",
                    "all " + std::to_string(layers) + " of the model");
  }
  for (size_t row = 0; row < layers_.size(); ++row) {
    Layer& layer = layers_.at(codebook.layer_index[row]);
    layer.key.codec = codec_of(codebook, row, CacheTensor::key);
    layer.value.codec = codec_of(codebook, row, CacheTensor::value);
    layer.prediction = key_prediction(codebook, row);
  }
}

IncrementalCache::IncrementalCache(const Scheme& scheme, const CacheShape& shape, const Rope& rope, int threads,
                                   const SpectralRotations* rotations)
    : IncrementalCache(rope, scheme.sink, scheme.residual, scheme.key.site == Site::pre_rope, threads) {
  layers_.resize(shape.layers);
  const auto keys = codecs_of(scheme, shape, CacheTensor::key, shape.layers, rotations);
  const auto values = codecs_of(scheme, shape, CacheTensor::value, shape.layers, rotations);
  for (int l = 0; l < shape.layers; ++l) {
    layers_[l].key.codec = keys[l];
    layers_[l].value.codec = values[l];
  }
}

IncrementalCache IncrementalCache::half(const CacheShape& shape, const Rope& rope, int threads) {
  IncrementalCache cache(rope, 0, 0, true, threads);
  cache.layers_.resize(shape.layers);
  for (Layer& layer : cache.layers_) {
    layer.key.codec = make_half_codec(shape.kv_heads, shape.head_dim);
    layer.value.codec = make_half_codec(shape.kv_heads, shape.value_head_dim);
  }
  return cache;
}

at::Tensor IncrementalCache::attend(int index, int64_t first, const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value) {
  const int64_t tokens = query.size(0);
  // Where the exact tail is another one for each token.
  if (tokens > 1 && !(at_once(layers_.at(index).key) && at_once(layers_.at(index).value))) {
    std::vector<at::Tensor> mixed;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto row = [&](const at::Tensor& x) { return x.narrow(0, t, 1); };
      mixed.push_back(attend(index, first + t, row(query), row(key), row(value)));
    }
    return at::cat(mixed);
  }
  append(index, first, key, value);
  const Layer& layer = layers_.at(index);
  return causal_attention(query, layer.key.store.narrow(1, 0, layer.length),
                          layer.value.store.narrow(1, 0, layer.length));
}

void IncrementalCache::append(int index, int64_t first, const at::Tensor& key, const at::Tensor& value) {
  Layer& layer = layers_.at(index);
  if (first != layer.length) throw Error(ErrorKind::failed, "simulated cache", "tokens out of order");
  const std::string place = "layer " + std::to_string(index);
  const at::Tensor coded =
      add(layer.key, turns_keys_ ? index : -1, first, turns_keys_ ? key : turned(index, first, key), place + " key");
  at::Tensor predicted;
  if (!layer.prediction.empty() && coded.defined()) {
    predicted = at::empty({coded.size(0), value.size(1), value.size(2)}, at::kFloat);
    const at::Tensor keys = coded.contiguous();
    layer.prediction.predict({keys.const_data_ptr<float>(), static_cast<size_t>(keys.numel())}, numbers(predicted),
                             threads_);
  }
  add(layer.value, -1, first, value, place + " value", predicted);
  layer.length += key.size(0);
}

std::pair<at::Tensor, at::Tensor> IncrementalCache::read(int index, int64_t count) const {
  const Layer& layer = layers_.at(index);
  return {layer.key.store.narrow(1, 0, count).transpose(0, 1), layer.value.store.narrow(1, 0, count).transpose(0, 1)};
}

at::Tensor IncrementalCache::add(Rows& rows, int turn, int64_t first, const at::Tensor& x, const std::string& place,
                                 const at::Tensor& predicted) {
  if (!rows.codec) {
    put(rows, turn, first, x);
    return {};
  }
  const int64_t tokens = x.size(0), end = first + tokens;
  at::Tensor now = x.clone();
  const int64_t exact = std::clamp<int64_t>(sink_ - first, 0, tokens);  // of the sinks
  at::Tensor sinks = now.narrow(0, 0, exact), rest = now.narrow(0, exact, tokens - exact);
  round_to_record(numbers(sinks), numbers(sinks), place + ", first tokens");
  if (at_once(rows)) {
    quantise(rows, rest, place, first + exact, predicted);
    put(rows, turn, first, now);
    return rest;
  }
  round_to_record(numbers(rest), numbers(rest), place + ", last tokens");
  put(rows, turn, first, now);
  rows.coded = std::max(rows.coded, std::min(sink_, end));
  rows.waiting = rows.waiting.defined() ? at::cat({rows.waiting, rest}) : rest.clone();
  const int64_t coded = coded_end(end, sink_, residual_, rows.codec->block_tokens());
  if (coded <= rows.coded) return {};
  const int64_t count = coded - rows.coded;
  at::Tensor leaving = rows.waiting.narrow(0, 0, count).clone();
  quantise(rows, leaving, place, rows.coded, predicted);
  put(rows, turn, rows.coded, leaving);
  rows.waiting = rows.waiting.narrow(0, count, rows.waiting.size(0) - count).clone();
  rows.coded = coded;
  return leaving;
}

void IncrementalCache::quantise(const Rows& rows, at::Tensor& x, const std::string& place, int64_t first,
                                const at::Tensor& predicted) const {
  if (predicted.defined()) x.sub_(predicted);
  rows.codec->round_trip(numbers(x), numbers(x), threads_, place, first);
  if (predicted.defined()) x.add_(predicted);
}

void IncrementalCache::put(Rows& rows, int turn, int64_t first, const at::Tensor& x) {
  const int64_t tokens = x.size(0), end = first + tokens, capacity = rows.store.defined() ? rows.store.size(1) : 0;
  if (end > capacity) {
    at::Tensor larger = at::empty({x.size(1), std::max<int64_t>({end, 2 * capacity, 256}), x.size(2)}, at::kFloat);
    if (first > 0) larger.narrow(1, 0, first).copy_(rows.store.narrow(1, 0, first));
    rows.store = larger;
  }
  const at::Tensor seen = turn >= 0 ? turned(turn, first, x) : x;
  rows.store.narrow(1, first, tokens).copy_(seen.transpose(0, 1));
}

at::Tensor IncrementalCache::turned(int layer, int64_t first, const at::Tensor& key) {
  if (angles_first_ != first || angles_count_ != key.size(0)) {  // all layers ask for the same ones
    angles_ = rope_.angles(first, key.size(0));
    angles_first_ = first;
    angles_count_ = key.size(0);
  }
  return rope_.rotate(key.unsqueeze(0), angles_, layer)[0];
}

}  // namespace kvcc
