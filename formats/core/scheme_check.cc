// Which points of the scheme space mean something. A new method lifts a refusal here.
#include <fmt/format.h>

#include "formats/core/scheme_parts.h"

namespace kvcc::scheme_parts {
namespace {

/// Refusals about one tensor.
class TensorCheck {
 public:
  TensorCheck(const TensorScheme& tensor, const char* name, std::string_view text)
      : t_(tensor), name_(name), text_(text), key_(name_ == "k") {}

  void run() const {
    grid();
    dimensions();
  }

 private:
  void refuse_if(bool bad, const std::string& found, const std::string& wanted, const std::string& hint = "") const {
    if (bad) throw refuse(text_, found, wanted, hint);
  }
  bool grouped() const { return t_.axis == Axis::token_group || t_.axis == Axis::channel_group; }
  bool varn() const { return t_.norm == Norm::varn || t_.norm == Norm::varn_rms; }
  bool online_int() const {
    return t_.grid == Grid::integer && (grouped() || (t_.axis == Axis::token && !t_.is_plain()));
  }

  void grid() const {
    switch (t_.grid) {
      case Grid::full:
      case Grid::integer:
        break;
      case Grid::nuq:
        refuse_if(t_.axis == Axis::token && key_, "nuq keys per token",
                  "k=nuq…@prerope/channel, or int and nf per token", "key codebooks are fitted per channel");
        refuse_if(grouped(), fmt::format("{} is nuq in groups", name_), "int in groups");
        break;
      case Grid::normal_float:
        refuse_if(t_.bits < 2 || t_.bits > 4, fmt::format("{} is nf with {} bits", name_, t_.bits), "nf2, nf3 or nf4");
        refuse_if(grouped(), fmt::format("{} is nf in groups", name_), "int in groups");
        break;
      case Grid::lloyd:
        refuse_if(t_.bits > 5, fmt::format("{} is lloyd with {} bits", name_, t_.bits), "lloyd1 to lloyd5");
        refuse_if(t_.axis != Axis::token_group || t_.group != 0, fmt::format("{} is lloyd not per head", name_),
                  "lloydN@…token:head", "its levels are those of a whole head's unit vector");
        refuse_if(t_.norm != Norm::head && t_.norm != Norm::head_corrected,
                  fmt::format("{} is lloyd without a norm", name_),
                  fmt::format("{0}-norm=head or {0}-norm=head-corrected", name_));
        refuse_if(t_.rotation == Rotation::none, fmt::format("{} is lloyd without a rotation", name_),
                  fmt::format("{0}-rotate=random or {0}-rotate=hadamard", name_));
        break;
      case Grid::floating:
        refuse_if(t_.bits != 8, fmt::format("{} is fp with {} bits", name_, t_.bits), "fp8");
        refuse_if(t_.axis != Axis::tensor, fmt::format("{} is fp8 with a scale", name_), "fp8@…tensor");
        break;
      case Grid::polar:
        refuse_if(!key_ || t_.axis != Axis::channel_group || t_.site != Site::post_rope,
                  fmt::format("{} is polar", name_), "k=polarN@postrope/channel:G",
                  "it codes the pairs that RoPE turns");
        break;
      case Grid::angles:
        refuse_if(t_.bits != 4 || t_.axis != Axis::token_group || t_.group != 16 || t_.rotation != Rotation::random,
                  fmt::format("{} is angles", name_), fmt::format("angles4@…token:16 with {}-rotate=random", name_));
        break;
      case Grid::sign:
        refuse_if(!key_ || t_.bits != 1 || t_.axis != Axis::channel_group || t_.sketch < 1,
                  fmt::format("{} is sign", name_), "k=sign1@…/channel:G with k-sketch",
                  "its inner products are estimated");
        break;
      case Grid::vector:
        refuse_if(t_.axis != Axis::tensor, fmt::format("{} is vq with a scale", name_), "vqN@…tensor",
                  "its codebooks hold the values themselves");
        refuse_if(key_ && t_.site == Site::post_rope, "vq keys after RoPE", "k=vqN@prerope/tensor",
                  "activations hold keys before RoPE");
        refuse_if(t_.width != 0 && t_.width != 1 && t_.width != 2 && t_.width != 4 && t_.width != 8,
                  fmt::format("{}-width is {}", name_, t_.width), "auto, 1, 2, 4 or 8 coordinates");
        refuse_if(t_.rotation == Rotation::none && t_.width == 0,
                  fmt::format("{} is vq without a transform and a width", name_),
                  fmt::format("{0}-rotate=fklt-head, {0}-rotate=fklt-layer, or {0}-width=4", name_),
                  "channels are grouped by correlation before the bits are known");
        break;
    }
    refuse_if(t_.axis == Axis::tensor && t_.grid != Grid::floating && t_.grid != Grid::vector,
              fmt::format("{} has no scale", name_), "fp8@…tensor, or another axis");
  }

