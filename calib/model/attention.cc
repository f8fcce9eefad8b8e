#include "calib/model/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>

namespace kvcc {

at::Tensor attention_scores(const at::Tensor& query, const at::Tensor& key, const AttentionRule& rule) {
  const double scale = rule.scale != 0 ? rule.scale : 1 / std::sqrt(static_cast<double>(query.size(3)));
  // The query heads of a key head as more of its rows: keys are not copied for each of them.
  const int64_t batch = query.size(0), heads = query.size(1), tokens = query.size(2), rows = key.size(2);
  const at::Tensor grouped = query.reshape({batch, key.size(1), heads / key.size(1) * tokens, query.size(3)});
  const at::Tensor scores = at::matmul(grouped * scale, key.transpose(2, 3)).view({batch, heads, tokens, rows});
  return rule.softcap > 0 ? at::tanh(scores / rule.softcap) * rule.softcap : scores;
}

at::Tensor attention_mask(const at::Tensor& query_position, const at::Tensor& key_position, const AttentionRule& rule) {
  const at::Tensor query = query_position.unsqueeze(1), key = key_position.unsqueeze(0);
  const at::Tensor causal = key <= query;
  return rule.window > 0 ? causal.logical_and(key > query - rule.window) : causal;
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask,
                     const AttentionRule& rule) {
  const std::optional<double> scale = rule.scale != 0 ? std::optional<double>(rule.scale) : std::nullopt;
  const int64_t batch = query.size(0), heads = query.size(1), tokens = query.size(2), rows = key.size(2);
  if (!mask.defined()) {
    if (rule.softcap > 0 || (rule.window > 0 && rule.window < tokens)) {
      const at::Tensor positions = at::arange(tokens, query.options().dtype(at::kLong));
      return attention(query, key, value, attention_mask(positions, positions, rule), rule);
    }
    return at::scaled_dot_product_attention(query, key, value, {}, 0.0, true, scale, heads != key.size(1));
  }
  const int64_t group = heads / key.size(1);
  if (rule.softcap > 0) {  // which libtorch's attention does not have
    const at::Tensor scores = attention_scores(query, key, rule).masked_fill(mask.logical_not(), -INFINITY);
    const at::Tensor weights = at::softmax(scores, -1).view({batch, key.size(1), group * tokens, rows});
    return at::matmul(weights, value).view({batch, heads, tokens, value.size(3)});
  }
  const at::Tensor grouped = query.reshape({batch, key.size(1), group * tokens, query.size(3)});
  const at::Tensor seen =
      mask.dim() == 2 ? mask.repeat({group, 1}).view({1, 1, group * tokens, rows})
                      : mask.expand({batch, heads, tokens, rows}).reshape({batch, key.size(1), group * tokens, rows});
  return at::scaled_dot_product_attention(grouped, key, value, seen, 0.0, false, scale)
      .reshape({batch, heads, tokens, value.size(3)});
}

}  // namespace kvcc
