// What a codebook artifact says about itself, as rows and as JSON: for kvcc inspect and kvcc calibrate.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "calib/report/report_data.h"
#include "calib/report/warnings.h"
#include "formats/core/effective_bits.h"

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

/// One kind's heads of one layer, together.
struct KindSum {
  double reach = 0;             ///< greatest magnitude, unit of the elements
  double outlier_fraction = 0;  ///< mean
  double fisher_mass = 0;       ///< sum
  double weighted_sse = 0;      ///< sum
  double sqnr_db = 0;           ///< mean
  int heads = 0;                ///< 0: none of the kind
};
struct LayerSums {
  KindSum kinds[2];  ///< keys, values
  int flagged = 0;   ///< heads with warnings
};
/// By the model's number of the layer. A number is NaN where a head does not have it.
std::map<int, LayerSums> layer_sums(const std::vector<HeadReport>& heads);

/// Effective bits at some contexts, with the outliers that were measured.
struct ContextBits {
  int64_t context = 0;  ///< tokens
  EffectiveBits bits;
};
std::vector<ContextBits> context_bits(const Codebook& codebook);

/// Warnings with the heads that they concern.
nlohmann::ordered_json warnings_json(const ReportData& data);
/// Heads by layer, each in the order given: "layer", "summary", "key", "value".
nlohmann::ordered_json layers_json(const std::vector<HeadReport>& heads);
/// The document of CLI.md, without schema_version: kind, format_version, model, scheme, provenance, warnings, layers,
/// the latter of `heads` alone.
nlohmann::ordered_json codebook_json(const ReportData& data, const std::vector<HeadReport>& heads);

}  // namespace kvcc
