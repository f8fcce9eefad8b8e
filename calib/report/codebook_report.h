// What a codebook artifact says about itself, as rows and as JSON: for kvcc inspect and kvcc calibrate.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "calib/report/report_data.h"
#include "calib/report/warnings.h"

namespace kvcc {

/// A column of the table of heads: its name is the JSON member's and the --sort argument's.
struct HeadColumn {
  const char* name;
  const char* unit;                    ///< as formats/spec/statistics.md has it
  bool whole;                          ///< a count or a number: -1 where it is not known
  double (*value)(const HeadReport&);  ///< null for columns that are no numbers
  std::string (*text)(const HeadReport&);
};
const std::vector<HeadColumn>& head_columns();

/// A per-channel statistic: its name is the JSON member's below "channels" and the CSV column's.
struct ChannelColumn {
  const char* name;
  const char* unit;
  std::vector<float> ChannelReport::*values;
};
std::span<const ChannelColumn> channel_columns();

/// Which heads to show. Throws Error(usage) from select_heads when a number is not in the artifact.
struct HeadFilter {
  std::optional<int> layer;  ///< the model's number
  std::optional<int> head;
  std::string kind;  ///< "", "key" or "value"
  std::string sort;  ///< column's name; "": by layer, kind, head. Largest first, "-NAME": smallest first
  int top = 0;       ///< first rows only; 0: all
};

std::vector<HeadReport> select_heads(std::vector<HeadReport> heads, const HeadFilter& filter);

/// First row: the columns' names.
std::vector<std::vector<std::string>> head_table(const std::vector<HeadReport>& heads);
/// One row a layer: means and extremes over its heads, key beside value.
std::vector<std::vector<std::string>> layer_table(const std::vector<HeadReport>& heads);

/// The document of CLI.md, without schema_version: kind, format_version, model, scheme, provenance, warnings, layers,
/// the latter of `heads` alone.
nlohmann::ordered_json codebook_json(const ReportData& data, const std::vector<HeadReport>& heads);

}  // namespace kvcc
