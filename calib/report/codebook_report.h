// What a codebook artifact says about itself, as rows and as JSON: for kvcc inspect and kvcc calibrate.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/store/codebook.h"

namespace kvcc {

/// One head of one tensor of one layer.
struct HeadReport {
  int layer = 0;                ///< the model's number
  const char* kind = "key";     ///< "key" or "value"
  int head = 0;                 ///< KV head
  int bits = 0;                 ///< width of a code
  std::vector<float> codebook;  ///< the 2^bits levels
  // Where the artifact has no such statistic the number is NaN: "-" in tables, null in JSON.
  double range_min = 0, range_max = 0;  ///< over the head's channels, unit of the elements
  double outlier_fraction = 0;          ///< stored sparse on the calibration text
  double fisher_mass = 0;               ///< sum of F over tokens and channels
  double weighted_sse = 0;              ///< sum of F (x - x^)^2
  double sqnr_db = 0;
  double first_token_share = 0;  ///< of fisher_mass, on the first token of samples
  double fit_gap_bound = 0;      ///< relative distance of the fit from the optimum, at most
  int64_t distinct = -1;         ///< different levels; -1: unknown
  int64_t reached = -1;          ///< tokens with a gradient other than 0; -1: unknown
  int constant_channels = 0;     ///< channels whose least and largest value are the same
  /// What deserves a look: "constant-channels", "no-fisher", "first-token", "offset", "few-levels".
  std::vector<std::string> flags;
};

/// A column of the table of heads: its name is the JSON member's and the --sort argument's.
struct HeadColumn {
  const char* name;
  double (*value)(const HeadReport&);
  std::string (*text)(const HeadReport&);
};
const std::vector<HeadColumn>& head_columns();

/// Which heads to show. Throws Error(usage) from select_heads when a number is not in the artifact.
struct HeadFilter {
  std::optional<int> layer;  ///< the model's number
  std::optional<int> head;
  std::string kind;  ///< "", "key" or "value"
  std::string sort;  ///< column's name; "": by layer, kind, head. Largest first, "-NAME": smallest first
  int top = 0;       ///< first rows only; 0: all
};

/// What a flag means and what to do, one line; "" for a flag that is not known.
std::string flag_meaning(const std::string& flag);

std::vector<HeadReport> head_reports(const Codebook& codebook);
std::vector<HeadReport> select_heads(std::vector<HeadReport> heads, const HeadFilter& filter);

/// First row: the columns' names.
std::vector<std::vector<std::string>> head_table(const std::vector<HeadReport>& heads);
/// One row a layer: means and extremes over its heads, key beside value.
std::vector<std::vector<std::string>> layer_table(const std::vector<HeadReport>& heads);

/// The document of CLI.md, without schema_version: kind, format_version, model, scheme, provenance, layers.
nlohmann::ordered_json codebook_json(const Codebook& codebook, const std::vector<HeadReport>& heads);

}  // namespace kvcc
