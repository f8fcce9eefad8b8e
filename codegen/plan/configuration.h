// A configuration: everything that makes one generated unit differ from another, save the artifact's values. Its name
// is a grammar with a parser, and the lists of kernels/list say which configurations exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/core/scheme.h"

namespace kvcc::codegen {

enum class Family { pack_key, pack_value, key_scores, value_mix, dequantise_key, dequantise_value };
enum class Sparse { none, csr, tail };
enum class RopeKind { none, half, interleaved };
enum class Dtype { f16, bf16, f32 };  ///< of what the kernel reads beside the cache; dequantise writes f32

struct Configuration {
  Family family = Family::key_scores;
  Grid grid = Grid::nuq;
  int bits = 0;
  bool mixed = false;  ///< the layer's heads have several widths, of which this unit serves one
  Axis axis = Axis::channel;
  int head_dim = 0;
  Sparse sparse = Sparse::none;
  RopeKind rope = RopeKind::none;  ///< key_scores only
  int rotary_dim = 0;              ///< 0 exactly when rope is none
  int group_tile = 1;              ///< query heads that share a decoded row; key_scores and value_mix only
  Dtype dtype = Dtype::f16;
  std::string layout = "linear-1";
  bool operator==(const Configuration&) const = default;
};

/// FAMILY_GRIDBITS[mixed]_AXIS_dHEADDIM_SPARSE[_ROPE][_gGROUP]_DTYPE__LAYOUT, e.g.
///   key_scores_nuq3_channel_d64_csr_half64_g3_f16__linear1
///   value_mix_nuq3_token_d64_tail_g3_f16__linear1
/// Left of the double underscore is what is computed, right of it how. ROPE is "norope", "halfR" or "interleavedR" with
/// R the rotary channels.
std::string name(const Configuration& configuration);
/// Inverse of name(). Throws Error(usage) that names the part which does not parse.
Configuration parse_configuration(std::string_view text);

/// What a configuration would need that kernels/list does not have, one reason each, e.g. "head_dim 72 (listed: 16,
/// …)". Empty when it exists.
std::vector<std::string> missing(const Configuration& configuration);

/// Every configuration of a family's list, for the given group tiles and, with RoPE, the whole head rotated. Grids do
/// not multiply it (all decode by table): it is nuq.
std::vector<Configuration> listed(Family family, const std::vector<int>& group_tiles);

const std::vector<Family>& families();
std::string_view to_text(Family family);
std::string_view to_text(Sparse sparse);
std::string_view to_text(RopeKind rope);
std::string_view to_text(Dtype dtype);
std::string_view to_text(Axis axis);
std::string_view to_text(Grid grid);
/// Throws Error(usage) with the names there are.
Dtype parse_dtype(std::string_view text);

/// Does the family take queries of a group (key_scores, value_mix)? Does it turn keys (key_scores)?
bool takes_group(Family family);
bool takes_rope(Family family);
bool of_keys(Family family);

}  // namespace kvcc::codegen
