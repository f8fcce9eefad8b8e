#include "tests/bench/cpu_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "formats/core/scheme.h"
#include "formats/layout/half.h"

namespace kvcc::bench {
namespace {

constexpr double kOutliers = 0.01;

/// Levels in [-1, 1] that k-means finds for normal values cut off at `reach` deviations.
std::vector<float> normal_levels(int bits, double reach) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::vector<double> x(8192);
  for (double& v : x) v = std::clamp(normal(random), -reach, reach) / reach;
  std::sort(x.begin(), x.end());
  std::vector<double> level(size_t{1} << bits);
  for (size_t j = 0; j < level.size(); ++j) level[j] = x[(2 * j + 1) * x.size() / (2 * level.size())];
  for (int round = 0; round < 60; ++round) {
    size_t at = 0;
    for (size_t j = 0; j < level.size(); ++j) {
      const double end = j + 1 < level.size() ? (level[j] + level[j + 1]) / 2 : 2;
      double sum = 0;
      const size_t first = at;
      for (; at < x.size() && x[at] <= end; ++at) sum += x[at];
      if (at > first) level[j] = sum / static_cast<double>(at - first);
    }
  }
  return {level.begin(), level.end()};
}

LevelTable level_table(int heads, int bits, double reach) {
  LevelTable table;
  table.heads = heads;
  table.stride = 1 << bits;
  table.bits.assign(heads, static_cast<uint8_t>(bits));
  for (int h = 0; h < heads; ++h) {
    const auto levels = normal_levels(bits, reach);
    table.levels.insert(table.levels.end(), levels.begin(), levels.end());
  }
  return table;
}

/// Scales and thresholds from quantiles of the channels, as calibration makes them.
ChannelQuantiser channel_quantiser(const Shape& shape, const std::vector<float>& key, const Scheme& scheme) {
  ChannelQuantiser q;
  q.heads = shape.heads;
  q.dim = shape.head_dim;
  q.table = level_table(shape.heads, scheme.bits, scheme.sparse ? 2.6 : 3.6);
  const size_t row = shape.row(), tokens = key.size() / row;
  std::vector<float> channel(tokens);
  for (size_t c = 0; c < row; ++c) {
    for (size_t t = 0; t < tokens; ++t) channel[t] = key[t * row + c];
    std::sort(channel.begin(), channel.end());
    const size_t cut = scheme.sparse ? static_cast<size_t>(kOutliers / 2 * static_cast<double>(tokens)) : 0;
    const float low = channel[cut], high = channel[tokens - 1 - cut];
    q.scale.push_back((high - low) / 2);
    q.zero.push_back((high + low) / 2);
    if (scheme.sparse) {
      q.threshold_lower.push_back(low);
      q.threshold_upper.push_back(high);
    }
  }
  return q;
}

TokenQuantiser token_quantiser(const Shape& shape, const Scheme& scheme) {
  TokenQuantiser q;
  q.heads = shape.heads;
  q.dim = shape.head_dim;
  q.table = level_table(shape.heads, scheme.bits, scheme.sparse ? 2.6 : 3.3);
  q.tail = scheme.sparse ? outliers_per_tail(kOutliers, shape.row()) : 0;
  return q;
}

int copies_for(size_t bytes, size_t least_bytes) {
  return static_cast<int>(std::max<size_t>(1, (least_bytes + bytes - 1) / bytes));
}

}  // namespace

Layer::Layer(const Shape& shape) : shape_(shape) {
  std::mt19937 random(static_cast<uint32_t>(shape.row()));
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> heavy(8.0f);
  const size_t row = shape.row(), count = row * (1 + kDistinctTokens);
  std::vector<float> mean(row), spread(row);
  for (size_t c = 0; c < row; ++c) {
    mean[c] = normal(random) * (random() % 16 == 0 ? 3.0f : 0.5f);
    spread[c] = std::exp(0.4f * normal(random));
  }
  for (size_t i = 0; i < count; ++i) key_.push_back(mean[i % row] + spread[i % row] * heavy(random));
  for (size_t i = 0; i < count; ++i) value_.push_back(0.3f * heavy(random));
  for (int i = 0; i < shape.query_heads() * shape.head_dim; ++i) query_.push_back(normal(random));
  for (int i = 0; i < shape.head_dim / 2; ++i) {
    inverse_.push_back(std::pow(shape.theta, -2.0f * static_cast<float>(i) / static_cast<float>(shape.head_dim)));
  }
}

