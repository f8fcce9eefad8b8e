// What quantised weights (.kvcw) hold, as rows of a table and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/store/weights_file.h"

namespace kvcc {

/// A row a layer, or with `layer` from 0 a row for each matrix of that layer, and a last one of all of them: bits a
/// weight with everything counted, share of exact weights, relative squared error, Fisher-weighted error and its share
/// of the file's. The first row names the columns. Throws Error(usage) for a layer that has no matrices.
std::vector<std::vector<std::string>> weights_rows(const QuantisedWeights& weights, int layer = -1);

/// Name, model, provenance, bits and all layers with their matrices.
nlohmann::ordered_json weights_json(const QuantisedWeights& weights);

}  // namespace kvcc
