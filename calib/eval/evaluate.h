// Evaluate: what quantised caches do to a model's predictions, against full precision, on windows of text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/core/effective_bits.h"
#include "formats/core/scheme.h"
#include "formats/store/codebook.h"
#include "formats/weights/model_files.h"

namespace kvcc {

/// One row of the table: an artifact, or a scheme that needs none.
struct EvalSubject {
  Scheme scheme;
  std::optional<Codebook> codebook;
  std::string path;  ///< of the artifact, for errors and JSON
};

/// All means are over windows of means over the T - 1 predictions of each; logarithms are natural.
struct EvalResult {
  double nll = 0, perplexity = 0;
  double dnll = 0, dnll_se = 0;     ///< against full precision; standard error of the paired difference over windows
  double kl = 0, kl_se = 0;         ///< KL(full precision || scheme) a token; standard error over windows
  double top1_agreement = 0;        ///< share of predictions whose most likely token is full precision's
  double key_outlier_fraction = 0;  ///< of these windows
  std::vector<double> window_nll;   ///< [windows]
  EffectiveBits effective;          ///< at the query's context
};

struct EvalReport {
  EvalResult full;                  ///< the model itself
  std::vector<EvalResult> results;  ///< as the subjects
};

/// Fields in which an artifact's model is another one ("kv_heads: artifact 3, model 2"); empty when it fits.
std::vector<std::string> geometry_differences(const ModelInfo& artifact, const ModelInfo& model);

/// Throws Error(bad_input) when the artifact was made for a model of other geometry, with the differing fields, or has
/// codebooks of layers that the model does not have.
void check_geometry(const std::string& path, const Codebook& artifact, const ModelInfo& model);

/// Estimate of the resident memory of evaluate() with windows of `seqlen` tokens.
uint64_t eval_bytes(const ModelFiles& files, int64_t seqlen, size_t subjects);

/// windows [n][seqlen], seqlen at least 2. Standard errors are NaN for one window. `progress` gets forward passes done
/// and in all. Throws Error, Interrupted.
EvalReport evaluate(const ModelFiles& files, const std::vector<std::vector<int32_t>>& windows,
                    const std::vector<EvalSubject>& subjects, const EffectiveBitsQuery& bits, int threads,
                    const std::function<void(uint64_t done, uint64_t total)>& progress = {});

}  // namespace kvcc
