// Template text to tokens, white space control done. Not for other folders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcc::jinja {

struct Token {
  enum class Kind : uint8_t { data, begin_output, end_output, begin_block, end_block, name, string, number, mark, end };
  Kind kind = Kind::end;
  std::string text;  ///< of strings: what they hold; of marks: "==", "(", …
  int line = 1;
};

/// Ends in a token of kind end.
std::vector<Token> tokenise(const std::string& source, const std::string& place);

}  // namespace kvcc::jinja
