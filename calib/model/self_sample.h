// Text that the model samples from itself, where no other text is to be had.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "formats/weights/model_files.h"

namespace kvcc {

/// Estimate of the resident memory of sample_from_model: all sequences are decoded together, so it grows with
/// samples times seqlen.
uint64_t self_sample_bytes(const ModelFiles& files, int64_t samples, int64_t seqlen);

/// `samples` sequences of `seqlen` ids at temperature 1 from the whole distribution, decoded together with a key/value
/// cache. Each begins with the BOS token, else EOS, else id 0, and goes on after an end-of-text token (what follows is
/// another text). Sample s draws from std::mt19937_64 seeded with {seed, s}: one 53-bit uniform a token, inverse of the
/// cumulative distribution in vocabulary order. The same ids for the same build, model, `samples`, `seqlen` and seed.
/// `progress` (may be empty) gets the tokens done of each sequence. Throws Interrupted; Error(failed) for logits that
/// are not finite.
std::vector<std::vector<int32_t>> sample_from_model(const ModelFiles& files, int64_t samples, int64_t seqlen,
                                                    uint64_t seed, int threads,
                                                    const std::function<void(int64_t)>& progress = {});

}  // namespace kvcc