float Layer::multiplier() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
reference::Rotation Layer::rotation() const { return {false, {inverse_.begin(), inverse_.end()}, 1}; }
host::BlockRopeTables Layer::tables(int64_t tokens) const { return host::block_rope_tables({inverse_, 1.0f}, tokens); }

KvccAttentionParams Layer::attention(const host::BlockRopeTables& tables, float* out, float* partial,
                                     int splits) const {
  KvccAttentionParams p{};
  p.rope = {tables.base_cosine.data(), tables.base_sine.data(), tables.relative_cosine.data(),
            tables.relative_sine.data()};
  p.query = query_.data();
  p.partial = splits > 1 ? partial : nullptr;
  p.out = out;
  p.multiplier = multiplier();
  p.group = shape_.group;
  p.splits = splits;
  return p;
}

reference::AttentionSums Layer::exact(std::vector<float> key, std::vector<float> value, int64_t tokens) const {
  key.resize(static_cast<size_t>(tokens) * shape_.row());
  value.resize(key.size());
  return reference::attention(
      key, value, query_, {shape_.heads, shape_.head_dim, shape_.head_dim, shape_.group, 0, multiplier()}, rotation());
}

void Layer::rows(int64_t tokens, std::vector<float>& key, std::vector<float>& value) const {
  const int dim = shape_.head_dim, half = dim / 2;
  key.resize(static_cast<size_t>(tokens) * shape_.row());
  value.resize(key.size());
  std::vector<float> cosine(half), sine(half);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * inverse_[i];
      cosine[i] = static_cast<float>(std::cos(angle));
      sine[i] = static_cast<float>(std::sin(angle));
    }
    for (int h = 0; h < shape_.heads; ++h) {
      const float* k = key_.data() + (source(t) * shape_.heads + h) * dim;
      const float* v = value_.data() + (source(t) * shape_.heads + h) * dim;
      float* turned = key.data() + (h * tokens + t) * dim;
      for (int i = 0; i < half; ++i) {
        turned[i] = k[i] * cosine[i] - k[i + half] * sine[i];
        turned[i + half] = k[i + half] * cosine[i] + k[i] * sine[i];
      }
      std::copy_n(v, dim, value.data() + (h * tokens + t) * dim);
    }
  }
}

