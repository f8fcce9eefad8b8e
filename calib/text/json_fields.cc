#include "calib/text/json_fields.h"

#include <cctype>

namespace kvcc {

AddedToken JsonFields::added(const nlohmann::json& entry) const {
  AddedToken token;
  token.content = text(entry, "content");
  token.special = flag(entry, "special", false);
  token.lstrip = flag(entry, "lstrip", false);
  token.rstrip = flag(entry, "rstrip", false);
  token.single_word = flag(entry, "single_word", false);
  // Special tokens are looked for in the text as it is.
  token.normalized = flag(entry, "normalized", !token.special);
  return token;
}

JsonFields::Pattern JsonFields::pattern(const nlohmann::json& object, const std::string& what) const {
  const nlohmann::json& given = member(object, "pattern");
  Pattern pattern;
  if (member(given, "Regex").is_string()) {
    pattern.regex = given["Regex"].get<std::string>();
  } else if (member(given, "String").is_string()) {
    pattern.literal = given["String"].get<std::string>();
    for (const char c : pattern.literal) {
      const auto byte = static_cast<unsigned char>(c);
      const bool plain = byte >= 0x80 || std::isalnum(byte) || std::isspace(byte);
      pattern.regex += plain ? std::string(1, c) : std::string("\\") + c;
    }
  }
  if (pattern.regex.empty()) throw refuse(what + " without a pattern");
  return pattern;
}

}  // namespace kvcc
