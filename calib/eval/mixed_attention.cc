#include "calib/eval/mixed_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace kvcc {
namespace {

at::Tensor positions_from(int64_t begin, int64_t end) { return at::arange(begin, end, at::kLong); }

/// Rows [begin, end) of one version of the keys and one of the values.
struct Segment {
  const at::Tensor *key, *value;
  int64_t begin, end;
  at::Tensor valid;  ///< bool [rows, end - begin]; undefined: for all
};

/// `query` of the rows [first, last) against segments, joined.
at::Tensor attend(const at::Tensor& query, int64_t first, int64_t last, const std::vector<Segment>& segments,
                  const AttentionRule& rule) {
  const at::Tensor rows = positions_from(first, last);
  std::vector<at::Tensor> keys, values, masks;
  for (const Segment& s : segments) {
    if (s.begin >= s.end) continue;
    keys.push_back(s.key->narrow(1, s.begin, s.end - s.begin));
    values.push_back(s.value->narrow(1, s.begin, s.end - s.begin));
    const at::Tensor seen = attention_mask(rows, positions_from(s.begin, s.end), rule);
    masks.push_back(s.valid.defined() ? seen.logical_and(s.valid) : seen);
  }
  const auto joined = [](const std::vector<at::Tensor>& parts, int64_t dim) {
    return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
  };
  return attention(query.transpose(1, 2), joined(keys, 1).transpose(1, 2), joined(values, 1).transpose(1, 2),
                   joined(masks, 1), rule)
      .transpose(1, 2);
}

}  // namespace

at::Tensor mixed_attention(const at::Tensor& query, const RowVersions& keys, const RowVersions& values,
                           const std::function<TokenView(int64_t t)>& view, int64_t chunk, int64_t split,
                           const AttentionRule& rule, int64_t start) {
  const int64_t tokens = start + query.size(1);
  std::vector<at::Tensor> mixed;
  for (int64_t first = start, last = 0; first < tokens; first = last) {
    last = std::min(tokens, (first / chunk + 1) * chunk);
    if (first < split) last = std::min(last, split);
    const TokenView begin = view(first), end = view(last - 1);
    const int64_t live = std::min(begin.live, last);
    const int64_t low = std::min({begin.key_coded, begin.value_coded, live});
    const int64_t high = std::min(std::max(end.key_coded, end.value_coded), live);
    // Between the two it depends on the token, and on whether it is a key or a value, which version it sees: all pairs
    // of versions are there, and the mask takes one of each position's.
    std::vector<Segment> segments{{&keys.coded, &values.coded, 0, low, {}}};
    if (low < high) {
      const at::Tensor positions = positions_from(low, high).unsqueeze(0);
      std::vector<int64_t> key_ends, value_ends;
      for (int64_t t = first; t < last; ++t) {
        const TokenView v = view(t);
        key_ends.push_back(v.key_coded);
        value_ends.push_back(v.value_coded);
      }
      const at::Tensor key_coded = positions < at::tensor(key_ends, at::kLong).unsqueeze(1);
      const at::Tensor value_coded = positions < at::tensor(value_ends, at::kLong).unsqueeze(1);
      for (const bool key : {true, false}) {
        for (const bool value : {true, false}) {
          const at::Tensor valid = key_coded.eq(key).logical_and(value_coded.eq(value));
          if (!valid.any().item<bool>()) continue;
          segments.push_back({key ? &keys.coded : &keys.half, value ? &values.coded : &values.half, low, high, valid});
        }
      }
    }
    segments.push_back({&keys.half, &values.half, std::max(low, high), live, {}});
    segments.push_back({&keys.computed, &values.computed, live, last, {}});
    mixed.push_back(attend(query.narrow(1, first - start, last - first), first, last, segments, rule));
  }
  return at::cat(mixed, 1);
}

MixedRows mixed_attention_rows(const at::Tensor& query, const at::Tensor& positions, const RowVersions& keys,
                               const RowVersions& values, const std::function<TokenView(int64_t t)>& view,
                               const AttentionRule& rule, const at::Tensor& kept) {
  const int64_t tokens = keys.computed.size(1), group = query.size(2) / keys.computed.size(2);
  std::vector<int64_t> key_ends, value_ends, lives;
  for (int64_t i = 0; i < positions.size(0); ++i) {
    const TokenView v = view(positions[i].item<int64_t>());
    key_ends.push_back(v.key_coded);
    value_ends.push_back(v.value_coded);
    lives.push_back(v.live);
  }
  const at::Tensor all = positions_from(0, tokens).unsqueeze(0);
  const auto before = [&](const std::vector<int64_t>& ends) { return all < at::tensor(ends, at::kLong).unsqueeze(1); };
  const at::Tensor live = before(lives).logical_not();
  at::Tensor seen = attention_mask(positions, all[0], rule);
  if (kept.defined()) seen = seen.logical_and(kept.repeat_interleave(group, 0).unsqueeze(1));  // [Hq, N, T]
  const at::Tensor q = query.transpose(1, 2);
  const auto scores = [&](const at::Tensor& key) { return attention_scores(q, key.transpose(1, 2), rule); };
  MixedRows result;
  const at::Tensor mixed =
      at::where(live, scores(keys.computed), at::where(before(key_ends), scores(keys.coded), scores(keys.half)))
          .masked_fill(seen.logical_not(), -std::numeric_limits<float>::infinity());
  result.weights = at::softmax(mixed, -1);
  const int64_t heads = query.size(2), kv_heads = keys.computed.size(2);
  const auto mix = [&](const at::Tensor& where, const at::Tensor& value) {
    const at::Tensor weights = result.weights.masked_fill(where.logical_not(), 0);
    const int64_t rows = positions.size(0);
    return at::matmul(weights.reshape({1, kv_heads, group * rows, tokens}), value.transpose(1, 2))
        .reshape({1, heads, rows, value.size(3)});
  };
  const at::Tensor coded = before(value_ends).logical_and(live.logical_not());
  const at::Tensor half = before(value_ends).logical_or(live).logical_not();
  result.output =
      (mix(live, values.computed) + mix(coded, values.coded) + mix(half, values.half)).transpose(1, 2).contiguous();
  return result;
}

}  // namespace kvcc
