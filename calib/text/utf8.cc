#include "calib/text/utf8.h"

namespace kvcc {
namespace {
unsigned byte_at(std::string_view text, size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
}
bool continues(unsigned byte) { return (byte & 0xc0u) == 0x80u; }
}  // namespace

size_t utf8_length(std::string_view text, size_t at) {
  const unsigned a = byte_at(text, at), b = byte_at(text, at + 1);
  if (a < 0x80) return at < text.size() ? 1 : 0;
  if (a >= 0xc2 && a <= 0xdf) return continues(b) ? 2 : 0;
  const bool third = continues(byte_at(text, at + 2));
  if (a >= 0xe0 && a <= 0xef) {
    const unsigned low = a == 0xe0 ? 0xa0 : 0x80, high = a == 0xed ? 0x9f : 0xbf;  // no overlong forms, no surrogates
    return b >= low && b <= high && third ? 3 : 0;
  }
  if (a >= 0xf0 && a <= 0xf4) {
    const unsigned low = a == 0xf0 ? 0x90 : 0x80, high = a == 0xf4 ? 0x8f : 0xbf;
    return b >= low && b <= high && third && continues(byte_at(text, at + 3)) ? 4 : 0;
  }
  return 0;
}

uint32_t utf8_code(std::string_view text, size_t at) {
  const size_t length = utf8_length(text, at);
  uint32_t code = byte_at(text, at);
  if (length > 1) code &= (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) code = (code << 6) | (byte_at(text, at + i) & 0x3fu);
  return code;
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

bool is_white_space(uint32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

}  // namespace kvcc
