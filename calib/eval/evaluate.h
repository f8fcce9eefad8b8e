// Evaluate: what quantised caches do to a model's predictions, against full precision, on windows of text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calib/eval/eviction.h"
#include "calib/eval/mode.h"
#include "calib/eval/record.h"
#include "calib/eval/spectral.h"
#include "calib/eval/statistics.h"
#include "formats/core/scheme.h"
#include "formats/store/codebook.h"
#include "formats/weights/model_files.h"

namespace kvcc {

/// A row of the table: an artifact, or a scheme that needs none.
struct EvalSubject {
  Scheme scheme;                                       ///< with the sinks and the tail that it is run with
  std::optional<Codebook> codebook;                    ///< its scheme's own sinks and tail don't count
  std::shared_ptr<const SpectralRotations> rotations;  ///< where the scheme needs them
  std::string path;                                    ///< of the artifact, for errors and JSON
  std::string name;                                    ///< as the scheme is known, for tables
};

struct EvalOptions {
  std::vector<ModeOptions> modes{ModeOptions{}};  ///< every subject is run in each
  std::optional<Eviction> eviction;               ///< of every subject; then not full mode, repairs or attention
  std::vector<double> repair_percents;            ///< two passes more for each of them
  int64_t attention_queries = 0;                  ///< queries of a window at which attention is compared; 0: none
  int threads = 1;
};

/// Means are over windows of means over the T - 1 predictions of each; errors are standard errors over windows, NaN for
/// one window; logarithms are natural.
struct EvalResult {
  size_t subject = 0;  ///< of those given
  ModeOptions mode;
  double nll = 0, perplexity = 0;
  Estimate dnll;  ///< against full precision, paired
  Estimate kl;    ///< KL(full precision || scheme) a token
  /// Of the KL of all predictions together; errors are of the windows' own quantiles.
  Estimate kl_median, kl_p90, kl_p99, kl_p999;
  Estimate top1;                         ///< share of predictions whose most likely token is full precision's
  double key_outlier_fraction = 0;       ///< of these windows
  std::vector<double> window_nll;        ///< [windows]
  std::vector<double> bin_kl, bin_dnll;  ///< [bins of EvalReport], means over windows
  KeyErrors key_errors;
  std::vector<RepairedKl> repairs;  ///< means over windows
  AttentionErrors attention;
  double kept = 1;     ///< see WindowRecord
  double seconds = 0;  ///< of all windows
};

struct EvalReport {
  EvalResult full;                  ///< the model itself
  std::vector<EvalResult> results;  ///< subject by subject, each in all modes
  std::vector<int64_t> bins;        ///< first predicted position of each bin of positions, then the window's length
  std::vector<int64_t> queries;     ///< positions at which attention was compared
};

/// The rotations of a scheme that needs them, from the model's passes over calibration windows [n][seqlen].
std::shared_ptr<const SpectralRotations> make_rotations(const ModelFiles& files, const Scheme& scheme,
                                                        const std::vector<std::vector<int32_t>>& windows, int threads,
                                                        const std::function<void(uint64_t done)>& progress = {});

/// Estimate of the resident memory of evaluate() with windows of `seqlen` tokens.
uint64_t eval_bytes(const ModelFiles& files, int64_t seqlen, size_t subjects, const EvalOptions& options);

/// Of a subject in a mode, for progress, messages and journals: all that decides what is measured.
std::string run_name(const EvalSubject& subject, const ModeOptions& mode, const EvalOptions& options);

/// windows [n][seqlen], seqlen at least 2. `journal` may be null. `progress` gets forward passes done and in all, and
/// what runs next. One full-precision pass a window serves all. Throws Error, Interrupted.
EvalReport evaluate(const ModelFiles& files, const std::vector<std::vector<int32_t>>& windows,
                    const std::vector<EvalSubject>& subjects, const EvalOptions& options,
                    EvalJournal* journal = nullptr,
                    const std::function<void(uint64_t done, uint64_t total)>& progress = {});

}  // namespace kvcc
