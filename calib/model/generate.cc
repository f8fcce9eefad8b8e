#include "calib/model/generate.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr int64_t kChunk = 512;  ///< tokens of a prefill chunk

/// A prompt over its own rows in full precision; of earlier tokens what the cache gives back. Holds one layer at a
/// time.
class ExactRows : public AttentionCache {
 public:
  ExactRows(const Decoder& decoder, AttentionCache& cache, int64_t first, int64_t tokens)
      : decoder_(decoder), cache_(cache), first_(first), tokens_(tokens) {}

  at::Tensor attend(int layer, int64_t first, const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value) override {
    if (layer != layer_) start(layer, key, value);
    const int64_t count = key.size(0);
    const at::Tensor turned = decoder_.rope().rotate(key.unsqueeze(0), decoder_.rope().angles(first, count), layer)[0];
    key_.narrow(1, first, count).copy_(turned.transpose(0, 1));
    value_.narrow(1, first, count).copy_(value.transpose(0, 1));
    cache_.append(layer, first, key, value);
    return causal_attention(query, key_.narrow(1, 0, first + count), value_.narrow(1, 0, first + count));
  }
  void append(int layer, int64_t first, const at::Tensor& key, const at::Tensor& value) override {
    cache_.append(layer, first, key, value);
  }
  std::pair<at::Tensor, at::Tensor> read(int layer, int64_t count) const override { return cache_.read(layer, count); }

 private:
  void start(int layer, const at::Tensor& key, const at::Tensor& value) {
    layer_ = layer;
    if (!key_.defined()) {
      key_ = at::empty({key.size(1), first_ + tokens_, key.size(2)}, at::kFloat);
      value_ = at::empty({value.size(1), first_ + tokens_, value.size(2)}, at::kFloat);
    }
    if (first_ == 0) return;
    const auto [keys, values] = cache_.read(layer, first_);
    key_.narrow(1, 0, first_).copy_(keys.transpose(0, 1));
    value_.narrow(1, 0, first_).copy_(values.transpose(0, 1));
  }

  const Decoder& decoder_;
  AttentionCache& cache_;
  const int64_t first_, tokens_;
  int layer_ = -1;
  at::Tensor key_, value_;  ///< [H, first + tokens, D]
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

at::Tensor last_logits(const Decoder& decoder, const at::Tensor& x) {
  return decoder.logits(decoder.final_norm(x.narrow(1, x.size(1) - 1, 1))[0])[0];
}

}  // namespace

at::Tensor prefill(const Decoder& decoder, std::span<const int32_t> ids, int64_t first, AttentionCache& cache,
                   PrefillMode mode, const std::function<void(uint64_t, uint64_t)>& progress) {
  const c10::NoGradGuard no_gradient;
  const auto tokens = static_cast<int64_t>(ids.size());
  ExactRows exact(decoder, cache, first, tokens);
  AttentionCache& attention = mode == PrefillMode::exact ? static_cast<AttentionCache&>(exact) : cache;
  const Rope::Angles angles = decoder.rope().angles(first, tokens);
  at::Tensor x = decoder.embed(ids_tensor({ids.begin(), ids.end()}));
  const uint64_t chunks = (tokens + kChunk - 1) / kChunk, total = chunks * decoder.layers();
  uint64_t done = 0;
  for (int layer = 0; layer < decoder.layers(); ++layer) {
    for (int64_t begin = 0; begin < tokens; begin += kChunk) {
      check_interrupt();
      const int64_t count = std::min(kChunk, tokens - begin);
      at::Tensor part = x.narrow(1, begin, count);
      part.copy_(decoder.layer(layer, part, angles.narrow(begin, count), first + begin, attention));
      if (progress) progress(++done, total);
    }
  }
  return last_logits(decoder, x);
}

