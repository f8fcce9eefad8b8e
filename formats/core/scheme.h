// The scheme space (DESIGN.md, "One scheme space"): a point in it, its text form, and the named presets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

enum class Grid : uint8_t {
  full,          ///< "fp": not quantised
  integer,       ///< "int": uniform levels in a range
  normal_float,  ///< "nf": quantiles of a normal density (METHODS.md 5.4)
  nuq,           ///< "nuq": levels by Fisher-weighted k-means
  lloyd,         ///< "lloyd": Lloyd-Max levels of a rotated unit vector's coordinate (METHODS.md 6.1)
  floating,      ///< "fp" with a width: FP8 E4M3
  polar,         ///< "polar": radius and angle of channel pairs (i, i + D/2) (METHODS.md 7.1 a)
  angles,        ///< "angles": recursive polar angles of blocks of 16 channels (METHODS.md 7.1 b)
  sign,          ///< "sign": signs of random projections (METHODS.md 6.6)
  vector,        ///< "vq": vector codebooks over groups of coordinates, bits by rate and distortion (CODEBOOKS.md)
};
enum class Site : uint8_t { pre_rope, post_rope };  ///< where keys are taken; "prerope", "postrope"
enum class Axis : uint8_t {
  channel,        ///< one static scale and zero per channel, offline
  token,          ///< one online scale and zero per token, over all KV heads of the layer
  token_group,    ///< "token:G": one per token and G channels of a head; "token:head": per token and head
  channel_group,  ///< "channel:G": one per channel and G successive tokens
  tensor,         ///< "tensor": none, the values themselves are coded
};
/// How an online range becomes codes (METHODS.md 1.1). All but `ends` belong to Grid::integer alone.
enum class Rounding : uint8_t {
  ends,          ///< "ends": RTN-F, the range's ends are levels
  zero,          ///< "zero": RTN-Z, a whole-number zero-point
  zero_inside,   ///< "zero-inside": RTN-Z0, the range is widened to hold 0
  zero_clamped,  ///< "zero-clamped": RTN-ZC, the zero-point is a code
  symmetric,     ///< "symmetric": zero-point 0, scale from the greatest magnitude (METHODS.md 5.1)
  inverse,       ///< "inverse": RTN-F that stores 1 / scale (METHODS.md 5.3)
  ggml,          ///< "ggml": llama.cpp's Q4_0 (4 bits) and Q8_0 (8 bits)
};
/// Turns every head's vector before anything else; undone after decoding.
enum class Rotation : uint8_t {
  none,
  hadamard,     ///< "hadamard": Sylvester's, orthonormal, no signs (METHODS.md 1.2), of the largest power of two in
                ///< head_dim
  hadamard_64,  ///< "hadamard-64": of blocks of 64 channels (METHODS.md 6.5, llama.cpp's values)
  random,       ///< "random": one fixed Haar-distributed matrix for all heads and layers
  fklt_head,    ///< "fklt-head": fitted, the Karhunen-Loeve transform in the metric of the loss, of each head
  fklt_layer,   ///< "fklt-layer": … of all KV heads of the layer side by side
  spectral,     ///< "spectral": OSCAR's, made from statistics of the model (METHODS.md 7.3); kvcc eval alone makes them
};
enum class Norm : uint8_t {
  none,
  head,            ///< "head": each head's vector has length 1 (METHODS.md 6.1)
  head_corrected,  ///< "head-corrected": and so has the decoded vector ("_nc", METHODS.md 6.4)
  token,           ///< "token": the token's vector over all heads has length 1 (METHODS.md 7.3, OScaR)
  varn,            ///< "varnN:G": KVarN's variance normalisation, N iterations on tiles of G tokens (METHODS.md 3.2)
  varn_rms,        ///< "varn-rmsN:G": of the tile divided by its root mean square (METHODS.md 3.4)
};
enum class CodebookScope : uint8_t { layer, head };
enum class FitWeight : uint8_t {
  none,  ///< "none": unweighted
  f,     ///< "f": Fisher diagonal, as KVQuant's release (METHODS.md 2.2)
  fs2,   ///< "fs2": Fisher times squared range, KVQuant paper appendix E eq. (7)
};

