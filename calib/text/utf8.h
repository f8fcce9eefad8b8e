// Well-formed UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvcc {

/// Bytes of the well-formed character at `at`, 0 when there is none (then the byte at `at` is invalid by itself).
size_t utf8_length(std::string_view text, size_t at);
/// The code point at `at`, where utf8_length is not 0.
uint32_t utf8_code(std::string_view text, size_t at);
void append_utf8(std::string& out, uint32_t code);
/// Unicode White_Space, which differs from PCRE2's \s in U+180E.
bool is_white_space(uint32_t code);

}  // namespace kvcc
