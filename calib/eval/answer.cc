#include "calib/eval/answer.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Puts a prompt's rows into several caches at once.
class FanOut : public AttentionCache {
 public:
  explicit FanOut(std::span<const std::unique_ptr<AttentionCache>> caches) : caches_(caches) {}
  at::Tensor attend(int, int64_t, const at::Tensor&, const at::Tensor&, const at::Tensor&) override {
    throw Error(ErrorKind::failed, "answers", "a prompt that attends to several caches");
  }
  void append(int layer, int64_t first, const at::Tensor& key, const at::Tensor& value) override {
    for (const auto& cache : caches_) cache->append(layer, first, key, value);
  }
  std::pair<at::Tensor, at::Tensor> read(int layer, int64_t count) const override {
    return caches_[0]->read(layer, count);
  }

 private:
  std::span<const std::unique_ptr<AttentionCache>> caches_;
};

}  // namespace

std::unique_ptr<AttentionCache> empty_cache(const EvalSubject& subject, const ModelInfo& model, const Rope& rope,
                                            int threads) {
  if (!subject.codebook) {
    return std::make_unique<IncrementalCache>(subject.scheme, model.shape, rope, threads, subject.rotations.get());
  }
  Codebook codebook = *subject.codebook;
  codebook.scheme = subject.scheme;
  return std::make_unique<IncrementalCache>(codebook, rope, model.shape.layers, threads);
}

std::vector<Answer> answers(const Decoder& decoder, std::span<const int32_t> prompt,
                            std::span<const std::unique_ptr<AttentionCache>> caches, const GenerateOptions& options) {
  std::vector<Answer> result(caches.size());
  const auto run = [&](size_t i, std::optional<int32_t> pending, std::span<const int32_t> text, int64_t first,
                       const GenerateOptions& how) {
    const Generated out = generate(decoder, pending, text, first, *caches[i], how, [](int32_t) {});
    if (out.reason == StopReason::interrupted) check_interrupt();
    result[i].ids.insert(result[i].ids.end(), out.ids.begin(), out.ids.end());
    result[i].seconds += out.prefill_seconds + out.decode_seconds;
  };
  if (options.prefill == PrefillMode::quantised) {
    for (size_t i = 0; i < caches.size(); ++i) run(i, std::nullopt, prompt, 0, options);
    return result;
  }
  FanOut all(caches);
  const at::Tensor logits = prefill(decoder, prompt, 0, all, PrefillMode::exact);
  Sampler greedy({});
  const int32_t id = greedy.pick({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())});
  const bool ended = std::find(options.end_tokens.begin(), options.end_tokens.end(), id) != options.end_tokens.end();
  GenerateOptions rest = options;
  rest.tokens = options.tokens - 1;
  for (size_t i = 0; i < caches.size(); ++i) {
    result[i].ids.push_back(id);
    if (!ended && rest.tokens > 0) run(i, id, {}, static_cast<int64_t>(prompt.size()), rest);
  }
  return result;
}

}  // namespace kvcc
