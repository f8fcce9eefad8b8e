// From records of windows to the figures of a table's row.
#pragma once

#include <cstdint>
#include <vector>

#include "calib/eval/evaluate.h"

namespace kvcc {

/// Starts of at most 16 bins of equal width of the predicted positions 1 to seqlen - 1, then seqlen.
std::vector<int64_t> position_bins(int64_t seqlen);

/// Records of one run and of full precision, window by window.
EvalResult summarise(const std::vector<WindowRecord>& run, const std::vector<WindowRecord>& full,
                     const std::vector<int64_t>& bins);

}  // namespace kvcc
