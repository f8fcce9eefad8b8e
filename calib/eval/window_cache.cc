#include "calib/eval/window_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>

#include "formats/codec/reference.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Mixtures of versions of keys and values are not made of latents, which are both.
Error no_latent(const std::string& what) {
  return Error(ErrorKind::usage, "latent attention", what, "mode full alone");
}

/// coded [1, T, H, D] with some tokens of [begin, end) as they are in `exact`.
at::Tensor repaired(const at::Tensor& exact, const at::Tensor& coded, int64_t begin, int64_t end,
                    const Repair& repair) {
  if (begin >= end) return coded;
  const at::Tensor error = (exact - coded).narrow(1, begin, end - begin).square().sum({0, 2, 3});
  const auto worst = static_cast<int64_t>(std::ceil(repair.percent / 100 * static_cast<double>(end - begin)));
  const at::Tensor order = error.argsort(/*stable=*/true, 0, /*descending=*/true);
  const at::Tensor chosen = repair.worst ? order.narrow(0, 0, worst) : order.narrow(0, worst, end - begin - worst);
  at::Tensor out = coded.clone();
  out.index_copy_(1, chosen + begin, exact.index_select(1, chosen + begin));
  return out;
}

/// Output rows [N, Hq, Dv] of query positions, from [1, T, Hq, Dv].
at::Tensor rows_at(const at::Tensor& output, const at::Tensor& positions) {
  return output[0].index_select(0, positions);
}

}  // namespace

at::Tensor rounded_to_half(const at::Tensor& x, int layer, CacheTensor tensor) {
  at::Tensor out = x.clone(at::MemoryFormat::Contiguous);
  const std::span<float> numbers(out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel()));
  round_to_record(numbers, numbers,
                  "layer " + std::to_string(layer) + (tensor == CacheTensor::key ? " key" : " value"));
  return out;
}

std::function<TokenView(int64_t)> token_views(const SimulatedCache& cache, const ModeOptions& mode, int layer,
                                              int64_t tokens) {
  return [&cache, mode, layer, tokens](int64_t t) {
    const int64_t cached = mode.cached(t, tokens);
    return TokenView{cache.quantised_end(layer, CacheTensor::key, cached),
                     cache.quantised_end(layer, CacheTensor::value, cached), mode.live(t)};
  };
}

WindowCache::WindowCache(SimulatedCache& cache, const ModeOptions& mode, std::optional<Repair> repair)
    : cache_(cache), mode_(mode), repair_(repair) {}

void WindowCache::measure_attention(const AttentionReference* reference, AttentionErrors* errors) {
  reference_ = reference;
  attention_errors_ = errors;
}

void WindowCache::before_rope(int layer, at::Tensor& key, at::Tensor& value) {
  at::Tensor coded_key = key.clone();
  value_ = {value, {}, value.clone()};
  cache_.before_rope(layer, coded_key, value_.coded);
  const int64_t tokens = key.size(1);
  if (repair_) {
    const int64_t end = cache_.quantised_end(layer, CacheTensor::value, tokens);
    value_.coded = repaired(value_.computed, value_.coded, std::min<int64_t>(cache_.scheme().sink, end), end, *repair_);
  }
  if (mode_.mode != EvalMode::full) value_.half = rounded_to_half(value, layer, CacheTensor::value);
  key = at::cat({key, coded_key});
}

void WindowCache::after_rope(int layer, at::Tensor& key) {
  const int64_t tokens = key.size(1), end = cache_.quantised_end(layer, CacheTensor::key, tokens);
  const int64_t sink = std::min<int64_t>(cache_.scheme().sink, end);
  key_ = {key.narrow(0, 0, 1), {}, key.narrow(0, 1, 1)};
  cache_.after_rope(layer, key_.coded);
  if (key_errors_ != nullptr) {
    key_errors_->add(layer, key_.computed[0].narrow(0, sink, end - sink), key_.coded[0].narrow(0, sink, end - sink));
  }
  if (repair_) key_.coded = repaired(key_.computed, key_.coded, sink, end, *repair_);
  if (mode_.mode != EvalMode::full) key_.half = rounded_to_half(key_.computed, layer, CacheTensor::key);
}

at::Tensor WindowCache::attend(int layer, const at::Tensor& query, const at::Tensor&, const at::Tensor&,
                               const AttentionRule& rule) {
  at::Tensor mixed;
  if (mode_.mode == EvalMode::full) {
    at::Tensor key = key_.coded, value = value_.coded;
    if (rule.expand) std::tie(key, value) = rule.expand(key, value);
    mixed = attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), {}, rule).transpose(1, 2);
  } else if (rule.expand) {
    throw no_latent("modes other than full");
  } else {
    mixed = mixed_attention(query, key_, value_, token_views(cache_, mode_, layer, query.size(1)), mode_.chunk(),
                            mode_.prompt, rule);
  }
  if (reference_ != nullptr) {
    const int row = reference_->row(layer);
    add_grown(*attention_errors_, reference_->rows(), row, reference_->output.at(row),
              rows_at(mixed, reference_->positions));
  }
  return mixed;
}

void ReferenceTap::before_rope(int layer, at::Tensor& key, at::Tensor& value) {
  keys_ = {key};
  values_ = {value};
  for (const Subject& subject : subjects_) {
    keys_.push_back(key.clone());
    values_.push_back(value.clone());
    subject.cache->before_rope(layer, keys_.back(), values_.back());
  }
  key = at::cat(keys_);
}

void ReferenceTap::after_rope(int layer, at::Tensor& key) {
  for (size_t i = 0; i < keys_.size(); ++i) keys_[i] = key.narrow(0, static_cast<int64_t>(i), 1);
  for (size_t i = 0; i < subjects_.size(); ++i) subjects_[i].cache->after_rope(layer, keys_[i + 1]);
}

at::Tensor ReferenceTap::attend(int layer, const at::Tensor& query, const at::Tensor&, const at::Tensor&,
                                const AttentionRule& rule) {
  if (rule.expand) throw no_latent("errors of attention");
  const at::Tensor& positions = reference_.positions;
  const at::Tensor queries = query.index_select(1, positions);
  const auto rows = [&](const RowVersions& keys, const RowVersions& values,
                        const std::function<TokenView(int64_t)>& view) {
    return mixed_attention_rows(queries, positions, keys, values, view, rule);
  };
  const RowVersions key{keys_[0], keys_[0], keys_[0]}, value{values_[0], values_[0], values_[0]};
  const MixedRows exact = rows(key, value, [](int64_t) { return TokenView{}; });
  reference_.output.at(reference_.row(layer)) = exact.output[0];
  for (size_t i = 0; i < subjects_.size(); ++i) {
    const Subject& subject = subjects_[i];
    const bool full = subject.mode.mode == EvalMode::full;  // whose exact tokens are in the coded rows
    const RowVersions keys{keys_[0], full ? keys_[i + 1] : rounded_to_half(keys_[0], layer, CacheTensor::key),
                           keys_[i + 1]};
    const RowVersions values{values_[0], full ? values_[i + 1] : rounded_to_half(values_[0], layer, CacheTensor::value),
                             values_[i + 1]};
    const MixedRows theirs = rows(keys, values, token_views(*subject.cache, subject.mode, layer, query.size(1)));
    add_still(*subject.errors, reference_.rows(), reference_.row(layer), exact.weights[0], theirs.weights[0],
              exact.output[0], theirs.output[0]);
  }
  return attention(query.transpose(1, 2), keys_[0].transpose(1, 2), values_[0].transpose(1, 2), {}, rule)
      .transpose(1, 2);
}

}  // namespace kvcc