/// How one of the two tensors (key or value) is quantised. What a preset leaves alone is at its default.
struct TensorScheme {
  Grid grid = Grid::full;
  int bits = 16;               ///< 1 to 8; 16 for Grid::full; of Grid::vector the most bits of a group, 1 to 12
  Site site = Site::pre_rope;  ///< keys only
  Axis axis = Axis::token;
  int group = 0;  ///< G of token_group (0: the head) and channel_group; more than a head's channels are the head
  Rotation rotation = Rotation::none;
  Norm norm = Norm::none;
  int iterations = 0, tile = 0;  ///< N and G of the VarN norms
  Rounding rounding = Rounding::ends;
  double clip = 1.0;        ///< both ends of an online range are multiplied by it
  double wide = 0.0;        ///< share of each head's channels that get wide_bits; at least one channel when > 0
  int wide_bits = 0;        ///< of the channels of greatest mean magnitude in a block (int); of the first ones (lloyd)
  bool half_scales = true;  ///< online scales in fp16; false: FP8 E4M3, "fp8" (METHODS.md 3.3)
  int sketch = 0;           ///< random projections for every channel of a head whose signs are stored (METHODS.md 6.2)
  int width = 0;            ///< coordinates of a group of Grid::vector; 0: "auto", chosen with the bits
  bool predicted = false;   ///< values of Grid::vector: coded is what the token's decoded keys don't predict of them
  int early_layers = 0, early_sketch = 0;  ///< the first layers may have another `sketch` (METHODS.md 6.6)
  bool operator==(const TensorScheme&) const = default;
  /// Nothing but grid, width, site, and a static scale per channel or an online one per token: what artifacts describe.
  bool is_plain() const;
  /// What it is in one layer of a model, which is the same for all where nothing is early.
  TensorScheme in_layer(int layer) const;
  /// Tokens that can only be coded together: G of channel groups and VarN tiles, else 1.
  int64_t block_tokens() const;
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
  /// Keys: not all elements outside the thresholds are outliers, but outliers_per_tail() of each end of a token's
  /// normalised row (KVQuant's --cap-outliers; ties by index).
  bool capped = false;
  /// Levels are decoded as level * norm_scale + norm_offset, which give the decoded inliers the mean and deviation of
  /// the inliers (KVQuant's Q-Norm, METHODS.md 2.3). Grid::nuq alone.
  bool qnorm = false;
  /// Grid::vector alone, where it is above 0: effective bits an element that the fit may spend on codes, codebooks and
  /// transforms, at the context and amortisation of EffectiveBitsQuery's defaults.
  double budget = 0;
  bool operator==(const Scheme&) const = default;
  bool is_full() const { return key.grid == Grid::full && value.grid == Grid::full; }
  /// Has a part that came after the first release: readers of exports and kernels do not know it.
  bool is_extended() const { return capped || qnorm || is_vector(); }
  bool is_vector() const { return key.grid == Grid::vector; }  ///< both tensors are, or none
  /// Needs rotations that kvcc eval makes from calibration text; no artifact holds them.
  bool needs_rotations() const;
  /// Needs statistics of the model (a .kvcb, or rotations); false for schemes that work on-line alone (int per token,
  /// fp).
  bool needs_calibration() const;
};

/// Parses a preset ("kvcc-nuq3-1%-sink1", "kvquant-nuq4-1%-sink1", "int4", "fp") or the spelt-out form
/// ("k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=1,codebook=head,weight=fs2,first-thresholds=out,first-kmeans=out").
/// Throws Error(usage) that names the bad part and the nearest right one.
Scheme parse_scheme(std::string_view text);

/// The spelt-out form in a fixed order: the keys above always, those that artifacts don't know ("k-rotate=hadamard")
/// only where they are not at their default. parse_scheme(to_string(s)) == s.
std::string to_string(const Scheme& scheme);

/// The shortest name that parses to this scheme: a preset where one exists, else to_string.
std::string short_name(const Scheme& scheme);

/// The scheme's key/value pairs as a JSON object text (the artifact's scheme_json).
std::string scheme_json(const Scheme& scheme);

struct PresetInfo {
  std::string pattern;  ///< "kvcc-nuq{2,3,4,5}[-P%][-sinkN]"
  std::string example;  ///< a name that parses
  std::string meaning;  ///< one line
  std::string source;   ///< paper or program, one line
};
const std::vector<PresetInfo>& presets();
/// Every preset's name at every width, without options ("int2", "int3", …, "kivi-2", "kivi-4"), "fp" left out.
std::vector<std::string> preset_names();
/// The preset whose name short_name() gives; null for a scheme that has none.
const PresetInfo* preset_of(const Scheme& scheme);

/// Tokens after the sinks that a tensor coded in blocks takes at once: the least multiple of `block` that is not less
/// than `residual`, and not 0 (KIVI's rule, METHODS.md 4).
int64_t tail_unit(int64_t residual, int64_t block);

/// Number of outliers of each tail that a per-token quantiser keeps exactly, of a row of `channels` values: the number
/// of elements at or above the linear-interpolation quantile t = 1 - sparse/2 of a row of distinct values, which is
/// channels - ceil(t * (channels - 1)) (METHODS.md 2.4). 192 channels at 1 %: 1; 4,096: 21. 0 when sparse is 0.
int outliers_per_tail(double sparse, int channels);

}  // namespace kvcc
