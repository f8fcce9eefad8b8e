// Members of tokenizer.json, read with their types checked; and the readers of its parts.
#pragma once

#include <string>
#include <vector>

#include "calib/text/tokenizer_spec.h"
#include "formats/core/json.h"

namespace kvcc {

constexpr int64_t kMaxVocabulary = 1 << 24;

/// All throw Error(bad_input) that names the file and the member.
struct JsonFields {
  const std::string& place;

  Error refuse(const std::string& found, const std::string& wanted = "") const {
    return tokenizer_error(place, found, wanted);
  }
  /// null when absent.
  static const nlohmann::json& member(const nlohmann::json& object, const char* name) {
    static const nlohmann::json kNull;
    if (!object.is_object()) return kNull;
    const auto it = object.find(name);
    return it == object.end() ? kNull : *it;
  }
  std::string text(const nlohmann::json& object, const char* name, const char* otherwise = "") const {
    const nlohmann::json& v = member(object, name);
    if (v.is_null()) return otherwise;
    if (!v.is_string()) throw refuse(std::string(name) + " is not a string");
    return v.get<std::string>();
  }
  bool flag(const nlohmann::json& object, const char* name, bool otherwise) const {
    const nlohmann::json& v = member(object, name);
    if (v.is_null()) return otherwise;
    if (!v.is_boolean()) throw refuse(std::string(name) + " is not true or false");
    return v.get<bool>();
  }
  int32_t id(const nlohmann::json& v, const std::string& what) const {
    if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() >= kMaxVocabulary) {
      throw refuse("the id of " + what + " is not a number from 0 to " + std::to_string(kMaxVocabulary - 1));
    }
    return v.get<int32_t>();
  }
  /// An added token but its id.
  AddedToken added(const nlohmann::json& entry) const;
  /// Its text: a string, or an object with content.
  std::string token_text(const nlohmann::json& token) const {
    return token.is_object() ? text(token, "content") : token.is_string() ? token.get<std::string>() : "";
  }
  /// The pattern of a Split or Replace. A string matches itself, and is written as a regular expression.
  struct Pattern {
    std::string regex, literal;  ///< literal "": it was a regular expression
  };
  Pattern pattern(const nlohmann::json& object, const std::string& what) const;
};

/// The part "normalizer", which may be null.
std::vector<NormalizerStep> read_normalizer(const JsonFields& fields, const nlohmann::json& normalizer);

/// The part "pre_tokenizer", which may be null. Sets stages and byte_level.
void read_pre_tokenizer(const JsonFields& fields, const nlohmann::json& pre, TokenizerSpec& spec);

}  // namespace kvcc
