// kvcc fit by several ranks: each fits layers of its own, and rank 0 joins them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "calib/fit/vector_fit.h"
#include "calib/ranks/ranks.h"
#include "formats/store/codebook.h"

namespace kvcc::cli {

/// One layer of an artifact: the arrays of TensorCodebooks with L = 1.
struct LayerPart {
  TensorCodebooks key, value;
};

/// Layers come in order.
void append_part(Codebook& to, const LayerPart& layer);

/// Rows of the layers that a rank fits; all of them for `ranks` null.
std::vector<int> own_layers(const Ranks* ranks, int layers);

/// parts [artifact][layer]: sends those of the own layers to rank 0, which gets all. Throws as Ranks.
void gather_parts(Ranks& ranks, std::vector<std::vector<LayerPart>>& parts);

/// Gives every rank's fit the tables of all layers that allocate() looks at. Throws as Ranks.
void exchange_tables(Ranks& ranks, VectorFit& fit, int layers);

/// Refuses a rank that fits something else. Throws Error(bad_input) naming it. Returns what `mine` was on rank 0.
std::string agree_on(Ranks& ranks, const std::string& what, const std::string& mine);

}  // namespace kvcc::cli
