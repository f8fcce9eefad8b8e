#include "formats/codec/key_prediction.h"

#include <cstdint>

#include "formats/codec/matrix.h"
#include "formats/codec/rows.h"

namespace kvcc {

void KeyPrediction::predict(std::span<const float> key_rows, std::span<float> out, int threads) const {
  const int64_t key_step = int64_t{units} * keys, step = int64_t{units} * values;
  const int64_t tokens = static_cast<int64_t>(out.size()) / step;
  std::vector<float> by_key(from_key.size());  // [U, K, N]: multiply() wants columns side by side
  for (int u = 0; u < units; ++u) {
    const size_t at = static_cast<size_t>(u) * values * keys;
    for (int n = 0; n < values; ++n) {
      for (int k = 0; k < keys; ++k)
        by_key[at + static_cast<size_t>(k) * values + n] = from_key[at + size_t(n) * keys + k];
    }
  }
  over_rows(tokens, threads, [&](int64_t first, int64_t last) {
    for (int u = 0; u < units; ++u) {
      const float* map = by_key.data() + static_cast<size_t>(u) * values * keys;
      multiply(static_cast<int>(last - first), values, keys,
               {key_rows.data() + first * key_step + int64_t{u} * keys, key_step, 1}, {map, values, 1},
               out.data() + first * step + int64_t{u} * values, step);
    }
    return int64_t{0};
  });
}

}  // namespace kvcc