  void dimensions() const {
    const auto only = [&](bool set, bool fits, const char* dimension, const std::string& wanted) {
      refuse_if(set && !fits, fmt::format("{}-{} with this grid and axis", name_, dimension), wanted);
    };
    const bool turns = online_int() || t_.grid == Grid::lloyd || t_.grid == Grid::angles;
    const bool fitted = t_.rotation == Rotation::fklt_head || t_.rotation == Rotation::fklt_layer;
    only(fitted, t_.grid == Grid::vector, "rotate=fklt-…", "vq");
    only(t_.rotation != Rotation::none && !fitted, turns, "rotate", "int with an online range, lloyd or angles");
    only(t_.width != 0, t_.grid == Grid::vector, "width", "vq");
    only(t_.predicted, t_.grid == Grid::vector && fitted && !key_, "predict=key",
         "values in vq with v-rotate=fklt-head or v-rotate=fklt-layer");
    const bool length = t_.norm == Norm::head || t_.norm == Norm::head_corrected;
    only(length, t_.grid == Grid::lloyd, "norm", "token or varnN:G for int, head for lloyd");
    only(t_.norm == Norm::token, t_.grid == Grid::integer && grouped(), "norm=token", "int in groups");
    only(varn(), t_.grid == Grid::integer && t_.rounding == Rounding::ends && t_.clip == 1 && t_.wide == 0, "norm=varn",
         "int with its ends as levels, unclipped");
    refuse_if(varn() && (key_ ? t_.axis != Axis::channel_group || t_.group != t_.tile
                              : t_.axis != Axis::token_group || t_.group != 0),
              fmt::format("{}-norm=varn with another range than one a tile's row", name_),
              key_ ? "k=intN@…/channel:G of the tile's G" : "v=intN@token:head");
    only(t_.rounding != Rounding::ends, online_int(), "round", "int with an online range");
    refuse_if(t_.rounding == Rounding::symmetric && t_.bits < 2, fmt::format("{} is symmetric with 1 bit", name_),
              "2 to 8 bits");
    refuse_if(t_.rounding == Rounding::ggml &&
                  ((t_.bits != 4 && t_.bits != 8) || t_.axis != Axis::token_group || t_.group != 32),
              fmt::format("{}-round=ggml", name_), "int4@…token:32 (Q4_0) or int8@…token:32 (Q8_0)");
    only(t_.clip != 1, online_int() && t_.rounding != Rounding::ggml, "clip", "int with an online range");
    const bool wide_int = t_.grid == Grid::integer && t_.axis == Axis::channel_group;
    only(t_.wide > 0, wide_int || t_.grid == Grid::lloyd || t_.grid == Grid::sign, "wide",
         "int and sign in groups of tokens, or lloyd");
    refuse_if((t_.wide > 0) != (t_.wide_bits > 0), fmt::format("{}-wide is {}:{}", name_, t_.wide, t_.wide_bits),
              "a share above 0 and a width");
    refuse_if(wide_int && t_.wide > 0 && t_.rounding != Rounding::ends, fmt::format("{0}-wide with {0}-round", name_),
              "round=ends");
    refuse_if(wide_int && t_.wide > 0 && (t_.wide_bits <= t_.bits || (t_.wide_bits > 8 && t_.wide_bits != 16)),
              fmt::format("{}-wide with {} bits", name_, t_.wide_bits), "more bits than the others, 16 for fp16");
    refuse_if(t_.grid == Grid::lloyd && t_.wide > 0 && (t_.wide_bits <= t_.bits || t_.wide_bits > 5),
              fmt::format("{}-wide with {} bits", name_, t_.wide_bits), "more bits than the others, at most 5");
    only(!t_.half_scales, varn(), "scales", "fp8 scales with varn");
    only(t_.sketch > 0, t_.grid == Grid::sign || t_.grid == Grid::lloyd, "sketch", "sign or lloyd");
    refuse_if((t_.early_layers > 0) != (t_.early_sketch > 0) || (t_.early_layers > 0 && t_.sketch == 0),
              fmt::format("{}-early without a sketch", name_), fmt::format("{}-sketch as well", name_));
  }

