#include "formats/store/activations_shard.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/layout/half.h"
#include "formats/store/tree.h"

namespace kvcc {
namespace {

constexpr const char* kFormat = "kvcc-activations-shard";
constexpr const char* kAxes = "token,head,channel";

struct ShardTensor {
  const char* path;
  const char* unit;
  std::vector<float> Shard::*data;
  bool value;     ///< of the value heads' dimension
  bool gradient;  ///< only with Fisher
};

constexpr ShardTensor kTensors[] = {
    {"/key", "element", &Shard::key, false, false},
    {"/key_grad", "nat/element", &Shard::key_grad, false, true},
    {"/value", "element", &Shard::value, true, false},
    {"/value_grad", "nat/element", &Shard::value_grad, true, true},
};

std::vector<int64_t> shape_of(const ActivationsSettings& settings, int sample, const ShardTensor& tensor) {
  const CacheShape& shape = settings.model.shape;
  return {settings.length(sample), shape.kv_heads, tensor.value ? shape.value_head_dim : shape.head_dim};
}

TreeValue value_of(const std::vector<float>& data, const std::vector<int64_t>& shape, bool bf16) {
  if (!bf16) return array_value(Element::f32, shape, data);
  std::vector<uint16_t> halves(data.size());
  for (size_t i = 0; i < data.size(); ++i) halves[i] = float_to_bfloat16(data[i]);
  return array_value(Element::u16, shape, halves);
}

/// Attribute `name` of an object as text; "" when it is missing or no text.
std::string text_of(const TreeObject& object, const std::string& name) {
  const auto found = object.attributes.find(name);
  return found == object.attributes.end() || found->second.type != Element::text ? "" : found->second.bytes;
}

void check_version(const Tree& tree, const std::string& place) {
  const std::string version = text_of(tree.at("/"), "format_version");
  if (version.starts_with("1.")) return;
  const bool newer = !version.empty() && version.find_first_not_of("0123456789.") == std::string::npos;
  throw bad_input(place, fmt::format("attribute format_version is '{}'", version.substr(0, 80)),
                  newer ? "up to 1.x, which this build reads" : "MAJOR.MINOR");
}

void check_labels(const TreeObject& object, const ShardTensor& tensor, bool bf16, const std::string& where) {
  const auto check = [&](const char* name, const std::string& wanted) {
    const std::string found = text_of(object, name);
    if (found == wanted) return;
    throw bad_input(where, fmt::format("attribute {} is '{}'", name, found.substr(0, 80)), "'" + wanted + "'");
  };
  check("axes", kAxes);
  check("unit", tensor.unit);
  check("encoding", bf16 ? "bf16" : "");
}

/// Unknown datasets are ignored unless they say that a reader must know them.
void check_extras(const Tree& tree, const std::string& place) {
  for (const auto& [path, object] : tree) {
    if (!object.dataset) continue;
    const bool known = std::any_of(std::begin(kTensors), std::end(kTensors),
                                   [&path = path](const ShardTensor& tensor) { return path == tensor.path; });
    const auto required = object.attributes.find("required");
    if (known || required == object.attributes.end()) continue;
    if (required->second.bytes.find_first_not_of('\0') == std::string::npos) continue;
    throw bad_input(fmt::format("{}: {}", place, path), "required, and unknown to this build", "a newer kvcc");
  }
}

}  // namespace

std::string shard_image(const ActivationsSettings& settings, int sample, int layer, const Shard& shard) {
  const bool bf16 = settings.acts_dtype == "bf16";
  const int number = settings.layer_index.at(static_cast<size_t>(layer));
  Tree tree;
  auto& root = tree["/"].attributes;
  root["format"] = text_value(kFormat);
  root["format_version"] = text_value("1.0");
  root["sample"] = integer_value(sample);
  root["layer"] = integer_value(number);
  for (const ShardTensor& tensor : kTensors) {
    if (tensor.gradient && !settings.fisher) continue;
    const std::vector<int64_t> shape = shape_of(settings, sample, tensor);
    const std::vector<float>& data = shard.*tensor.data;
    const auto wanted = static_cast<size_t>(shape[0] * shape[1] * shape[2]);
    if (data.size() != wanted) {
      throw Error(ErrorKind::failed, fmt::format("sample {} layer {} {}", sample, number, tensor.path),
                  fmt::format("{} values", data.size()), fmt::format("{} for {}", wanted, shape_text(shape)));
    }
    TreeObject& object = tree[tensor.path];
    object.dataset = true;
    object.value = value_of(data, shape, bf16);
    object.attributes["axes"] = text_value(kAxes);
    object.attributes["unit"] = text_value(tensor.unit);
    if (bf16) object.attributes["encoding"] = text_value("bf16");
  }
  return tree_to_hdf5(tree);
}

Shard shard_of_image(const ActivationsSettings& settings, int sample, int layer, std::span<const std::byte> image,
                     const std::string& place) {
  const Tree tree = hdf5_to_tree(image, place);
  const bool bf16 = settings.acts_dtype == "bf16";
  const auto need_attribute = [&](const std::string& name, const TreeValue& wanted) {
    const auto& attributes = tree.at("/").attributes;
    const auto found = attributes.find(name);
    if (found == attributes.end() || !(found->second == wanted)) {
      throw bad_input(
          place, fmt::format("attribute {} is missing or wrong", name),
          fmt::format("sample {} layer {} of a shard", sample, settings.layer_index[static_cast<size_t>(layer)]));
    }
  };
  need_attribute("format", text_value(kFormat));
  check_version(tree, place);
  check_extras(tree, place);
  need_attribute(
      "sample",
      integer_value(settings.sample_number.empty() ? sample : settings.sample_number.at(static_cast<size_t>(sample))));
  need_attribute("layer", integer_value(settings.layer_index.at(static_cast<size_t>(layer))));
  Shard shard;
  for (const ShardTensor& tensor : kTensors) {
    if (tensor.gradient && !settings.fisher) continue;
    const std::string where = fmt::format("{}: {}", place, tensor.path);
    const auto object = tree.find(tensor.path);
    if (object == tree.end() || !object->second.dataset) throw bad_input(where, "missing");
    const TreeValue& value = object->second.value;
    const std::vector<int64_t> shape = shape_of(settings, sample, tensor);
    const Element type = bf16 ? Element::u16 : Element::f32;
    if (value.type != type || value.shape != shape) {
      throw bad_input(where, fmt::format("{} {}", element_name(value.type), shape_text(value.shape)),
                      fmt::format("{} {}", element_name(type), shape_text(shape)));
    }
    check_labels(object->second, tensor, bf16, where);
    std::vector<float>& data = shard.*tensor.data;
    if (!bf16) {
      data = array_of<float>(value);
      continue;
    }
    const std::vector<uint16_t> halves = array_of<uint16_t>(value);
    data.resize(halves.size());
    for (size_t i = 0; i < halves.size(); ++i) data[i] = bfloat16_to_float(halves[i]);
  }
  return shard;
}

}  // namespace kvcc
