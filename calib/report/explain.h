// What each ingredient of a scheme buys for one head, as in the ablation of KVQuant (section 4): levels, Fisher
// weights, a codebook for each head, outliers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calib/fit/fit.h"
#include "calib/report/text_chart.h"

namespace kvcc {

/// One way to quantise the head, at the scheme's width, and what it costs on the calibration text.
struct Candidate {
  const char* kind = "key";    ///< "key" or "value"
  const char* levels = "int";  ///< "int", "nf", "k-means", "k-means Fisher"
  const char* codebook = "";   ///< "layer" or "head" for k-means; else ""
  bool outliers = false;       ///< with the scheme's sparse part (1 % where it has none)
  bool chosen = false;         ///< what the scheme itself does
  Scheme scheme;               ///< of this kind alone; the other kind is not quantised
  double weighted_sse = 0;     ///< sum of F (x - x^)^2, nat^2, over the head's quantised tokens
  double sqnr_db = 0;
  double outlier_fraction = 0;
};

/// Candidates for a head of the layer, `kind` "key", "value" or "" for both. nf is left out at widths that it is not
/// defined for. Throws Error(usage) for a kind that the scheme does not quantise, for keys after RoPE, which
/// activations do not hold, and for a head that there is none of.
std::vector<Candidate> explain_head(const LayerActivations& activations, const Scheme& scheme, int head,
                                    const std::string& kind, int threads);

std::string explain_text(const std::vector<Candidate>& candidates, const TextStyle& style);
nlohmann::ordered_json explain_json(const std::vector<Candidate>& candidates);

}  // namespace kvcc
