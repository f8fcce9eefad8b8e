#include "formats/store/tree.h"

#include <fmt/format.h>

#include <bit>

#include "formats/core/hash.h"

namespace kvcc {

static_assert(std::endian::native == std::endian::little, "values are kept as they lie in the file");

const char* element_name(Element type) {
  constexpr const char* kNames[] = {"u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64", "text"};
  return kNames[static_cast<size_t>(type)];
}

size_t element_bytes(Element type) {
  constexpr size_t kBytes[] = {1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 1};
  return kBytes[static_cast<size_t>(type)];
}

TreeValue text_value(std::string_view text) { return {Element::text, {}, std::string(text)}; }

TreeValue integer_value(int64_t number) {
  return {Element::i64, {}, std::string(reinterpret_cast<const char*>(&number), sizeof number)};
}

TreeValue float_value(double number) {
  return {Element::f64, {}, std::string(reinterpret_cast<const char*>(&number), sizeof number)};
}

std::string content_sha256(const Tree& tree) {
  Sha256 hash;
  const auto add = [&hash](std::string head, const TreeValue& value) {
    const std::string shape = value.shape.empty() ? "scalar" : fmt::format("{}", fmt::join(value.shape, "x"));
    hash.update(fmt::format("{} {} {} {}\n", head, element_name(value.type), shape, value.bytes.size()));
    hash.update(value.bytes).update("\n");
  };
  for (const auto& [path, object] : tree) {
    if (!object.dataset) hash.update(fmt::format("group {}\n", path));
    if (object.dataset) add(fmt::format("dataset {}", path), object.value);
    for (const auto& [name, value] : object.attributes) {
      if (path == "/" && name == "content_sha256") continue;
      add(fmt::format("attribute {} {}", path, name), value);
    }
  }
  return hash.hex();
}

}  // namespace kvcc