at::Tensor decode_step(const Decoder& decoder, int32_t id, int64_t position, AttentionCache& cache) {
  const c10::NoGradGuard no_gradient;
  const Rope::Angles angles = decoder.rope().angles(position, 1);
  at::Tensor x = decoder.embed(ids_tensor({id}));
  for (int layer = 0; layer < decoder.layers(); ++layer) x = decoder.layer(layer, x, angles, position, cache);
  return last_logits(decoder, x);
}

uint64_t prefill_bytes(const DecoderConfig& c, int64_t tokens, PrefillMode mode) {
  const uint64_t chunk = std::min(tokens, kChunk), query = c.query_heads * c.head_dim, key = c.kv_heads * c.head_dim;
  uint64_t floats =
      tokens * (c.hidden + 2 * c.head_dim) + chunk * (5 * c.hidden + 3 * c.feed_forward + 5 * query + 4 * key);
  // One layer's rows, once more for every query head under GQA, and the mask.
  if (mode == PrefillMode::exact) floats += tokens * (2 * key + 2 * query + 2 * chunk);
  return sizeof(float) * (floats + 2 * c.vocab);
}

int32_t Sampler::pick(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());  // the first among equals
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
    throw Error(ErrorKind::failed, "sampling", "logits that are not finite");
  }
  if (sampling_.temperature == 0) return static_cast<int32_t>(best - logits.begin());
  std::vector<double> probability(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    total += probability[i] = std::exp((double{logits[i]} - *best) / sampling_.temperature);
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  double kept = total;
  if (sampling_.top_p < 1) {
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return probability[a] > probability[b]; });
    kept = 0;
    size_t count = 0;
    while (count < order.size() && (count == 0 || kept < sampling_.top_p * total)) kept += probability[order[count++]];
    order.resize(count);
  }
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * kept;
  int32_t last = order[0];
  for (const int32_t id : order) {
    if (probability[id] == 0) continue;
    last = id;  // rounding may leave a rest: then the last possible one
    left -= probability[id];
    if (left < 0) break;
  }
  return last;
}

const char* stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::tokens:
      return "tokens";
    case StopReason::end_token:
      return "end";
    case StopReason::context:
      return "context";
    case StopReason::interrupted:
      return "interrupted";
  }
  return "";
}

Generated generate(const Decoder& decoder, std::optional<int32_t> pending, std::span<const int32_t> prompt,
                   int64_t first, AttentionCache& cache, const GenerateOptions& options,
                   const std::function<void(int32_t)>& on_token,
                   const std::function<void(uint64_t, uint64_t)>& prefill_progress) {
  Generated out;
  Sampler sampler(options.sampling);
  int64_t position = first;
  at::Tensor logits;
  auto start = std::chrono::steady_clock::now();
  if (pending) logits = decode_step(decoder, *pending, position++, cache);
  if (!prompt.empty()) {
    logits = prefill(decoder, prompt, position, cache, options.prefill, prefill_progress);
    position += static_cast<int64_t>(prompt.size());
  }
  if (!logits.defined()) throw Error(ErrorKind::usage, "generate", "no token to begin with", "a prompt");
  out.prefill_seconds = seconds_since(start);
  start = std::chrono::steady_clock::now();
  while (static_cast<int64_t>(out.ids.size()) < options.tokens) {
    const int32_t id = sampler.pick({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())});
    out.ids.push_back(id);
    on_token(id);
    if (std::find(options.end_tokens.begin(), options.end_tokens.end(), id) != options.end_tokens.end()) {
      out.reason = StopReason::end_token;
      break;
    }
    if (static_cast<int64_t>(out.ids.size()) == options.tokens) break;
    if (options.context > 0 && position >= options.context) {
      out.reason = StopReason::context;
      break;
    }
    try {
      check_interrupt();
    } catch (const Interrupted& interrupted) {
      out.reason = StopReason::interrupted;
      out.exit_code = interrupted.exit_code();
      break;
    }
    logits = decode_step(decoder, id, position++, cache);
    ++out.steps;
  }
  out.decode_seconds = seconds_since(start);
  return out;
}

}  // namespace kvcc
