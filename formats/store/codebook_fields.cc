#include "formats/store/codebook_fields.h"

#include <algorithm>
#include <array>

namespace kvcc {
namespace {

using T = TensorCodebooks;
using S = TensorStats;

CodebookField floats(const char* path, const char* axes, const char* unit, Need need, std::vector<float> T::*member) {
  return {path, Element::f32, axes, unit, need, "1.0", member, nullptr, nullptr, nullptr};
}

CodebookField vector(const char* path, const char* axes, const char* unit, std::vector<float> T::*member) {
  return {path, Element::f32, axes, unit, Need::vector, "1.4", member, nullptr, nullptr, nullptr};
}

CodebookField statistic(const char* path, const char* axes, const char* unit, std::vector<float> S::*member,
                        const char* since = "1.0") {
  return {path, Element::f32, axes, unit, Need::optional, since, nullptr, nullptr, member, nullptr};
}

CodebookField number(const char* path, const char* axes, const char* unit, std::vector<uint32_t> S::*member,
                     const char* since = "1.0") {
  return {path, Element::u32, axes, unit, Need::optional, since, nullptr, nullptr, nullptr, member};
}

}  // namespace

const char* need_name(Need need) {
  constexpr const char* kNames[] = {"always", "channel", "outliers",  "qnorm",   "levels",
                                    "vector", "order",   "predicted", "optional"};
  return kNames[static_cast<size_t>(need)];
}

std::span<const CodebookField> tensor_fields() {
  constexpr const char* kHead = "layer,head";
  constexpr const char* kChannel = "layer,head,channel";
  constexpr const char* kCoordinate = "layer,unit,coordinate";
  static const std::array<CodebookField, 40> all = {{
      {"bits", Element::u8, kHead, "bit", Need::levels, "1.0", nullptr, &T::bits, nullptr, nullptr},
      floats("codebook", "layer,head,code", "normalised", Need::levels, &T::codebook),
      {"norm_scale", Element::f32, kHead, "1", Need::qnorm, "1.3", &T::norm_scale, nullptr, nullptr, nullptr},
      {"norm_offset", Element::f32, kHead, "normalised", Need::qnorm, "1.3", &T::norm_offset, nullptr, nullptr,
       nullptr},
      floats("outlier_fraction", kHead, "1", Need::always, &T::outlier_fraction),
      floats("scale", kChannel, "element", Need::channel, &T::scale),
      floats("zero", kChannel, "element", Need::channel, &T::zero),
      floats("threshold_lower", kChannel, "element", Need::outliers, &T::threshold_lower),
      floats("threshold_upper", kChannel, "element", Need::outliers, &T::threshold_upper),
      {"group_width", Element::u8, kCoordinate, "coordinate", Need::vector, "1.4", nullptr, &T::group_width, nullptr,
       nullptr},
      {"group_bits", Element::u8, kCoordinate, "bit", Need::vector, "1.4", nullptr, &T::group_bits, nullptr, nullptr},
      {"channel_order", Element::u16, kCoordinate, "1", Need::order, "1.4", nullptr, nullptr, nullptr, nullptr,
       &T::channel_order},
      vector("vectors", "number", "nat^0.5", &T::vectors),
      vector("/forward", "layer,unit,coordinate,channel", "nat^0.5/element", &T::forward),
      vector("/inverse", "layer,unit,channel,coordinate", "element/nat^0.5", &T::inverse),
      vector("/mean", "layer,unit,channel", "element", &T::rotation_mean),
      {"/from_key", Element::f32, "layer,unit,channel,key_channel", "1", Need::predicted, "1.6", &T::from_key, nullptr,
       nullptr, nullptr},
      statistic("stats/min", kChannel, "element", &S::min),
      statistic("stats/max", kChannel, "element", &S::max),
      statistic("stats/mean", kChannel, "element", &S::mean),
      statistic("stats/variance", kChannel, "element^2", &S::variance),
      statistic("stats/fisher", kChannel, "(nat/element)^2", &S::fisher),
      statistic("stats/weighted_sse", kHead, "nat^2", &S::weighted_sse),
      statistic("stats/sqnr_db", kHead, "dB", &S::sqnr_db),
      statistic("stats/first_token_share", kHead, "1", &S::first_token_share),
      statistic("stats/fit_gap_bound", kHead, "1", &S::fit_gap_bound),
      number("stats/distinct", kHead, "1", &S::distinct),
      statistic("stats/histogram", "layer,head,bin", "1", &S::histogram, "1.2"),
      statistic("stats/code_use", "layer,head,code", "1", &S::code_use, "1.2"),
      statistic("stats/held_out_outliers", kHead, "1", &S::held_out_outliers, "1.2"),
      statistic("stats/drift", kHead, "1", &S::drift, "1.2"),
      statistic("stats/sample_share", kHead, "1", &S::sample_share, "1.2"),
      statistic("stats/token_share", kHead, "1", &S::token_share, "1.2"),
      number("stats/heaviest_sample", kHead, "1", &S::heaviest_sample, "1.2"),
      number("stats/token_sample", kHead, "1", &S::token_sample, "1.2"),
      number("stats/token_position", kHead, "1", &S::token_position, "1.2"),
      number("stats/reached", kHead, "token", &S::reached, "1.2"),
      statistic("stats/predicted_fitted", "layer", "nat", &S::predicted_fitted, "1.4"),
      statistic("stats/predicted_held_out", "layer", "nat", &S::predicted_held_out, "1.4"),
      statistic("stats/energy", kCoordinate, "nat", &S::energy, "1.5"),
  }};
  return all;
}

std::string field_path(const CodebookField& field, const std::string& tensor) {
  return field.path[0] == '/' ? "/rotation" + tensor + field.path : tensor + "/" + field.path;
}

std::vector<int64_t> field_extents(const CodebookField& field, const CacheShape& shape, const TensorCodebooks& tensor,
                                   int dim) {
  const std::string axes = field.axes;
  if (axes == "number") return {-1};
  std::vector<int64_t> extents{shape.layers};
  if (axes == "layer") return extents;
  if (axes.starts_with("layer,unit")) {
    extents.insert(extents.end(), {tensor.units, tensor.coordinates});
    const int keys = shape.kv_heads * shape.head_dim / std::max(tensor.units, 1);
    if (std::count(axes.begin(), axes.end(), ',') == 3) {
      extents.push_back(axes.ends_with("key_channel") ? keys : tensor.coordinates);
    }
    return extents;
  }
  extents.push_back(shape.kv_heads);
  if (axes.ends_with("channel")) extents.push_back(dim);
  if (axes.ends_with("code")) extents.push_back(-1);
  if (axes.ends_with("bin")) extents.push_back(kNormalisedBins);
  return extents;
}

std::span<const CodebookAttribute> codebook_attributes() {
  static const std::array<CodebookAttribute, 40> all = {{
      {"/", "format", "text", true},
      {"/", "format_version", "text", true},
      {"/", "content_sha256", "text", true},
      {"/", "scheme", "text", true},
      {"/", "scheme_json", "text", true},
      {"/model", "name", "text", true},
      {"/model", "architecture", "text", true},
      {"/model", "weights_sha256", "text", true},
      {"/model", "layers", "integer", true},
      {"/model", "query_heads", "integer", true},
      {"/model", "kv_heads", "integer", true},
      {"/model", "head_dim", "integer", true},
      {"/model", "value_head_dim", "integer", true},
      {"/model", "rope_theta", "float", true},
      {"/model", "rope_kind", "text", true},
      {"/model", "rope_scaling", "text", true},
      {"/model", "rope_scaling_json", "text", true},
      {"/model", "rope_rotary_dim", "integer", true},
      {"/model", "qk_norm", "integer", true},
      {"/model", "attention_bias", "integer", false},
      {"/model", "sliding_window_layers", "integers", true},
      {"/model", "dtype", "text", true},
      {"/provenance", "tool_version", "text", true},
      {"/provenance", "dataset_name", "text", true},
      {"/provenance", "dataset_sha256", "text", true},
      {"/provenance", "dataset_flavour", "text", true},
      {"/provenance", "tokenizer_sha256", "text", true},
      {"/provenance", "bos", "text", true},
      {"/provenance", "samples", "integer", true},
      {"/provenance", "seqlen", "integer", true},
      {"/provenance", "seed", "integer", true},
      {"/provenance", "tokens", "integer", true},
      {"/provenance", "samples_asked", "integer", false},
      {"/provenance", "quantised_weights", "text", false},
      {"/provenance", "held_out", "integer", false},
      {"/provenance", "activations_sha256", "text", true},
      {"/provenance", "date", "text", false},
      {"/provenance", "parent_sha256", "text", false},
      {"/provenance", "shard", "text", false},
      {"/provenance", "sources", "text", false},
  }};
  return all;
}

}  // namespace kvcc
