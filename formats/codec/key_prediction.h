// Values less what their token's keys tell of them: a linear map of the keys as the cache gives them back, before RoPE.
#pragma once

#include <span>
#include <vector>

namespace kvcc {

/// Of one layer. A unit has K channels of keys and N of values, all units side by side in a token's row.
struct KeyPrediction {
  int units = 0, keys = 0, values = 0;  ///< U, K, N
  std::vector<float> from_key;          ///< [U, N, K]
  bool empty() const { return from_key.empty(); }

  /// out [T, U N] = from_key times each token's row of keys [T, U K], by multiply() of matrix.h: the same bits for any
  /// number of threads.
  void predict(std::span<const float> key_rows, std::span<float> out, int threads) const;
};

}  // namespace kvcc
