#include "calib/model/decoder_layer.h"

#include <ATen/ATen.h>

#include <optional>
#include <vector>

namespace kvcc {
namespace {

/// The latent and the rotary key (DeepSeek-V2, equations 9 to 14): only the way up to the heads is left to attention.
AttentionRows project_latent(const DecoderConfig& c, const DecoderLayer& layer, const at::Tensor& x) {
  const int64_t batch = x.size(0), tokens = x.size(1), rank = c.value_head_dim;
  at::Tensor query;
  if (layer.has(Part::query_down)) {
    const at::Tensor down = project(x, layer[Part::query_down]);
    query = project(norm_if(c, layer, Part::query_down_norm, down), layer[Part::query_up]);
  } else {
    query = project(x, layer[Part::query]);
  }
  const at::Tensor down = project(x, layer[Part::latent_down]);
  const at::Tensor latent = norm_if(c, layer, Part::latent_norm, down.narrow(-1, 0, rank));
  return {query.view({batch, tokens, c.query_heads, c.latent.nope_dim + c.head_dim}),
          down.narrow(-1, rank, c.head_dim).unsqueeze(2), latent.unsqueeze(2)};
}

/// A norm of all heads together comes before they are told apart, one of each head after.
at::Tensor heads_of(const DecoderConfig& c, const DecoderLayer& layer, Part norm, const at::Tensor& x, int64_t heads) {
  const bool wide = layer.has(norm) && layer[norm].weight.size(0) != c.head_dim;
  const at::Tensor rows = wide ? norm_if(c, layer, norm, x) : x;
  const at::Tensor split = rows.view({x.size(0), x.size(1), heads, c.head_dim});
  return wide ? split : norm_if(c, layer, norm, split);
}

}  // namespace

AttentionRows project_rows(const DecoderConfig& c, const DecoderLayer& layer, const at::Tensor& x) {
  if (c.latent.used) return project_latent(c, layer, x);
  const int64_t query_rows = c.query_heads * c.head_dim, kv_rows = c.kv_heads * c.head_dim;
  at::Tensor query, key, value;
  if (layer.has(Part::query_key_value)) {
    const at::Tensor all = project(x, layer[Part::query_key_value]);
    query = all.narrow(-1, 0, query_rows);
    key = all.narrow(-1, query_rows, kv_rows);
    value = all.narrow(-1, query_rows + kv_rows, kv_rows);
  } else {
    query = project(x, layer[Part::query]);
    key = project(x, layer[Part::key]);
    value = project(x, layer[Part::value]);
  }
  return {heads_of(c, layer, Part::query_norm, query, c.query_heads),
          heads_of(c, layer, Part::key_norm, key, c.kv_heads),
          value.view({x.size(0), x.size(1), c.kv_heads, c.head_dim})};
}

std::pair<at::Tensor, at::Tensor> expand_latent(const DecoderConfig& c, const DecoderLayer& layer,
                                                const at::Tensor& key, const at::Tensor& value) {
  const int64_t batch = value.size(0), rows = value.size(1);
  const at::Tensor up = project(value.squeeze(2), layer[Part::latent_up])
                            .view({batch, rows, c.query_heads, c.latent.nope_dim + c.latent.value_dim});
  const at::Tensor rotary = key.expand({batch, rows, c.query_heads, c.head_dim});
  return {at::cat({up.narrow(-1, 0, c.latent.nope_dim), rotary}, -1),
          up.narrow(-1, c.latent.nope_dim, c.latent.value_dim)};
}

at::Tensor mix_values(const AttentionRule& rule, const at::Tensor& query, const at::Tensor& key,
                      const at::Tensor& value) {
  const int64_t tokens = query.size(2), rows = key.size(2);
  if (rule.softcap > 0 || (rule.window > 0 && rows > rule.window)) {
    const at::Tensor positions = at::arange(rows, query.options().dtype(at::kLong));
    return attention(query, key, value, attention_mask(positions.narrow(0, rows - tokens, tokens), positions, rule),
                     rule);
  }
  const std::optional<double> scale = rule.scale != 0 ? std::optional<double>(rule.scale) : std::nullopt;
  return at::scaled_dot_product_attention(query, key, value, {}, 0.0, rows == tokens, scale,
                                          query.size(1) != key.size(1));
}

at::Tensor convolve(const DecoderConfig& c, const DecoderLayer& layer, const at::Tensor& x, at::Tensor* state) {
  const std::vector<at::Tensor> gates = project(x, layer[Part::convolution_in]).transpose(1, 2).chunk(3, 1);
  at::Tensor input = gates[0] * gates[2];  // [B, hidden, T]
  const int64_t before = c.convolution - 1;
  const bool follows = state != nullptr && state->defined();
  input = at::cat({follows ? *state : at::zeros({x.size(0), c.hidden, before}, x.options()), input}, 2);
  if (state != nullptr) *state = input.narrow(2, input.size(2) - before, before).clone();
  const at::Tensor mixed =
      at::conv1d(input, layer[Part::convolution].weight, std::nullopt, 1, at::IntArrayRef{0}, 1, c.hidden);
  return project((gates[1] * mixed).transpose(1, 2), layer[Part::convolution_out]);
}

}  // namespace kvcc
