// What kvcc fit says: of a scheme before, of its artifacts afterwards.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/store/codebook.h"

namespace kvcc::cli {

/// One scheme's artifact. Not owned.
struct FitResult {
  const Codebook& codebook;
  const std::string& output;
  bool skipped;    ///< it was there already
  double seconds;  ///< its share of the fit that all schemes have in common
};

/// Levels or vectors of one of the tensors are clustered, which gradients may weigh.
bool has_kmeans(const Scheme& scheme);

/// The largest bound on the gap between a codebook's error and the optimum, relative; 0 where there is no k-means.
float gap_bound(const Codebook& codebook);

/// A warning that names the heads that the loss never reached, whose codebooks are unweighted, and those it reached at
/// few tokens, all at once; "" where there are none. Of activations with gradients.
std::string thin_heads(const Codebook& codebook);

/// The steps of a fit in words; ends in a newline.
std::string explain_fit(const Scheme& scheme);

/// A JSON list, a member an artifact.
nlohmann::ordered_json fit_results_json(const std::vector<FitResult>& results);
/// The same for a terminal.
std::string fit_table(const std::vector<FitResult>& results);

}  // namespace kvcc::cli
