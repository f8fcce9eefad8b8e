#include "calib/eval/simulated_cache.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "calib/eval/vector_quantiser.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

template <typename T>
std::vector<T> row_of(const std::vector<T>& all, size_t row, size_t size) {
  if (all.empty()) return {};
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row * size);
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

}  // namespace

VectorQuantiser vector_quantiser(const Codebook& codebook, size_t row, CacheTensor tensor) {
  const bool key = tensor == CacheTensor::key;
  const TensorCodebooks& stored = key ? codebook.key : codebook.value;
  const CacheShape& shape = codebook.model.shape;
  const size_t n = static_cast<size_t>(stored.coordinates), all = n * stored.units;
  const std::vector<size_t> offsets = vector_offsets(stored, shape.layers);
  const auto* begin = stored.vectors.data();
  return {shape.kv_heads,
          key ? shape.head_dim : shape.value_head_dim,
          stored.units,
          row_of(stored.rotation_mean, row, all),
          row_of(stored.forward, row, all * n),
          row_of(stored.inverse, row, all * n),
          row_of(stored.group_width, row, all),
          row_of(stored.group_bits, row, all),
          std::vector<float>(begin + offsets[row], begin + offsets[row + 1])};
}

KeyPrediction key_prediction(const Codebook& codebook, size_t row) {
  const CacheShape& shape = codebook.model.shape;
  const TensorCodebooks& values = codebook.value;
  if (values.from_key.empty()) return {};
  const int keys = shape.kv_heads * shape.head_dim / values.units;
  const size_t each = static_cast<size_t>(values.units) * values.coordinates * keys;
  return {values.units, keys, values.coordinates, row_of(values.from_key, row, each)};
}

std::shared_ptr<const TensorCodec> codec_of(const Codebook& codebook, size_t row, CacheTensor tensor) {
  const bool key = tensor == CacheTensor::key;
  const TensorScheme& scheme = key ? codebook.scheme.key : codebook.scheme.value;
  const TensorCodebooks& stored = key ? codebook.key : codebook.value;
  const CacheShape& shape = codebook.model.shape;
  const int heads = shape.kv_heads, dim = key ? shape.head_dim : shape.value_head_dim;
  if (scheme.grid == Grid::vector) return make_codec(vector_quantiser(codebook, row, tensor));
  if (scheme.grid == Grid::full) return make_half_codec(heads, dim);
  const size_t channels = static_cast<size_t>(heads) * dim;
  LevelTable table{heads, stored.codes, row_of(stored.codebook, row, static_cast<size_t>(heads) * stored.codes),
                   row_of(stored.bits, row, heads)};
  if (codebook.scheme.qnorm) {
    apply_qnorm(table, row_of(stored.norm_scale, row, heads), row_of(stored.norm_offset, row, heads));
  }
  const int tail = outliers_per_tail(codebook.scheme.sparse, static_cast<int>(channels));
  if (scheme.axis == Axis::token) {
    return make_codec(TokenQuantiser{heads, dim, std::move(table), tail});
  }
  return make_codec(ChannelQuantiser{heads, dim, std::move(table), row_of(stored.scale, row, channels),
                                     row_of(stored.zero, row, channels), row_of(stored.threshold_lower, row, channels),
                                     row_of(stored.threshold_upper, row, channels), codebook.scheme.capped ? tail : 0});
}

std::shared_ptr<const TensorCodec> codec_of(const Scheme& scheme, const CacheShape& shape, CacheTensor tensor,
                                            int layer, const SpectralRotations* rotations) {
  const bool key = tensor == CacheTensor::key;
  const TensorScheme& part = key ? scheme.key : scheme.value;
  if (scheme.is_full()) return nullptr;
  if (scheme.needs_rotations() && rotations != nullptr) {
    const SpectralTensor& turned = (key ? rotations->key : rotations->value).at(layer);
    if (turned.rotation.empty()) return nullptr;  // no attention, no cache
    TensorScheme clipped = part;
    clipped.clip = turned.clip;
    return make_codec(clipped, shape.kv_heads, key ? shape.head_dim : shape.value_head_dim, turned.rotation);
  }
  if (scheme.needs_rotations()) {
    throw Error(ErrorKind::usage, "scheme " + short_name(scheme), "needs rotations made from calibration text",
                "a scheme that works on-line", "kvcc eval --calibration makes them");
  }
  if (scheme.needs_calibration()) {
    throw Error(ErrorKind::usage, "scheme " + short_name(scheme), "needs statistics of the model", "a codebook",
                "kvcc calibrate makes one; then --codebook FILE");
  }
  return make_codec(part.in_layer(layer), scheme.sparse, shape.kv_heads, key ? shape.head_dim : shape.value_head_dim);
}

