// Attention as an architecture computes it, for whoever puts other keys and values in, or needs the weights.
// Letters: B batch, T queries, N keys, Hq query heads, H key/value heads, D head dimension.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace kvcc {

/// What an architecture's attention has of its own in one layer.
struct AttentionRule {
  double scale = 0;    ///< of scores; 0: 1 / sqrt(D)
  int64_t window = 0;  ///< a query sees this many positions, its own included; 0: all
  double softcap = 0;  ///< c: scores are c tanh(s / c); 0: none
  /// Latent attention: keys after RoPE and values of all heads, [B, N, Hq, …], from what is cached (LatentConfig),
  /// [B, N, 1, …]. Empty: attention reads what is cached.
  std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor& key, const at::Tensor& value)> expand;
};

/// Scaled (and capped) scores, f32 [B, Hq, T, N]: query [B, Hq, T, D], key [B, H, N, D], both after RoPE. H divides Hq;
/// query head h reads key head h * H / Hq.
at::Tensor attention_scores(const at::Tensor& query, const at::Tensor& key, const AttentionRule& rule);

/// bool [T, N]: true where a query at `query_position` [T] sees a key at `key_position` [N] (int64).
at::Tensor attention_mask(const at::Tensor& query_position, const at::Tensor& key_position, const AttentionRule& rule);

/// Mix of value [B, H, N, Dv] by the softmax of those scores, [B, Hq, T, Dv]. mask is bool, broadcasts to
/// [B, Hq, T, N] and is true where a query sees a key; undefined: T = N, each query sees what attention_mask says.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask,
                     const AttentionRule& rule);

}  // namespace kvcc
