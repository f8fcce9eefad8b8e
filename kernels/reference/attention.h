// Key scores, value mix and attention in double, over unpacked rows: what the kernels' results are compared with. Host
// only.
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

/// Rotary embedding by angle: channel pair i of position p is turned by p * frequencies[i], computed in double.
struct Rotation {
  bool interleaved = false;
  std::vector<double> frequencies;  ///< [rotary / 2], radians a position; empty: none
  double factor = 1;                ///< of scalings that have one: cosines and sines are multiplied by it
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
Sums key_scores(std::span<const float> key, std::span<const float> query, int heads, int head_dim, int group,
                const Rotation& rope, float multiplier);

/// out[h * group + g, d] = sum over t of weights[h * group + g, t] * value[t, h, d], [H * group, D].
/// value [T, H, D], weights [H * group, T].
Sums value_mix(std::span<const float> value, std::span<const float> weights, int heads, int head_dim, int group);

/// What attention() is asked for, beside the rows.
struct AttentionShape {
  int heads = 0, key_dim = 0, value_dim = 0;
  int group = 1;         ///< query heads of a KV head
  int64_t window = 0;    ///< positions below T - window are not visible; 0: all are
  float multiplier = 1;  ///< of the softmax
};

/// Results of attention, [H * group, Dv] each unless stated. If every score is off by at most e times its magnitude
/// (key_scores), and weights and values by at most r relative to their terms, then to first order
/// |found - value| <= e * sensitivity + 2 r * magnitude.
struct AttentionSums {
  std::vector<double> value;
  std::vector<double> magnitude;    ///< sum over t of p_t |value_t|
  std::vector<double> sensitivity;  ///< sum over t of p_t * (magnitude of score t) * |value_t - out|
  std::vector<double> peak;         ///< [H * group] greatest visible score; 0 without any
  std::vector<double> sum;          ///< [H * group] sum over t of exp(score_t - peak)
};

/// out[h * group + g, :] = sum over visible t of softmax_t(multiplier * <query, RoPE_t(key[t, h])>) * value[t, h, :].
/// key [T, H, D], value [T, H, Dv], query [H * group, D] rotated already. T = 0 gives zeros.
AttentionSums attention(std::span<const float> key, std::span<const float> value, std::span<const float> query,
                        const AttentionShape& shape, const Rotation& rope);

}  // namespace kvcc::reference