std::vector<std::shared_ptr<const TensorCodec>> codecs_of(const Scheme& scheme, const CacheShape& shape,
                                                          CacheTensor tensor, int layers,
                                                          const SpectralRotations* rotations) {
  const TensorScheme& part = tensor == CacheTensor::key ? scheme.key : scheme.value;
  std::vector<std::shared_ptr<const TensorCodec>> codecs;
  for (int layer = 0; layer < layers; ++layer) {
    const bool alike = layer > 0 && rotations == nullptr && part.in_layer(layer) == part.in_layer(layer - 1);
    codecs.push_back(alike ? codecs.back() : codec_of(scheme, shape, tensor, layer, rotations));
  }
  return codecs;
}

SimulatedCache::SimulatedCache(const Codebook& codebook, int layers, int threads)
    : scheme_(codebook.scheme), threads_(threads), key_(layers), value_(layers), predictions_(layers) {
  for (size_t row = 0; row < codebook.layer_index.size(); ++row) {
    key_.at(codebook.layer_index[row]) = codec_of(codebook, row, CacheTensor::key);
    value_.at(codebook.layer_index[row]) = codec_of(codebook, row, CacheTensor::value);
    predictions_.at(codebook.layer_index[row]) = key_prediction(codebook, row);
  }
}

SimulatedCache::SimulatedCache(const Scheme& scheme, const CacheShape& shape, int layers, int threads,
                               const SpectralRotations* rotations)
    : scheme_(scheme),
      threads_(threads),
      key_(codecs_of(scheme, shape, CacheTensor::key, layers, rotations)),
      value_(codecs_of(scheme, shape, CacheTensor::value, layers, rotations)),
      predictions_(layers) {}

void SimulatedCache::before_rope(int layer, at::Tensor& key, at::Tensor& value) {
  if (scheme_.key.site == Site::pre_rope) store(layer, CacheTensor::key, key);
  store(layer, CacheTensor::value, value, predictions_.at(layer).empty() ? nullptr : &key);
}

void SimulatedCache::after_rope(int layer, at::Tensor& key) {
  if (scheme_.key.site == Site::post_rope) store(layer, CacheTensor::key, key);
}

void SimulatedCache::store(int layer, CacheTensor tensor, at::Tensor& x, const at::Tensor* predicts) {
  const bool is_key = tensor == CacheTensor::key;
  const TensorCodec* codec = (is_key ? key_ : value_).at(layer).get();
  if (codec == nullptr) return;
  const std::string place = "layer " + std::to_string(layer) + (is_key ? " key" : " value");
  x = x.contiguous();  // freshly computed by the layer, so changing it in place is safe
  const int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2) * x.size(3);
  const int64_t sink = std::min<int64_t>(scheme_.sink, tokens);
  const int64_t end = coded_end(tokens, sink, scheme_.residual, codec->block_tokens());
  for (int64_t b = 0; b < batch; ++b) {
    const std::span<float> rows{x.mutable_data_ptr<float>() + b * tokens * width, static_cast<size_t>(tokens * width)};
    const auto part = [&](int64_t begin, int64_t stop) { return rows.subspan(begin * width, (stop - begin) * width); };
    round_to_record(part(0, sink), part(0, sink), place + ", first tokens");
    round_to_record(part(end, tokens), part(end, tokens), place + ", last tokens");
    const std::span<float> middle = part(sink, end);
    std::vector<float> predicted(predicts != nullptr ? middle.size() : 0);
    if (predicts != nullptr) {
      const int64_t keys = predicts->size(2) * predicts->size(3);
      predictions_[layer].predict(
          {predicts->const_data_ptr<float>() + (b * tokens + sink) * keys, size_t((end - sink) * keys)}, predicted,
          threads_);
    }
    for (size_t i = 0; i < predicted.size(); ++i) middle[i] -= predicted[i];
    const int64_t outliers = codec->round_trip(middle, middle, threads_, place, sink);
    for (size_t i = 0; i < predicted.size(); ++i) middle[i] += predicted[i];
    if (is_key) {
      key_outliers_ += outliers;
      key_elements_ += static_cast<int64_t>(middle.size());
    }
  }
}

int64_t SimulatedCache::quantised_end(int layer, CacheTensor tensor, int64_t tokens) const {
  const TensorCodec* codec = (tensor == CacheTensor::key ? key_ : value_).at(layer).get();
  if (codec == nullptr) return 0;
  const int64_t sink = std::min<int64_t>(scheme_.sink, tokens);
  return coded_end(tokens, sink, scheme_.residual, codec->block_tokens());
}

}  // namespace kvcc
