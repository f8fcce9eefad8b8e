#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "calib/fit/parallel.h"
#include "calib/report/report_data.h"
#include "formats/core/error.h"
#include "kernels/host/rope_table.h"

namespace kvcc {
namespace {

/// Least and greatest value of each channel of one layer, [H * D].
struct Extent {
  std::vector<float> least, greatest;
  void add(const float* row, size_t n) {
    if (least.empty()) {
      least.assign(row, row + n);
      greatest = least;
    }
    for (size_t i = 0; i < n; ++i) {
      least[i] = std::min(least[i], row[i]);
      greatest[i] = std::max(greatest[i], row[i]);
    }
  }
};

struct LayerExtents {
  Extent key, rotated, value;
};

/// Turns a row of keys [heads, dim] that stands at `position` of its sample.
void rotate(std::vector<float>& row, int heads, int dim, const RopeInfo& rope, const host::RopeTables& tables,
            int64_t position) {
  const int pairs = rope.rotary_dim / 2;
  const bool interleaved = rope.kind == "interleaved";
  const float* cosine = tables.cosine.data() + position * pairs;
  const float* sine = tables.sine.data() + position * pairs;
  for (int h = 0; h < heads; ++h) {
    float* x = row.data() + static_cast<size_t>(h) * dim;
    for (int i = 0; i < pairs; ++i) {
      float& a = x[interleaved ? 2 * i : i];
      float& b = x[interleaved ? 2 * i + 1 : i + pairs];
      const float first = a, second = b;
      a = first * cosine[i] - second * sine[i];
      b = second * cosine[i] + first * sine[i];
    }
  }
}

host::RopeTables tables_of(const ActivationsSettings& settings) {
  const auto decoder = nlohmann::json::parse(settings.decoder_json, nullptr, false);
  host::RopeUse use;
  use.length = settings.seqlen;
  if (decoder.is_object()) use.max_positions = decoder.value("max_position", int64_t{0});
  const host::RopeFrequencies frequencies = host::rope_frequencies(settings.model.rope, use);
  return host::rope_tables(frequencies.inverse, settings.seqlen, frequencies.attention_factor);
}

void append(std::vector<float>& to, const std::vector<float>& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

ActivationRanges read_activation_ranges(const ActivationsReader& reader, int threads,
                                        const std::function<void()>& progress) {
  const ActivationsSettings& settings = reader.settings();
  const CacheShape& shape = settings.model.shape;
  const host::RopeTables tables = tables_of(settings);
  const auto keys = static_cast<size_t>(shape.kv_heads) * shape.head_dim;
  const auto values = static_cast<size_t>(shape.kv_heads) * shape.value_head_dim;
  std::vector<LayerExtents> layers(static_cast<size_t>(shape.layers));
  std::mutex mutex;
  parallel_for(shape.layers, threads, [&](int layer) {
    LayerExtents& extents = layers[static_cast<size_t>(layer)];
    for (int sample = 0; sample < settings.samples; ++sample) {
      const Shard shard = reader.read(sample, layer);
      const auto tokens = static_cast<size_t>(settings.seqlen);
      if (shard.key.size() != tokens * keys || shard.value.size() != tokens * values) {
        throw bad_input(reader.shard_file(sample, layer),
                        fmt::format("{} keys and {} values", shard.key.size(), shard.value.size()),
                        fmt::format("{} and {}", tokens * keys, tokens * values));
      }
      std::vector<float> row(keys);
      for (size_t t = 0; t < tokens; ++t) {
        extents.key.add(shard.key.data() + t * keys, keys);
        extents.value.add(shard.value.data() + t * values, values);
        std::copy_n(shard.key.begin() + static_cast<long>(t * keys), keys, row.begin());
        rotate(row, shape.kv_heads, shape.head_dim, settings.model.rope, tables, static_cast<int64_t>(t));
        extents.rotated.add(row.data(), keys);
      }
      const std::lock_guard lock(mutex);
      if (progress) progress();
    }
  });
  ActivationRanges out;
  out.layer_index = settings.layer_index;
  out.heads = shape.kv_heads;
  out.dim = shape.head_dim;
  out.value_dim = shape.value_head_dim;
  out.content_sha256 = reader.content_sha256();
  for (const LayerExtents& layer : layers) {
    append(out.key_min, layer.key.least);
    append(out.key_max, layer.key.greatest);
    append(out.rotated_min, layer.rotated.least);
    append(out.rotated_max, layer.rotated.greatest);
    append(out.value_min, layer.value.least);
    append(out.value_max, layer.value.greatest);
  }
  return out;
}

}  // namespace kvcc
