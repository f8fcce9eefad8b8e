// Warnings: what makes a calibration doubtful, why, and what to do. Limits are in warnings.cc; each is explained in
// formats/spec/statistics.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "calib/report/report_data.h"

namespace kvcc {

/// Every name of a warning, those of heads and those of the whole artifact.
std::span<const char* const> warning_names();

/// What a warning means and what to do, one line; "" for a name that is not known.
std::string warning_meaning(const std::string& name);

/// Warnings of an artifact's heads, and sets each head's `flags`. Heads without the statistic that a warning needs do
/// not raise it.
std::vector<Warning> find_warnings(const Codebook& codebook, std::vector<HeadReport>& heads);

}  // namespace kvcc
