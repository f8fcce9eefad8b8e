// Text that comes token by token, whose bytes need not be whole characters.
#pragma once

#include <string>
#include <string_view>

namespace kvcc {

/// Cuts a stream of bytes into well-formed UTF-8: a character that is not complete yet is held back, and a byte that
/// belongs to none becomes U+FFFD.
class TextStream {
 public:
  /// What can be shown now of all bytes so far.
  std::string push(std::string_view bytes);
  /// What is held back, as U+FFFD, at the end of the text.
  std::string finish();

 private:
  std::string held_;  ///< the beginning of a character
};

}  // namespace kvcc
