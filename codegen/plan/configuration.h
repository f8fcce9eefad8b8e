// A configuration: everything that makes one generated unit differ from another, save the artifact's values. Its name
// is a grammar with a parser, and the lists of kernels/list say which configurations exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/core/scheme.h"

namespace kvcc::codegen {

enum class Family {
  pack_key,
  pack_value,
  attention,  ///< mma-1 alone
  key_scores,
  value_mix,
  dequantise_key,
  dequantise_value,
  copy_pages  ///< depends on no choice, and serves both layouts
};
enum class Machine { gpu, cpu };                 ///< what a unit runs on; the CPU has layout mma-1 alone
enum class Layout { linear, mma, vector, any };  ///< "linear-1", "mma-1", "vector-1"; any: of copy_pages
enum class Sparse { none, csr, tail };           ///< csr: of scales per channel; tail: per token
enum class RopeKind { none, half, interleaved };
enum class Dtype { f16, bf16, f32 };  ///< of what the kernel reads beside the cache; dequantise writes f32

/// Of a unit of vector codebooks for tensor cores: more would not leave the registers that a key needs.
constexpr int kMostSteps = 10;

/// How one tensor is packed.
struct TensorConfiguration {
  Grid grid = Grid::nuq;
  int bits = 0;
  bool mixed = false;  ///< the layer's heads have several widths, of which this unit serves one
  Axis axis = Axis::channel;
  int head_dim = 0;
  Sparse sparse = Sparse::none;
  bool transform = false;  ///< of Grid::vector, whose units have no other choices but head_dim: heads are transformed
  // Of Grid::vector, where tensor cores read: what a unit has room for. steps 0: another unit.
  int steps = 0;       ///< of 16 coordinates; of values even
  int token_bits = 0;  ///< of a token's head, a multiple of 16
  int table_kib = 0;   ///< of a head's fp16 tables, where shared memory holds them
  bool operator==(const TensorConfiguration&) const = default;
};

/// The tensor is the only one of the family, and the keys of attention.
struct Configuration : TensorConfiguration {
  Family family = Family::key_scores;
  TensorConfiguration value;       ///< of attention; else as made
  RopeKind rope = RopeKind::none;  ///< attention and key_scores only
  int rotary_dim = 0;              ///< 0 exactly when rope is none
  int group_tile = 1;              ///< query heads that share a decoded row, where takes_group()
  Dtype dtype = Dtype::f16;
  Layout layout = Layout::linear;
  bool operator==(const Configuration&) const = default;
};

/// FAMILY_TENSOR[_ROPE][_v_TENSOR][_gGROUP]_DTYPE__LAYOUT with TENSOR = GRIDBITS[mixed]_AXIS_dHEADDIM_SPARSE, or of
/// vector codebooks vq_FORM_dHEADDIM[_sSTEPS_bTOKENBITS_tTABLEKIB] with FORM head (each head is transformed) or
/// channels (groups of channels) and, of units for tensor cores, what there is room for, e.g.
///   key_scores_nuq3_channel_d64_csr_half64_g3_f16__linear1
///   attention_nuq3_channel_d64_csr_half64_v_nuq3_token_d64_tail_g8_f16__mma1
///   key_scores_vq_head_d64_half64_g3_f16__vector1
///   copy_pages__any
/// Left of the double underscore is what is computed, right of it how. ROPE is "norope", "halfR" or "interleavedR" with
/// R the rotary channels.
std::string name(const Configuration& configuration);
/// Inverse of name(). Throws Error(usage) that names the part which does not parse.
Configuration parse_configuration(std::string_view text);

/// What a configuration would need that kernels/list does not have, one reason each, e.g. "head dimension 72 (listed:
/// 64, …)". Empty when it exists. Units of the CPU take any dtype; else the lists serve both machines.
std::vector<std::string> missing(const Configuration& configuration, Machine machine = Machine::gpu);

/// Scales and sparse part go together.
struct Scale {
  Axis axis;
  Sparse sparse;
  bool operator==(const Scale&) const = default;
};

/// What a family's list offers; any combination is legal. Attention's keys and values choose from the same bits,
/// head dimensions and scales.
struct Choices {
  std::vector<int> bits, head_dims;
  std::vector<Scale> scales;
  std::vector<bool> transforms;  ///< of vector-1, which has neither bits nor scales
  std::vector<RopeKind> ropes;
  std::vector<Dtype> dtypes;
};
/// Empty for copy_pages. Throws Error(usage) for a family that the layout does not have.
const Choices& choices(Layout layout, Family family);
/// Of units of vector-1 for tensor cores: key_scores and attention.
const Choices& tensor_core_choices(Family family);

/// Every configuration of a family's list of linear-1 or vector-1, for the given group tiles and, with RoPE, the whole
/// head rotated. Grids of linear-1 do not multiply it (all decode by table): it is nuq.
std::vector<Configuration> listed(Family family, const std::vector<int>& group_tiles, Layout layout = Layout::linear);

/// A row of the lists of mma-1 or vector-1: what every build's checks compile, with the most that it may use on any
/// architecture.
struct Shipped {
  Configuration configuration;
  int registers;     ///< a thread
  int shared_bytes;  ///< a block, static and dynamic; 0 for copy_pages
};
const std::vector<Shipped>& shipped();
bool is_shipped(const Configuration& configuration);

/// All, or those that a layout has, in the order in which units are made.
const std::vector<Family>& families();
std::vector<Family> families_of(Layout layout);

std::string_view to_text(Family family);
std::string_view to_text(Layout layout);
std::string_view to_text(Sparse sparse);
std::string_view to_text(RopeKind rope);
std::string_view to_text(Dtype dtype);
std::string_view to_text(Axis axis);
std::string_view to_text(Grid grid);
/// Throws Error(usage) with the names there are.
Dtype parse_dtype(std::string_view text);
/// "attention,pack_key" to families, each once, in their order. Throws Error(usage) with the names there are.
std::vector<Family> parse_families(const std::string& text);

/// Does the family take queries of a group? Does it turn keys? Does it read or write keys (attention: keys first)?
bool takes_group(Family family);
bool takes_rope(Family family);
bool of_keys(Family family);

}  // namespace kvcc::codegen
