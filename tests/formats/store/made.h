// Small artifacts and activations made on the spot: every field differs from its neighbours, so that a swap is noticed.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <string>

#include "formats/core/hash.h"
#include "formats/store/activations.h"
#include "formats/store/codebook.h"

namespace kvcc::made {

/// A folder that is removed with its content. Its name has a space and letters beyond ASCII (F51).
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static int counter = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("kvcc Загрузки é " + std::to_string(::getpid()) + " " + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline ModelInfo model(int layers = 3) {
  ModelInfo info;
  info.name = "tiny модель";
  info.architecture = "llama";
  info.weights_sha256 = sha256_hex("weights");
  info.shape = {layers, 4, 2, 8, 6};
  info.rope = {100000.0, "half-split", "llama3", R"({"factor":8})", 8};
  info.qk_norm = true;
  for (int layer = 1; layer < std::min(layers, 3); ++layer) info.sliding_window_layers.push_back(layer);
  info.dtype = "Q4_1";
  return info;
}

/// Values 0, step, 2 step, … from `start`.
inline std::vector<float> ramp(size_t n, float start, float step) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = start + step * static_cast<float>(i);
  return values;
}

inline TensorCodebooks tensor(int layers, int heads, int dim, int bits, bool channel, bool sparse, float seed) {
  TensorCodebooks out;
  const size_t head_count = static_cast<size_t>(layers * heads), channel_count = head_count * dim;
  out.codes = 1 << bits;
  for (size_t h = 0; h < head_count; ++h) {
    for (int c = 0; c < out.codes; ++c) {
      const float even = 2.0f * static_cast<float>(c) / static_cast<float>(out.codes - 1) - 1.0f;
      out.codebook.push_back(even * (0.5f + 0.4f * std::fabs(std::sin(seed + static_cast<float>(h)))));
    }
  }
  out.bits.assign(head_count, static_cast<uint8_t>(bits));
  if (channel) {
    out.scale = ramp(channel_count, 0.25f + seed, 0.01f);
    out.zero = ramp(channel_count, -1.0f - seed, 0.02f);
    if (sparse) {
      out.threshold_lower = ramp(channel_count, -2.0f - seed, 0.03f);
      out.threshold_upper = ramp(channel_count, 1.0f + seed, 0.04f);
    }
  }
  out.outlier_fraction = ramp(head_count, sparse ? 0.01f : 0.0f, sparse ? 0.001f : 0.0f);
  out.stats.min = ramp(channel_count, -5.0f - seed, 0.01f);
  out.stats.max = ramp(channel_count, 5.0f + seed, 0.01f);
  out.stats.mean = ramp(channel_count, 0.1f * seed, 0.001f);
  out.stats.variance = ramp(channel_count, 1.0f + seed, 0.002f);
  out.stats.fisher = ramp(channel_count, 1e-6f, 1e-8f);
  out.stats.weighted_sse = ramp(head_count, 1e-3f + seed, 0.1f);
  out.stats.sqnr_db = ramp(head_count, 20.0f + seed, 0.5f);
  out.stats.first_token_share = ramp(head_count, 0.1f, 0.05f);
  out.stats.fit_gap_bound = ramp(head_count, 0.0f, 1e-6f);
  out.stats.distinct.assign(head_count, static_cast<uint32_t>(out.codes));
  for (size_t h = 0; h < head_count; ++h) {
    for (int b = 0; b < kNormalisedBins; ++b) {
      out.stats.histogram.push_back(static_cast<float>((b * 7 + static_cast<int>(h)) % 13) / 1000.0f);
    }
    for (int c = 0; c < out.codes; ++c) {
      out.stats.code_use.push_back(static_cast<float>(c + 1 + static_cast<int>(h)) / 100.0f);
    }
    out.stats.heaviest_sample.push_back(static_cast<uint32_t>(h));
    out.stats.token_sample.push_back(static_cast<uint32_t>(h + 1));
    out.stats.token_position.push_back(static_cast<uint32_t>(10 * h + 5));
  }
  out.stats.held_out_outliers = ramp(head_count, 0.011f, 0.0001f);
  out.stats.drift = ramp(head_count, 0.05f + 0.01f * seed, 0.002f);
  out.stats.sample_share = ramp(head_count, 0.2f, 0.01f);
  out.stats.token_share = ramp(head_count, 0.02f, 0.001f);
  out.stats.reached.assign(head_count, 32767);
  return out;
}

/// A tensor of vector codebooks: groups of 2, 4 and what is left, of 0, 1, 2, … bits.
inline void make_vectors(TensorCodebooks& out, const TensorScheme& scheme, int layers, int heads, int dim, float seed) {
  out.codebook.clear();
  out.bits.clear();
  for (auto* v : {&out.stats.histogram, &out.stats.code_use, &out.stats.held_out_outliers, &out.stats.fit_gap_bound}) {
    v->clear();
  }
  out.stats.distinct.clear();
  out.codes = 0;
  out.units = scheme.rotation == Rotation::fklt_layer ? 1 : heads;
  out.coordinates = heads * dim / out.units;
  const int n = out.coordinates;
  size_t numbers = 0;
  for (int unit = 0; unit < layers * out.units; ++unit) {
    std::vector<uint8_t> width(n), bits(n);
    int group = unit;
    for (int at = 0; at < n; ++group) {
      const int w = std::min(scheme.width > 0 ? scheme.width : group % 2 == 0 ? 2 : 4, n - at);
      width[at] = static_cast<uint8_t>(w);
      bits[at] = static_cast<uint8_t>(group % 4);
      numbers += static_cast<size_t>(w) << (group % 4);
      at += w;
    }
    out.group_width.insert(out.group_width.end(), width.begin(), width.end());
    out.group_bits.insert(out.group_bits.end(), bits.begin(), bits.end());
    for (int i = 0; i < n; ++i) {
      if (scheme.rotation == Rotation::none) out.channel_order.push_back(static_cast<uint16_t>(n - 1 - i));
      out.rotation_mean.push_back(seed + 0.01f * static_cast<float>(i));
      for (int j = 0; j < n; ++j) {
        const bool one = scheme.rotation == Rotation::none ? j == n - 1 - i : i == j;
        out.forward.push_back(one                                 ? 2.0f
                              : scheme.rotation == Rotation::none ? 0.0f
                                                                  : 0.001f * static_cast<float>(i - j));
        out.inverse.push_back(one ? 0.5f : 0.0f);
      }
    }
  }
  out.vectors = ramp(numbers, -1.0f - seed, 0.003f);
  out.stats.predicted_fitted = ramp(layers, 0.001f * seed, 0.001f);
  out.stats.predicted_held_out = ramp(layers, 0.002f * seed, 0.001f);
  out.stats.energy = ramp(out.group_width.size(), 0.5f * seed, 0.25f);
  out.outlier_fraction = ramp(static_cast<size_t>(layers) * heads, 0, 0);
}

inline Codebook codebook(const std::string& scheme = "kvcc-nuq3-1%-sink1", int layers = 3) {
  Codebook out;
  out.scheme = parse_scheme(scheme);
  out.model = model(layers);
  out.provenance = {"0.1.0",
                    "wikitext-2:train",
                    sha256_hex("text"),
                    "raw",
                    sha256_hex("tokenizer"),
                    "off",
                    16,
                    2048,
                    7,
                    32768,
                    sha256_hex("acts"),
                    "",
                    "",
                    "",
                    "",
                    0,
                    "",
                    0};
  for (int layer = 0; layer < layers; ++layer) out.layer_index.push_back(static_cast<uint16_t>(2 * layer));
  const CacheShape& shape = out.model.shape;
  const bool sparse = out.scheme.sparse > 0;
  const auto bits = [](const TensorScheme& t) { return t.grid == Grid::vector ? 1 : t.bits; };
  out.key = tensor(layers, shape.kv_heads, shape.head_dim, bits(out.scheme.key), out.scheme.key.axis == Axis::channel,
                   sparse, 0.5f);
  out.value = tensor(layers, shape.kv_heads, shape.value_head_dim, bits(out.scheme.value), false, sparse, 0.75f);
  if (out.scheme.is_vector()) {
    make_vectors(out.key, out.scheme.key, layers, shape.kv_heads, shape.head_dim, 0.5f);
    make_vectors(out.value, out.scheme.value, layers, shape.kv_heads, shape.value_head_dim, 0.75f);
    if (out.scheme.value.predicted) {
      const size_t keys = static_cast<size_t>(shape.kv_heads) * shape.head_dim;
      out.value.from_key =
          ramp(layers * keys * shape.kv_heads * shape.value_head_dim / out.value.units, -0.25f, 0.001f);
    }
    out.provenance.held_out = 2;
  }
  if (out.scheme.qnorm) {
    const auto heads = static_cast<size_t>(layers) * shape.kv_heads;
    out.key.norm_scale = ramp(heads, 1.125f, 0.01f);
    out.key.norm_offset = ramp(heads, -0.25f, 0.02f);
    out.value.norm_scale = ramp(heads, 1.25f, 0.03f);
    out.value.norm_offset = ramp(heads, -0.125f, 0.04f);
  }
  return out;
}

inline ActivationsSettings settings(int samples = 2, int layers = 3, int seqlen = 5) {
  ActivationsSettings out;
  out.model = model(layers);
  out.decoder_json = R"({"hidden":32,"norm_epsilon":1e-05})";
  out.tokenizer_sha256 = sha256_hex("tokenizer");
  out.text_name = "текст.txt";
  out.text_sha256 = sha256_hex("text");
  out.text_flavour = "raw";
  out.samples = samples;
  out.seqlen = seqlen;
  out.seed = 3;
  for (int s = 0; s < samples; ++s) {
    out.offsets.push_back(100 * s + 7);
    out.sample_sha256.push_back(sha256_hex("sample " + std::to_string(s)));
  }
  for (int layer = 0; layer < layers; ++layer) out.layer_index.push_back(layer);
  return out;
}

inline Shard shard(const ActivationsSettings& of, int sample, int layer) {
  const CacheShape& shape = of.model.shape;
  const auto keys = static_cast<size_t>(of.seqlen * shape.kv_heads * shape.head_dim);
  const auto values = static_cast<size_t>(of.seqlen * shape.kv_heads * shape.value_head_dim);
  const float start = static_cast<float>(100 * sample + 10 * layer);
  Shard out{ramp(keys, start, 0.5f), ramp(values, start + 1, 0.25f), {}, {}};
  if (of.fisher) {
    out.key_grad = ramp(keys, -start, 0.125f);
    out.value_grad = ramp(values, -start - 1, 0.0625f);
  }
  return out;
}

}  // namespace kvcc::made
