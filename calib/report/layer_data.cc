#include "calib/report/layer_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "calib/fit/parallel.h"
#include "formats/core/error.h"

namespace kvcc {

LayerData read_layer(const ActivationsReader& reader, int layer, int64_t samples, int threads, bool check_hash) {
  const ActivationsSettings& settings = reader.settings();
  const CacheShape& shape = settings.model.shape;
  const size_t key_row = static_cast<size_t>(shape.kv_heads) * shape.head_dim;
  const size_t value_row = static_cast<size_t>(shape.kv_heads) * shape.value_head_dim;
  LayerData data;
  data.starts.push_back(0);
  for (int64_t s = 0; s < samples; ++s) data.starts.push_back(data.starts.back() + settings.length(s));
  data.key.resize(key_row * static_cast<size_t>(data.starts.back()));
  data.value.resize(value_row * static_cast<size_t>(data.starts.back()));
  if (settings.fisher) data.key_grad.resize(data.key.size());
  if (settings.fisher) data.value_grad.resize(data.value.size());
  parallel_for(static_cast<int>(samples), threads, [&](int sample) {
    const Shard shard = reader.read(sample, layer, check_hash);
    const auto begin = static_cast<size_t>(data.starts[sample]);
    const auto tokens = static_cast<size_t>(data.starts[sample + 1]) - begin;
    const auto place = [&](const std::vector<float>& from, std::vector<float>& to, size_t row, const char* name) {
      if (from.size() != tokens * row) {
        throw bad_input(fmt::format("sample {}, layer {}, {}", sample, settings.layer_index[layer], name),
                        fmt::format("{} values", from.size()), fmt::format("{}", tokens * row));
      }
      std::copy(from.begin(), from.end(), to.begin() + static_cast<int64_t>(begin * row));
    };
    place(shard.key, data.key, key_row, "key");
    place(shard.value, data.value, value_row, "value");
    if (!settings.fisher) return;
    place(shard.key_grad, data.key_grad, key_row, "key_grad");
    place(shard.value_grad, data.value_grad, value_row, "value_grad");
  });
  return data;
}

}  // namespace kvcc
