#include <fmt/format.h>

#include <algorithm>

#include "formats/core/error.h"
#include "formats/export/export.h"

namespace kvcc {
namespace {

template <typename T>
std::string numbers_text(const TreeValue& value) {
  return fmt::format("{}", fmt::join(array_of<T>(value), ","));
}

std::string scale_semantics(const Scheme& scheme, const TensorScheme& tensor) {
  if (tensor.grid == Grid::vector) {
    return std::string(
               "none; decoded = rotation inverse z + mean in f32, z the vectors of a unit's codes, group by group") +
           (tensor.predicted ? "; plus rotation from_key times the token's decoded keys before RoPE" : "");
  }
  const char* const made = tensor.axis == Axis::channel
                               ? "static, per channel"
                               : "online, per token over all KV heads of a layer, made when packing";
  const char* const level = scheme.qnorm ? "fmaf(codebook[code], norm_scale, norm_offset)" : "codebook[code]";
  return fmt::format("{}; decoded = fmaf({}, scale, zero) in f32; scale multiplies", made, level);
}

}  // namespace

std::string attribute_text(const TreeValue& value) {
  switch (value.type) {
    case Element::text:
      return value.bytes;
    case Element::u8:
      return numbers_text<uint8_t>(value);
    case Element::u16:
      return numbers_text<uint16_t>(value);
    case Element::u32:
      return numbers_text<uint32_t>(value);
    case Element::u64:
      return numbers_text<uint64_t>(value);
    case Element::i8:
      return numbers_text<int8_t>(value);
    case Element::i16:
      return numbers_text<int16_t>(value);
    case Element::i32:
      return numbers_text<int32_t>(value);
    case Element::i64:
      return numbers_text<int64_t>(value);
    case Element::f32:
      return numbers_text<float>(value);
    case Element::f64:
      return numbers_text<double>(value);
  }
  return "";
}

std::vector<std::pair<std::string, const TreeValue*>> named_attributes(const Tree& tree) {
  std::vector<std::pair<std::string, const TreeValue*>> named;
  for (const auto& [path, object] : tree) {
    if (object.dataset) continue;
    std::string prefix = path == "/" ? "" : path.substr(1) + ".";
    std::replace(prefix.begin(), prefix.end(), '/', '.');
    for (const auto& [name, value] : object.attributes) named.emplace_back(prefix + name, &value);
  }
  return named;
}

Tree describe_export(Tree tree, const Codebook& codebook) {
  const std::optional<bool>& bias = codebook.model.attention_bias;
  auto& to = tree["/export"].attributes;
  to["version"] = text_value("1.0");
  to["channel_layout"] = text_value(codebook.model.rope.kind);
  to["key_site"] = text_value(codebook.scheme.key.site == Site::pre_rope ? "pre-rope" : "post-rope");
  // Ranges are taken from the activations, which hold keys before RoPE whatever the scheme.
  to["key_stats_site"] = text_value("pre-rope");
  to["attention_bias"] = text_value(!bias ? "unknown" : *bias ? "yes" : "no");
  to["qk_norm"] = text_value(codebook.model.qk_norm ? "yes" : "no");
  to["key_scale"] = text_value(scale_semantics(codebook.scheme, codebook.scheme.key));
  to["value_scale"] = text_value(scale_semantics(codebook.scheme, codebook.scheme.value));
  return tree;
}

}  // namespace kvcc
