// How vocabularies write bytes. GPT-2's alphabet: a printable byte of Latin-1 is itself, the others are numbered from
// U+0100. SentencePiece: "<0x0A>".
#include <array>

#include "calib/text/tokenizer_spec.h"
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

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    if (!(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'F')) return -1;
    byte = 16 * byte + (c <= '9' ? c - '0' : c - 'A' + 10);
  }
  return byte;
}

}  // namespace kvcc
