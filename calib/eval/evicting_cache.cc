#include "calib/eval/evicting_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <vector>

#include "calib/eval/window_cache.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr int64_t kChunk = 128;  ///< queries whose weights are made at once

/// Rows index[h][i] of head h: x [1, T, H, D], index [H, n] to [1, n, H, D].
at::Tensor gathered(const at::Tensor& x, const at::Tensor& index) {
  const at::Tensor where = index.t().unsqueeze(0).unsqueeze(-1).expand({1, index.size(1), x.size(2), x.size(3)});
  return x.gather(1, where);
}

/// The other way round, into `tokens` rows, which are zero elsewhere.
at::Tensor scattered(const at::Tensor& x, const at::Tensor& index, int64_t tokens) {
  const at::Tensor where = index.t().unsqueeze(0).unsqueeze(-1).expand_as(x);
  return at::zeros({1, tokens, x.size(2), x.size(3)}, at::kFloat).scatter(1, where, x);
}

RowVersions only_computed(const at::Tensor& x) { return {x, x, x}; }

RowVersions first_rows(const RowVersions& x, int64_t count) {
  return {x.computed.narrow(1, 0, count), x.half.narrow(1, 0, count), x.coded.narrow(1, 0, count)};
}

}  // namespace

void EvictingCache::before_rope(int, at::Tensor& key, at::Tensor& value) {
  before_ = key;
  value_ = value;
}

void EvictingCache::after_rope(int, at::Tensor& key) { key_ = key; }

at::Tensor EvictingCache::attend(int layer, const at::Tensor& query, const at::Tensor&, const at::Tensor&,
                                 const AttentionRule& rule) {
  const std::string place = "layer " + std::to_string(layer);
  if (rule.window > 0 && rule.window < query.size(1)) {
    throw Error(ErrorKind::usage, place, "eviction from a sliding window", "layers that see all tokens");
  }
  if (rule.expand) throw Error(ErrorKind::usage, place, "eviction of latents", "keys and values of heads");
  return mode_.mode == EvalMode::prefill_exact ? after_prompt(layer, query, rule) : block_by_block(layer, query, rule);
}

at::Tensor EvictingCache::after_prompt(int layer, const at::Tensor& query, const AttentionRule& rule) {
  const int64_t tokens = query.size(1), prompt = std::min(mode_.prompt, tokens), heads = key_.size(2);
  const auto part = [](const at::Tensor& x, int64_t begin, int64_t end) { return x.narrow(1, begin, end - begin); };
  const at::Tensor prompt_output =
      attention(part(query, 0, prompt).transpose(1, 2), part(key_, 0, prompt).transpose(1, 2),
                part(value_, 0, prompt).transpose(1, 2), {}, rule)
          .transpose(1, 2);
  if (prompt == tokens) return prompt_output;
  EvictionScores scores(eviction_, layer, layers_, heads);
  for (int64_t begin = 0, end = 0; begin < prompt; begin = end) {
    end = std::min(prompt, begin + kChunk);
    if (!scores.needs(prompt - end + 1)) continue;
    const RowVersions keys = only_computed(part(key_, 0, end)), values = only_computed(part(value_, 0, end));
    scores.attended(mixed_attention_rows(
                        part(query, begin, end), at::arange(begin, end, at::kLong), keys, values,
                        [](int64_t) { return TokenView{}; }, rule)
                        .weights[0]);
  }
  const at::Tensor kept = scores.select(at::ones({heads, prompt}, at::kBool));
  const at::Tensor survivors = kept.nonzero().select(1, 1).view({heads, -1});
  scores.compact(survivors);
  const at::Tensor index = at::cat({survivors, at::arange(prompt, tokens, at::kLong).expand({heads, -1})}, 1);
  at::Tensor coded_key = gathered(before_, index), coded_value = gathered(value_, index);
  cache_.before_rope(layer, coded_key, coded_value);
  coded_key = gathered(rope_.rotate(scattered(coded_key, index, tokens), rope_.angles(0, tokens), layer), index);
  cache_.after_rope(layer, coded_key);
  const at::Tensor key = gathered(key_, index), value = gathered(value_, index);
  const RowVersions keys{key, rounded_to_half(key, layer, CacheTensor::key), coded_key};
  const RowVersions values{value, rounded_to_half(value, layer, CacheTensor::value), coded_value};
  const at::Tensor queries = part(query, prompt, tokens);
  if (eviction_.kind == EvictionKind::h2o) {
    return at::cat({prompt_output, token_by_token(layer, queries, keys, values, scores, rule)}, 1);
  }
  const int64_t first = survivors.size(1);
  for (int64_t t = prompt; t < tokens; ++t)
    count(static_cast<double>(first + t - prompt + 1), static_cast<double>(t + 1));
  const ModeOptions cached{EvalMode::prefill_exact, mode_.block, 0};
  return at::cat(
      {prompt_output, mixed_attention(queries, keys, values, token_views(cache_, cached, layer, index.size(1)), kChunk,
                                      0, rule, first)},
      1);
}

