// Answers of a model to a prompt over several quantised caches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "calib/eval/evaluate.h"
#include "calib/eval/incremental_cache.h"
#include "calib/model/generate.h"

namespace kvcc {

/// What a subject's cache holds at the start of a text: nothing. `rope` must outlive it.
std::unique_ptr<AttentionCache> empty_cache(const EvalSubject& subject, const ModelInfo& model, const Rope& rope,
                                            int threads);

struct Answer {
  std::vector<int32_t> ids;  ///< greedily decoded, an end token included
  double seconds = 0;        ///< of decoding, and of the prompt where it is not shared
};

/// One prompt, ids not empty, over each of `caches` (all empty). With options.prefill exact the prompt runs once for
/// all of them, as its tokens see only what was computed. options.tokens is at least 1, sampling is greedy. Throws
/// Error, Interrupted.
std::vector<Answer> answers(const Decoder& decoder, std::span<const int32_t> prompt,
                            std::span<const std::unique_ptr<AttentionCache>> caches, const GenerateOptions& options);

}  // namespace kvcc
