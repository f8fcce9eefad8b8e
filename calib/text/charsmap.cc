#include "calib/text/charsmap.h"

#include <cstring>

#include "calib/text/tokenizer_spec.h"
#include "calib/text/utf8.h"

namespace kvcc {
namespace {

// A unit of the trie: label in the low byte, "a value hangs here" in bit 8, bit 9 makes the offset coarse; a unit with
// the highest bit set is a value.
constexpr uint32_t kValue = 1u << 31;
bool has_value(uint32_t unit) { return (unit >> 8 & 1) == 1; }
uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit & (1u << 9)) >> 6); }
uint32_t label(uint32_t unit) { return unit & (kValue | 0xff); }

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& place) : bytes_(bytes) {
  const auto broken = [&](const std::string& what) {
    return tokenizer_error(place, "precompiled_charsmap: " + what, "a table as sentencepiece writes it");
  };
  uint32_t size = 0;
  if (bytes.size() < sizeof size) throw broken(std::to_string(bytes.size()) + " bytes");
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size > bytes.size() - sizeof size || size % sizeof(uint32_t) != 0 || size < 256 * sizeof(uint32_t)) {
    throw broken("a trie of " + std::to_string(size) + " bytes in " + std::to_string(bytes.size()));
  }
  units_.resize(size / sizeof(uint32_t));
  std::memcpy(units_.data(), bytes.data() + sizeof size, size);
  texts_ = sizeof size + size;
  if (texts_ == bytes_.size() || bytes_.back() != '\0') throw broken("its last text has no end");

  const std::string_view texts = std::string_view(bytes_).substr(texts_);
  std::vector<bool> starts(texts.size());  // of a character, and so of a text
  for (size_t at = 0, length; at < texts.size(); at += length) {
    length = utf8_length(texts, at);
    if (length == 0) throw broken("its texts are no UTF-8");
    starts[at] = true;
  }

  std::vector<bool> seen(units_.size());
  std::vector<uint32_t> open{0};
  while (!open.empty()) {
    const uint32_t at = open.back();
    open.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    const uint32_t children = at ^ offset(units_[at]);
    if ((children | 0xff) >= units_.size()) throw broken("unit " + std::to_string(at) + " leads out of the trie");
    if (has_value(units_[at])) {
      const uint32_t text = units_[children] & ~kValue;
      if (text >= starts.size() || !starts[text]) {
        throw broken("unit " + std::to_string(children) + " leads to no text");
      }
    }
    for (uint32_t byte = 1; byte < 256; ++byte) {
      if (label(units_[children ^ byte]) == byte) open.push_back(children ^ byte);
    }
  }
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  uint32_t at = offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    at ^= byte;
    const uint32_t unit = units_[at];
    if (label(unit) != byte) break;
    at ^= offset(unit);
    if (has_value(unit)) return std::string_view(bytes_.c_str() + texts_ + (units_[at] & ~kValue));
  }
  return std::nullopt;
}

}  // namespace kvcc
