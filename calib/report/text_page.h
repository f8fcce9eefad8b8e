// kvcc inspect on a terminal: what an artifact or activations hold, as text no wider than the terminal.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "calib/report/codebook_report.h"
#include "calib/report/text_chart.h"

namespace kvcc {

/// One line a layer, keys beside values, with bars: the greatest |x|, Fisher mass and error. More numbers where there
/// is room. Ends with what the columns mean.
std::string layers_text(const std::vector<HeadReport>& heads, const TextStyle& style);

/// A line a head with the columns that fit, `sort` (a column's name, with or without "-") always among them.
std::string heads_text(const std::vector<HeadReport>& heads, const std::string& sort, const TextStyle& style);

/// One head in full: its numbers, the codebook on a line, the histogram with thresholds and codes, channels' ranges.
std::string head_text(const HeadReport& head, const Codebook& codebook, const TextStyle& style);

/// Warnings with cause and cure; "" without any.
std::string warnings_text(const std::vector<Warning>& warnings, const TextStyle& style);

/// Every number of every head as comma-separated values, one row a head; lists (codebook, histogram, code_use,
/// channels.NAME) as numbers with spaces between. First row: names.
std::string heads_csv(const std::vector<HeadReport>& heads);

}  // namespace kvcc
