// Decoding token by token over an AttentionCache: prefill, one step, sampling, and the loop of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "calib/model/decoder.h"

namespace kvcc {

enum class PrefillMode {
  exact,      ///< the prompt attends to its own rows in full precision, and is stored then (KIVI's protocol)
  quantised,  ///< each token attends to what the cache gives back (KVQuant's protocol)
};

/// Runs ids, at least one, at positions `first` on, which the cache has all tokens before; stores them. Logits of the
/// last one, f32 [vocab]. Layer by layer in chunks of tokens, so that memory does not grow with their square.
/// `progress` (may be empty) gets chunks done and in all. Throws Error, Interrupted (the cache is of no use then).
at::Tensor prefill(const Decoder& decoder, std::span<const int32_t> ids, int64_t first, AttentionCache& cache,
                   PrefillMode mode, const std::function<void(uint64_t, uint64_t)>& progress = {});

/// Runs one token at `position`, likewise. Not interrupted: all layers have the token, or an Error is thrown.
at::Tensor decode_step(const Decoder& decoder, int32_t id, int64_t position, AttentionCache& cache);

/// Estimate of what prefill takes beside model and cache.
uint64_t prefill_bytes(const DecoderConfig& config, int64_t tokens, PrefillMode mode);

struct Sampling {
  double temperature = 0;  ///< 0: the most likely token, the lowest id among equals
  double top_p = 1;        ///< only the likeliest tokens that together have at least this probability
  uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const Sampling& sampling) : sampling_(sampling), random_(sampling.seed) {}
  /// Id of one token. Throws Error(failed) for logits that are not finite.
  int32_t pick(std::span<const float> logits);

 private:
  Sampling sampling_;
  std::mt19937_64 random_;
};

enum class StopReason { tokens, end_token, context, interrupted };
const char* stop_reason_name(StopReason reason);  ///< "tokens", "end", "context", "interrupted"

struct GenerateOptions {
  int64_t tokens = 128;  ///< at most
  PrefillMode prefill = PrefillMode::exact;
  Sampling sampling;
  std::vector<int32_t> end_tokens;  ///< generation ends after one of these
  int64_t context = 0;              ///< positions that the model has; 0: no limit
};

struct Generated {
  std::vector<int32_t> ids;  ///< an end token included; the last one is not in the cache yet
  StopReason reason = StopReason::tokens;
  int exit_code = 0;  ///< of an interrupt, 128 + signal
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t steps = 0;  ///< passes of one token, in decode_seconds
};

/// Runs `pending`, a token that was decided but is not in the cache, as one step; prefills `prompt`, from position
/// `first` on (either may be missing, not both), and generates. on_token gets each id as it is made. An interrupt
/// during prefill is thrown as Interrupted; later it ends generation.
Generated generate(const Decoder& decoder, std::optional<int32_t> pending, std::span<const int32_t> prompt,
                   int64_t first, AttentionCache& cache, const GenerateOptions& options,
                   const std::function<void(int32_t)>& on_token,
                   const std::function<void(uint64_t, uint64_t)>& prefill_progress = {});

}  // namespace kvcc