Packed::Packed(const Layer& layer, const Scheme& scheme, int64_t tokens, size_t least_bytes)
    : layer_(layer),
      tokens_(tokens),
      length_(static_cast<int32_t>(tokens)),
      key_quantiser_(channel_quantiser(layer.shape(), layer.keys(), scheme)),
      value_quantiser_(token_quantiser(layer.shape(), scheme)),
      rope_(layer.tables(tokens)) {
  const Shape& shape = layer.shape();
  const int sink = scheme.sparse ? 1 : 0;
  const uint32_t capacity = scheme.sparse ? mma::default_capacity(kOutliers, shape.head_dim) : 0;
  const reference::CacheOptions options{sink, 0, capacity};
  key_ = reference::pack_mma(key_quantiser_, mma::Tensor::key, layer.keys(), options);
  value_ = reference::pack_mma(value_quantiser_, mma::Tensor::value, layer.values(), options);

  pages_ = (tokens - sink + KVCC_PAGE_TOKENS - 1) / KVCC_PAGE_TOKENS;
  const size_t key_bytes = mma::page_bytes(key_.shape), value_bytes = mma::page_bytes(value_.shape);
  copies_ = copies_for(static_cast<size_t>(pages_) * (key_bytes + value_bytes), least_bytes);
  const auto fill = [&](const reference::MmaCache& from, Memory& to, size_t bytes) {
    to = Memory(bytes * pages_ * copies_);
    constexpr int64_t kPages = kDistinctTokens / KVCC_PAGE_TOKENS;
    for (int64_t i = 0; i < pages_ * copies_; ++i) {
      std::memcpy(to.data() + i * bytes, from.page(i % pages_ % kPages), bytes);
    }
    double records = 0;
    for (const uint32_t needed : from.needed) records += needed;
    records *= static_cast<double>(tokens) / (1 + kDistinctTokens);
    const double used = static_cast<double>(mma::records_offset(from.shape));
    bytes_read_ += used * static_cast<double>(pages_) + records * sizeof(mma::Record) + 2.0 * sink * shape.row();
  };
  fill(key_, key_pages_, key_bytes);
  fill(value_, value_pages_, value_bytes);

  bits_.assign(shape.heads, static_cast<uint8_t>(scheme.bits));
  const int sparse = scheme.sparse ? KVCC_SPARSE_LISTED : KVCC_SPARSE_NONE;
  config_.key = {shape.head_dim, KVCC_AXIS_CHANNEL, sparse};
  config_.value = {shape.head_dim, KVCC_AXIS_TOKEN, sparse};
  config_.rope = KVCC_ROPE_HALF;
  config_.rotary_dim = shape.head_dim;
  config_.dtype = KVCC_DTYPE_F32;
  for (const int arithmetic : {KVCC_ARITHMETIC_F32, KVCC_ARITHMETIC_I16}) {
    KvccCpuTables& t = tables_[arithmetic];
    t.key_levels = key_quantiser_.table.levels.data();
    t.value_levels = value_quantiser_.table.levels.data();
    t.key_bits = t.value_bits = bits_.data();
    t.key_codes = t.value_codes = 1 << scheme.bits;
    t.relative_cosine = rope_.relative_cosine_f32.data();
    t.relative_sine = rope_.relative_sine_f32.data();
    t.arithmetic = arithmetic;
  }
}

KvccCache Packed::cache(const reference::MmaCache& from, const Memory& pages, int copy) const {
  KvccCache c{};
  const size_t bytes = mma::page_bytes(from.shape);
  c.pages = pages.data() + bytes * pages_ * copy;
  c.lengths = &length_;
  c.exact = from.exact.empty() ? nullptr : const_cast<uint16_t*>(from.exact.data());
  c.page_bytes = static_cast<int64_t>(bytes);
  c.code_words = static_cast<int32_t>(from.shape.code_words);
  c.sparse_capacity = static_cast<int32_t>(from.shape.capacity);
  c.max_pages = static_cast<int32_t>(pages_);
  c.sequences = 1;
  c.heads = from.heads;
  c.sink = from.sink;
  return c;
}

KvccAttentionParams Packed::params(int copy, float* out, float* partial, int splits) const {
  KvccAttentionParams p = layer_.attention(rope_, out, partial, splits);
  p.key = cache(key_, key_pages_, copy);
  p.key.scale = key_quantiser_.scale.data();
  p.key.zero = key_quantiser_.zero.data();
  p.value = cache(value_, value_pages_, copy);
  p.value.tail = value_quantiser_.tail;
  return p;
}

reference::AttentionSums Packed::exact() const {
  return layer_.exact(reference::unpack(key_quantiser_, key_), reference::unpack(value_quantiser_, value_), tokens_);
}

Rows::Rows(const Shape& shape, const std::vector<float>& key, const std::vector<float>& value, bool half,
           size_t least_bytes)
    : half_(half),
      bytes_(key.size() * (half ? 2 : 4)),
      copies_(copies_for(2 * bytes_, least_bytes)),
      memory_(2 * bytes_ * copies_ + static_cast<size_t>(2 * KVCC_PAGE_TOKENS) * shape.head_dim * 4) {
  const auto write = [&](const std::vector<float>& from, uint8_t* to) {
    if (!half_) {
      std::memcpy(to, from.data(), bytes_);
      return;
    }
    for (size_t i = 0; i < from.size(); ++i) {
      const uint16_t h = float_to_half(from[i]);
      std::memcpy(to + 2 * i, &h, 2);
    }
  };
  write(key, memory_.data());
  write(value, memory_.data() + bytes_);
  for (int i = 1; i < copies_; ++i) std::memcpy(memory_.data() + 2 * bytes_ * i, memory_.data(), 2 * bytes_);
}

}  // namespace kvcc::bench
