// What an artifact of vector codebooks says about itself beside the heads: where its bits are, and what it is expected
// to lose.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/store/codebook.h"

namespace kvcc {

/// One tensor of one layer.
struct VectorLayer {
  int layer = 0;                                        ///< the model's number
  const char* kind = "key";                             ///< "key" or "value"
  double bits = 0;                                      ///< of codes an element
  int groups = 0, empty = 0;                            ///< empty: of 0 bits
  int most_bits = 0;                                    ///< of a group
  double predicted_fitted = 0, predicted_held_out = 0;  ///< nats a token; NaN where not measured
};
std::vector<VectorLayer> vector_layers(const Codebook& codebook);

/// "code_bits", "predicted_dnll_fitted", "predicted_dnll_held_out", "layers".
nlohmann::ordered_json vector_json(const Codebook& codebook);

/// What kvcc refine noted of its run (formats/spec/codebook.md, "Refinement"), as far as it is of the types that it
/// writes; null where the artifact was not refined.
nlohmann::ordered_json refinement_json(const Codebook& codebook);
/// The same in a line; "" where it was not refined.
std::string refinement_text(const Codebook& codebook);

/// Rows for a table: keys and values of each layer side by side, with a head line.
std::vector<std::vector<std::string>> vector_rows(const Codebook& codebook);

}  // namespace kvcc
