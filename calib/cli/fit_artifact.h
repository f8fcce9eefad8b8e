// kvcc fit of scalar levels: from the fit's results to artifacts.
#pragma once

#include "calib/fit/fit.h"
#include "formats/store/codebook.h"

namespace kvcc::cli {

/// Adds a layer's statistics that no scheme changes; layers come in order.
void append_statistics(TensorCodebooks& to, const TensorFit& fit);
/// Adds a layer's result, statistics included.
void append_layer(TensorCodebooks& to, const TensorFit& fit);

}  // namespace kvcc::cli
