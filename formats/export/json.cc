#include <nlohmann/json.hpp>

#include "formats/export/export.h"

namespace kvcc {
namespace {

using nlohmann::ordered_json;

template <typename T>
ordered_json numbers(const TreeValue& value) {
  const std::vector<T> data = array_of<T>(value);
  if (value.shape.empty() && data.size() == 1) return data.front();
  return data;
}

ordered_json value_json(const TreeValue& value) {
  switch (value.type) {
    case Element::text:
      return value.bytes;
    case Element::u8:
      return numbers<uint8_t>(value);
    case Element::u16:
      return numbers<uint16_t>(value);
    case Element::u32:
      return numbers<uint32_t>(value);
    case Element::u64:
      return numbers<uint64_t>(value);
    case Element::i8:
      return numbers<int8_t>(value);
    case Element::i16:
      return numbers<int16_t>(value);
    case Element::i32:
      return numbers<int32_t>(value);
    case Element::i64:
      return numbers<int64_t>(value);
    case Element::f32:
      return numbers<float>(value);
    case Element::f64:
      return numbers<double>(value);
  }
  return nullptr;
}

}  // namespace

std::string tree_to_json(const Tree& tree) {
  ordered_json document;
  document["schema_version"] = 1;
  ordered_json datasets = ordered_json::object();
  for (const auto& [path, object] : tree) {
    ordered_json attributes = ordered_json::object();
    for (const auto& [name, value] : object.attributes) attributes[name] = value_json(value);
    if (!object.dataset) {
      if (!attributes.empty()) document["attributes"][path] = std::move(attributes);
      continue;
    }
    ordered_json& entry = datasets[path.substr(1)];
    entry["type"] = element_name(object.value.type);
    entry["shape"] = object.value.shape;
    for (const auto& [name, value] : attributes.items()) entry[name] = value;
    entry["data"] = value_json(object.value);
  }
  document["datasets"] = std::move(datasets);
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace kvcc
