#include "calib/report/activation_ranges.h"

#include <algorithm>

#include "calib/fit/parallel.h"
#include "formats/core/error.h"
#include "formats/core/json.h"

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

host::RopeTables tables_of(const ActivationsSettings& settings) {
  host::RopeUse use;
  use.length = settings.seqlen;
  if (!settings.decoder_json.empty()) {
    const auto decoder = parse_json<nlohmann::json>(settings.decoder_json, "decoder");
    if (decoder.contains("max_position")) use.max_positions = json_member<int64_t>(decoder, "max_position", "decoder");
  }
  const host::RopeFrequencies frequencies = host::rope_frequencies(settings.model.rope, use);
  return host::rope_tables(frequencies.inverse, settings.seqlen, frequencies.attention_factor);
}

void append(std::vector<float>& to, const std::vector<float>& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace

RangeReader::RangeReader(const ActivationsReader& reader) : settings_(reader.settings()) {
  out_.layer_index = settings_.layer_index;
  out_.heads = settings_.model.shape.kv_heads;
  out_.dim = settings_.model.shape.head_dim;
  out_.value_dim = settings_.model.shape.value_head_dim;
  out_.content_sha256 = reader.content_sha256();
  try {
    tables_ = tables_of(settings_);
  } catch (const Error& error) {  // a rule of scaling that lacks a parameter: all but the turned keys can be told
    out_.rotated_problem = error.what();
  }
}

void RangeReader::add_layer(const LayerData& data, int threads) {
  const CacheShape& shape = settings_.model.shape;
  const auto keys = static_cast<size_t>(shape.kv_heads) * shape.head_dim;
  const auto values = static_cast<size_t>(shape.kv_heads) * shape.value_head_dim;
  const RopeInfo& rope = settings_.model.rope;
  const int pairs = rope.rotary_dim / 2;
  std::vector<LayerExtents> parts(data.starts.size() - 1);  // of each sample
  parallel_for(static_cast<int>(parts.size()), threads, [&](int sample) {
    LayerExtents& part = parts[static_cast<size_t>(sample)];
    std::vector<float> row(keys);
    const auto begin = static_cast<size_t>(data.starts[sample]), end = static_cast<size_t>(data.starts[sample + 1]);
    for (size_t at = begin, t = 0; at < end; ++at, ++t) {
      part.key.add(data.key.data() + at * keys, keys);
      part.value.add(data.value.data() + at * values, values);
      std::copy_n(data.key.begin() + static_cast<long>(at * keys), keys, row.begin());
      if (!out_.rotated_problem.empty()) continue;
      host::rotate_row(row.data(), shape.kv_heads, shape.head_dim, pairs, rope.kind == "interleaved",
                       tables_.cosine.data() + t * pairs, tables_.sine.data() + t * pairs);
      part.rotated.add(row.data(), keys);
    }
  });
  LayerExtents& all = parts.front();
  for (size_t i = 1; i < parts.size(); ++i) {
    for (auto extent : {&LayerExtents::key, &LayerExtents::rotated, &LayerExtents::value}) {
      (all.*extent).add((parts[i].*extent).least.data(), (parts[i].*extent).least.size());
      (all.*extent).add((parts[i].*extent).greatest.data(), (parts[i].*extent).greatest.size());
    }
  }
  append(out_.key_min, all.key.least);
  append(out_.key_max, all.key.greatest);
  append(out_.rotated_min, all.rotated.least);
  append(out_.rotated_max, all.rotated.greatest);
  append(out_.value_min, all.value.least);
  append(out_.value_max, all.value.greatest);
}

ActivationRanges read_activation_ranges(const ActivationsReader& reader, int threads,
                                        const std::function<void()>& progress) {
  RangeReader ranges(reader);
  for (int layer = 0; layer < reader.settings().model.shape.layers; ++layer) {
    check_interrupt();
    ranges.add_layer(read_layer(reader, layer, reader.settings().samples, threads), threads);
    if (progress) progress();
  }
  return ranges.result();
}

}  // namespace kvcc