  const TensorScheme& t_;
  std::string name_;
  std::string_view text_;
  bool key_;
};

/// Integers in online groups of a token, without outliers of other widths.
bool online(const TensorScheme& t) {
  return t.grid == Grid::integer && t.axis == Axis::token_group && t.norm == Norm::none && t.wide == 0;
}

}  // namespace

void check(const Scheme& scheme, std::string_view text) {
  const TensorScheme& key = scheme.key;
  const TensorScheme& value = scheme.value;
  TensorCheck(key, "k", text).run();
  TensorCheck(value, "v", text).run();
  if ((key.grid == Grid::full) != (value.grid == Grid::full)) {
    throw refuse(text, "one of k and v is fp and the other is not", "both quantised, or both fp");
  }
  if (scheme.is_full() && (scheme.sparse > 0 || scheme.sink > 0 || scheme.residual > 0)) {
    throw refuse(text, "fp with outliers, sinks or a residual window", "fp alone", "full precision has no exceptions");
  }
  if (scheme.is_full()) return;
  if (key.axis == Axis::channel && key.site == Site::post_rope) {
    throw refuse(text, "keys per channel after RoPE", "k=…@prerope/channel, k=…@postrope/token or groups of tokens",
                 "static scales per channel are fitted to keys before RoPE");
  }
  if (value.axis == Axis::channel) {
    throw refuse(text, "values per channel", "v=…@token", "values are scaled per token");
  }
  if ((key.grid == Grid::vector) != (value.grid == Grid::vector)) {
    throw refuse(text, "one of k and v is vq and the other is not", "both vq");
  }
  if (scheme.is_vector() != (scheme.budget > 0)) {
    throw refuse(text, scheme.is_vector() ? "vq without a budget" : "a budget without vq", "vq with budget=B",
                 "B effective bits an element are shared out over all groups of the model");
  }
  if (scheme.is_vector() && (scheme.codebook != CodebookScope::head || scheme.weight == FitWeight::fs2 ||
                             scheme.first_in_thresholds || scheme.first_in_kmeans)) {
    throw refuse(text, "vq with codebook=layer, weight=fs2 or first tokens in the fit",
                 "codebook=head, weight=f or none, first-thresholds=out, first-kmeans=out",
                 "every group has a codebook of its own, in the metric of the gradients (f) or of the elements (none)");
  }
  if (value.predicted && key.rotation != value.rotation) {
    throw refuse(text, "values predicted from keys of other units", "k-rotate and v-rotate alike");
  }
  const bool turned = online(key) && online(value) && key.rotation == value.rotation && key.site == Site::post_rope;
  if (scheme.needs_rotations() && !turned) {
    throw refuse(text, "spectral rotations of one of k and v, or with static scales, or of keys before RoPE",
                 "both k-rotate=spectral and v-rotate=spectral, keys after RoPE");
  }
  if (scheme.needs_calibration() && !scheme.is_vector() && !turned && !(key.is_plain() && value.is_plain())) {
    throw refuse(text, "one of k and v is calibrated and the other is in groups, rotated or normalised",
                 "both of one kind", "an artifact describes static scales, codebooks and plain token scales");
  }
  if (scheme.capped && (scheme.sparse <= 0 || key.axis != Axis::channel)) {
    throw refuse(text, "cap=token without outliers of static channels", "sparse=1% and k=…@prerope/channel",
                 "outliers of tokens' own ranges have a fixed number anyway");
  }
  if (scheme.qnorm && (key.grid != Grid::nuq || value.grid != Grid::nuq)) {
    throw refuse(text, "qnorm=on with levels that are not fitted", "k=nuq…,v=nuq…");
  }
  if (scheme.sparse > 0 && !(key.is_plain() && value.is_plain())) {
    throw refuse(text, "outliers with groups, a rotation or a norm", "sparse=0%",
                 "outliers are kept beside plain channel and token scales");
  }
}

}  // namespace kvcc::scheme_parts