at::Tensor EvictingCache::token_by_token(int layer, const at::Tensor& query, const RowVersions& keys,
                                         const RowVersions& values, EvictionScores& scores, const AttentionRule& rule) {
  const int64_t rows = keys.computed.size(1), first = rows - query.size(1), heads = keys.computed.size(2);
  const ModeOptions cached{EvalMode::prefill_exact, mode_.block, 0};
  const auto views = token_views(cache_, cached, layer, rows);
  const double before = static_cast<double>(key_.size(1) - query.size(1));  // tokens of the prompt
  at::Tensor kept = at::ones({heads, first}, at::kBool);
  std::vector<at::Tensor> outputs;
  for (int64_t row = first; row < rows; ++row) {
    kept = at::cat({kept, at::ones({heads, 1}, at::kBool)}, 1);
    count(kept[0].sum().item<double>(), before + static_cast<double>(row - first + 1));
    const MixedRows now =
        mixed_attention_rows(query.narrow(1, row - first, 1), at::arange(row, row + 1, at::kLong),
                             first_rows(keys, row + 1), first_rows(values, row + 1), views, rule, kept);
    outputs.push_back(now.output);
    scores.attended(now.weights[0]);
    kept = scores.select(kept);
  }
  return at::cat(outputs, 1);
}

at::Tensor EvictingCache::block_by_block(int layer, const at::Tensor& query, const AttentionRule& rule) {
  const int64_t tokens = query.size(1), heads = key_.size(2);
  at::Tensor coded_key = before_.clone(), coded_value = value_.clone();
  cache_.before_rope(layer, coded_key, coded_value);
  coded_key = rope_.rotate(coded_key, rope_.angles(0, tokens), layer);
  cache_.after_rope(layer, coded_key);
  const RowVersions keys{key_, rounded_to_half(key_, layer, CacheTensor::key), coded_key};
  const RowVersions values{value_, rounded_to_half(value_, layer, CacheTensor::value), coded_value};
  const auto views = token_views(cache_, mode_, layer, tokens);
  EvictionScores scores(eviction_, layer, layers_, heads);
  at::Tensor kept = at::ones({heads, 0}, at::kBool);
  std::vector<at::Tensor> outputs;
  for (int64_t begin = 0; begin < tokens; begin += mode_.block) {
    const int64_t end = std::min(tokens, begin + mode_.block);
    count(begin > 0 ? kept[0].sum().item<double>() : 0, static_cast<double>(begin));
    kept = at::cat({kept, at::ones({heads, end - begin}, at::kBool)}, 1);
    const MixedRows now = mixed_attention_rows(query.narrow(1, begin, end - begin), at::arange(begin, end, at::kLong),
                                               first_rows(keys, end), first_rows(values, end), views, rule, kept);
    outputs.push_back(now.output);
    scores.attended(now.weights[0]);
    kept = scores.select(kept);
  }
  return at::cat(outputs, 1);
}

}  // namespace kvcc
