// JSON of files that nobody vouches for: parsed within bounds, members read with their types and ranges checked.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "formats/core/error.h"

namespace kvcc {

/// Copying and printing a document recurse as deep as it nests.
inline constexpr size_t kJsonDepth = 64;

/// The object that `text` holds. Json is nlohmann::json or nlohmann::ordered_json. Linear in the text. Throws
/// Error(bad_input) at `place`, naming member and rule, for what is no JSON or no object, nests deeper than kJsonDepth,
/// or names a member twice (readers differ in which one counts).
template <class Json>
Json parse_json(std::string_view text, const std::string& place);
extern template nlohmann::json parse_json(std::string_view, const std::string&);
extern template nlohmann::ordered_json parse_json(std::string_view, const std::string&);

/// The text of a file of at most `most` bytes, so that absurd sizes are refused before memory is asked for.
std::string read_json_text(const std::string& path, uint64_t most);
template <class Json>
Json read_json(const std::string& path, uint64_t most) {
  return parse_json<Json>(read_json_text(path, most), path);
}

/// A value as JSON for a message, cut to 80 bytes.
template <class Json>
std::string json_brief(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80);
}

namespace json_detail {

template <class T>
struct Form {};  // of what the templates below take apart
template <class T>
struct Form<std::vector<T>> {
  using Each = T;
};
template <class T, size_t N>
struct Form<std::array<T, N>> {
  using Item = T;
};
template <class T>
struct Form<std::map<std::string, T>> {
  using Member = T;
};

}  // namespace json_detail

/// `value` as T: bool, a number, text, a document, or a vector, array or map of such. Numbers are not rounded or cut to
/// fit. Throws Error(bad_input) at `place` with `name`, what was found, and the type or range wanted.
template <class T, class Json>
T json_value(const Json& value, const std::string& name, const std::string& place) {
  using Form = json_detail::Form<T>;
  const auto wrong = [&](const char* wanted) {
    return bad_input(place, "'" + name + "' is " + json_brief(value), wanted);
  };
  if constexpr (std::is_same_v<T, Json>) {
    return value;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) throw wrong("true or false");
    return value.template get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!value.is_number_integer()) throw wrong("a whole number");
    const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.template get<uint64_t>())
                                                 : std::in_range<T>(value.template get<int64_t>());
    if (!fits) throw wrong(std::is_unsigned_v<T> ? "a whole number from 0, in range" : "a whole number in range");
    return value.template get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!value.is_number()) throw wrong("a number");
    return value.template get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) throw wrong("text");
    return value.template get<std::string>();
  } else if constexpr (requires { typename Form::Each; }) {
    if (!value.is_array()) throw wrong("a list");
    T list;
    list.reserve(value.size());
    for (const Json& each : value) list.push_back(json_value<typename Form::Each>(each, name, place));
    return list;
  } else if constexpr (requires { typename Form::Item; }) {
    T list{};
    if (!value.is_array() || value.size() != list.size()) throw wrong("a list of another length");
    for (size_t i = 0; i < list.size(); ++i) list[i] = json_value<typename Form::Item>(value[i], name, place);
    return list;
  } else {
    if (!value.is_object()) throw wrong("an object");
    T members;
    for (const auto& [key, each] : value.items()) {
      members[key] = json_value<typename Form::Member>(each, name + "." + key, place);
    }
    return members;
  }
}

/// Member `name` of `document` as T; as json_value, and when there is none.
template <class T, class Json>
T json_member(const Json& document, const std::string& name, const std::string& place) {
  if (!document.is_object()) throw bad_input(place, json_brief(document), "an object with a member '" + name + "'");
  const auto found = document.find(name);
  if (found == document.end()) throw bad_input(place, "'" + name + "' is missing");
  return json_value<T>(*found, name, place);
}

}  // namespace kvcc
