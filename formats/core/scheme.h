// The scheme space (DESIGN.md, "One scheme space"): a point in it, its text form, and the named presets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

enum class Grid : uint8_t {
  full,          ///< "fp": not quantised
  integer,       ///< "int": uniform levels between the ends of the range (RTN-F, METHODS.md 1.1)
  normal_float,  ///< "nf": quantiles of a normal density (METHODS.md 5.4)
  nuq,           ///< "nuq": levels by Fisher-weighted k-means
};
enum class Site : uint8_t { pre_rope, post_rope };  ///< where keys are taken; "prerope", "postrope"
enum class Axis : uint8_t {
  channel,  ///< one static scale and zero per channel, offline
  token,    ///< one online scale and zero per token, over all KV heads of the layer
};
enum class CodebookScope : uint8_t { layer, head };
enum class FitWeight : uint8_t {
  none,  ///< "none": unweighted
  f,     ///< "f": Fisher diagonal, as KVQuant's release (METHODS.md 2.2)
  fs2,   ///< "fs2": Fisher times squared range, KVQuant paper appendix E eq. (7)
};

/// How one of the two tensors (key or value) is quantised.
struct TensorScheme {
  Grid grid = Grid::full;
  int bits = 16;               ///< 1 to 8; 16 for Grid::full
  Site site = Site::pre_rope;  ///< keys only
  Axis axis = Axis::token;
  bool operator==(const TensorScheme&) const = default;
};

struct Scheme {
  TensorScheme key, value;
  double sparse = 0.0;  ///< fraction stored exactly, both tails together (0.01 = 0.5 % a tail)
  int sink = 0;         ///< first tokens kept at full precision
  int residual = 0;     ///< last tokens kept at full precision
  CodebookScope codebook = CodebookScope::head;
  FitWeight weight = FitWeight::fs2;
  bool first_in_thresholds = false;  ///< first token of each sample counts in thresholds, scales and zero-points
  bool first_in_kmeans = false;      ///< … in the k-means
  bool operator==(const Scheme&) const = default;
  bool is_full() const { return key.grid == Grid::full && value.grid == Grid::full; }
  /// Needs statistics of the model (a .kvcb); false for schemes that work on-line alone (int per token, fp).
  bool needs_calibration() const;
};

/// Parses a preset ("kvcc-nuq3-1%-sink1", "kvquant-nuq4-1%-sink1", "int4", "fp") or the spelt-out form
/// ("k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=1,codebook=head,weight=fs2,first-thresholds=out,first-kmeans=out").
/// Throws Error(usage) that names the bad part and the nearest right one.
Scheme parse_scheme(std::string_view text);

/// The spelt-out form, every key present, fixed order. parse_scheme(to_string(s)) == s.
std::string to_string(const Scheme& scheme);

/// The shortest name that parses to this scheme: a preset where one exists, else to_string.
std::string short_name(const Scheme& scheme);

/// The scheme's key/value pairs as a JSON object text (the artifact's scheme_json).
std::string scheme_json(const Scheme& scheme);

struct PresetInfo {
  std::string pattern;  ///< "kvcc-nuq{2,3,4,5}[-P%][-sinkN]"
  std::string example;  ///< a name that parses
  std::string meaning;  ///< one line
};
const std::vector<PresetInfo>& presets();

/// Number of outliers of each tail that a per-token quantiser keeps exactly, of a row of `channels` values: the number
/// of elements at or above the linear-interpolation quantile t = 1 - sparse/2 of a row of distinct values, which is
/// channels - ceil(t * (channels - 1)) (METHODS.md 2.4). 192 channels at 1 %: 1; 4,096: 21. 0 when sparse is 0.
int outliers_per_tail(double sparse, int channels);

}  // namespace kvcc
