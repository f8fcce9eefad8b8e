// Key scores and value mix in double, over unpacked rows: what the kernels' results are compared with. Host only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcc::reference {

/// Rotary embedding by table, as the kernels take it. pairs (i, i + rotary/2), or (2i, 2i + 1) when interleaved.
struct RopeTable {
  int rotary = 0;  ///< 0: none
  bool interleaved = false;
  std::vector<float> cosine, sine;  ///< [positions, rotary / 2]
};

/// Results, and for each the sum of the magnitudes of its terms: a float sum of n terms in any order is within
/// n * 2^-23 * magnitude of the exact one.
struct Sums {
  std::vector<double> value, magnitude;
};

/// scores[h * group + g, t] = multiplier * <query[h * group + g], RoPE_t(key[t, h])>, [H * group, T].
/// key [T, H, D], query [H * group, D] rotated already.
Sums key_scores(std::span<const float> key, std::span<const float> query, int heads, int head_dim, int group,
                const RopeTable& rope, float multiplier);

/// out[h * group + g, d] = sum over t of weights[h * group + g, t] * value[t, h, d], [H * group, D].
/// value [T, H, D], weights [H * group, T].
Sums value_mix(std::span<const float> value, std::span<const float> weights, int heads, int head_dim, int group);

}  // namespace kvcc::reference
