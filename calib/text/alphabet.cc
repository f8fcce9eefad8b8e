// GPT-2's alphabet: a printable byte of Latin-1 is itself, the others are numbered from U+0100.
#include <array>

#include "calib/text/bpe_spec.h"
#include "calib/text/utf8.h"

namespace kvcc {
namespace {

bool is_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

std::array<int16_t, 0x144> make_bytes() {  // code point to byte, -1: none
  std::array<int16_t, 0x144> bytes;
  bytes.fill(-1);
  uint32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) bytes[is_itself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return bytes;
}

}  // namespace

bool bytes_of_alphabet(std::string_view text, std::string& bytes) {
  static const std::array<int16_t, 0x144> kBytes = make_bytes();
  bytes.clear();
  for (size_t at = 0, length; at < text.size(); at += length) {
    length = utf8_length(text, at);
    if (length == 0) return false;
    const uint32_t code = utf8_code(text, at);
    if (code >= kBytes.size() || kBytes[code] < 0) return false;
    bytes += static_cast<char>(kBytes[code]);
  }
  return true;
}

}  // namespace kvcc
