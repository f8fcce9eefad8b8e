// ModelInfo as JSON: the activations' manifest, kvcc inspect and the exports write it in the same way.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "formats/core/error.h"
#include "formats/core/model_info.h"

namespace kvcc {

nlohmann::ordered_json to_json(const ModelInfo& model);
/// Throws Error(bad_input) naming `place` and the member that is missing or of another type.
ModelInfo model_from_json(const nlohmann::ordered_json& document, const std::string& place);

/// Member `name` of `document` as T. Throws Error(bad_input) naming `place` and the member.
template <typename T>
T json_member(const nlohmann::ordered_json& document, const std::string& name, const std::string& place) {
  if (!document.is_object() || !document.contains(name)) throw bad_input(place, "'" + name + "' is missing");
  const nlohmann::ordered_json& value = document.at(name);
  // The library would turn 1.5 into 1 and -1 into 2^64 - 1.
  constexpr bool whole = std::is_integral_v<T> && !std::is_same_v<T, bool>;
  if (whole && (!value.is_number_integer() || (std::is_unsigned_v<T> && !value.is_number_unsigned()))) {
    throw bad_input(place, "'" + name + "' is " + value.dump().substr(0, 80), "a whole number");
  }
  try {
    return value.get<T>();
  } catch (const nlohmann::json::exception&) {
    throw bad_input(place, "'" + name + "' is " + value.dump().substr(0, 80), "another type");
  }
}

}  // namespace kvcc
