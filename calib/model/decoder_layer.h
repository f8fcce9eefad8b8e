// The weights of one layer and what its parts compute, in f32. Which parts there are decides what runs; the numbers are
// DecoderConfig's. Letters: B batch, T tokens, N cached tokens, Hq query heads, H key/value heads, D, Dv channels.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "calib/model/attention.h"
#include "calib/model/linear.h"
#include "formats/weights/architecture.h"

namespace kvcc {

struct DecoderLayer {
  std::array<Linear, static_cast<size_t>(Part::count)> parts;  ///< of norms the weight; undefined: not there
  std::vector<std::array<Linear, 3>> experts;                  ///< gate, up, down
  std::vector<std::pair<std::string, at::Tensor>>
      named;  ///< all tensors by their names in the files; undefined: stored

  const Linear& operator[](Part part) const { return parts[static_cast<size_t>(part)]; }
  bool has(Part part) const { return (*this)[part].defined(); }
};

/// x / sqrt(mean(x^2) + epsilon) * weight over the last extent (arXiv 1910.07467).
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);
/// The same with the layer's norm `part`, x itself where it has none.
at::Tensor norm_if(const DecoderConfig& config, const DecoderLayer& layer, Part part, const at::Tensor& x);

struct AttentionRows {
  at::Tensor query;  ///< [B, T, Hq, Dq] before RoPE; under latent attention the rotated channels come last
  at::Tensor key;    ///< [B, T, H, D] before RoPE, after bias and norm: what a cache holds
  at::Tensor value;  ///< [B, T, H, Dv] likewise
};

/// x [B, T, hidden] after the norm before attention.
AttentionRows project_rows(const DecoderConfig& config, const DecoderLayer& layer, const at::Tensor& x);

/// Keys after RoPE and values of all heads from the rotary keys after RoPE [B, N, 1, D] and the latents [B, N, 1,
/// rank]: [B, N, Hq, nope + D] and [B, N, Hq, value] (LatentConfig).
std::pair<at::Tensor, at::Tensor> expand_latent(const DecoderConfig& config, const DecoderLayer& layer,
                                                const at::Tensor& key, const at::Tensor& value);

/// Attention of T tokens that are the last of N: query [B, Hq, T, D] and key [B, H, N, D] after RoPE, value
/// [B, H, N, Dv]; [B, Hq, T, Dv]. The rule's `expand` has been applied.
at::Tensor mix_values(const AttentionRule& rule, const at::Tensor& query, const at::Tensor& key,
                      const at::Tensor& value);

/// LFM2's gated short convolution in place of attention: x [B, T, hidden] to the same. `state` (may be null): the last
/// tokens of what is convolved, [B, hidden, tokens - 1], undefined before the first pass; T follow them.
at::Tensor convolve(const DecoderConfig& config, const DecoderLayer& layer, const at::Tensor& x, at::Tensor* state);

/// MLP or experts: x [B, T, hidden] to the same. Want::gradient_alone: as project(), where the layer's last product is
/// what is returned; it is left out then.
at::Tensor feed_forward(const DecoderConfig& config, const DecoderLayer& layer, const at::Tensor& x,
                        Want want = Want::value);

}  // namespace kvcc
