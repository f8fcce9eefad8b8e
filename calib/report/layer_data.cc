#include "calib/report/layer_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "calib/fit/parallel.h"
#include "formats/core/error.h"

namespace kvcc {

LayerData read_layer(const ActivationsReader& reader, int layer, int64_t samples, int threads, bool check_hash) {
  const ActivationsSettings& settings = reader.settings();
  const CacheShape& shape = settings.model.shape;
  const size_t keys = static_cast<size_t>(settings.seqlen) * shape.kv_heads * shape.head_dim;
  const size_t values = static_cast<size_t>(settings.seqlen) * shape.kv_heads * shape.value_head_dim;
  LayerData data;
  data.key.resize(keys * samples);
  data.value.resize(values * samples);
  if (settings.fisher) data.key_grad.resize(data.key.size());
  if (settings.fisher) data.value_grad.resize(data.value.size());
  parallel_for(static_cast<int>(samples), threads, [&](int sample) {
    const Shard shard = reader.read(sample, layer, check_hash);
    const auto place = [&](const std::vector<float>& from, std::vector<float>& to, size_t size, const char* name) {
      if (from.size() != size) {
        throw bad_input(fmt::format("sample {}, layer {}, {}", sample, settings.layer_index[layer], name),
                        fmt::format("{} values", from.size()), fmt::format("{}", size));
      }
      std::copy(from.begin(), from.end(), to.begin() + static_cast<int64_t>(sample * size));
    };
    place(shard.key, data.key, keys, "key");
    place(shard.value, data.value, values, "value");
    if (!settings.fisher) return;
    place(shard.key_grad, data.key_grad, keys, "key_grad");
    place(shard.value_grad, data.value_grad, values, "value_grad");
  });
  return data;
}

}  // namespace kvcc
