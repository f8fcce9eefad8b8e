#include <algorithm>

#include "calib/text/utf8.h"
#include "calib/text/word_model.h"

namespace kvcc {
namespace {

constexpr uint64_t kBits = 1 << 24;  // 2 MiB: a vocabulary of 250,000 tokens has about a million pairs

uint64_t slot(uint64_t key) { return (key * 0x9e3779b97f4a7c15u) >> 40; }  // the upper 24 bits
void set(std::vector<uint64_t>& bits, uint64_t key) { bits[slot(key) / 64] |= uint64_t{1} << slot(key) % 64; }
bool get(const std::vector<uint64_t>& bits, uint64_t key) { return bits[slot(key) / 64] >> slot(key) % 64 & 1; }
uint64_t pair(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | (right + 1); }

}  // namespace

Borders::Borders(const TokenizerSpec& spec) : pairs_(kBits / 64), fuses_(spec.fuse_unknown && spec.unknown >= 0) {
  // A merge that takes bytes or the unknown token joins what the tokens' texts do not show.
  any_ = std::none_of(spec.merges.begin(), spec.merges.end(), [&](const auto& merge) {
    const auto odd = [&](int32_t id) {
      return id == spec.unknown || byte_of_token(spec.tokens[static_cast<size_t>(id)]) >= 0;
    };
    return odd(merge.first) || odd(merge.second);
  });
  for (const std::string& token : spec.tokens) {
    uint32_t before = 0;
    for (size_t at = 0, length; at < token.size(); at += length) {
      length = std::max<size_t>(utf8_length(token, at), 1);
      const uint32_t code = utf8_code(token, at);
      if (at > 0) set(pairs_, pair(before, code));
      if (length == token.size()) singles_.insert(code);
      before = code;
    }
  }
}

size_t Borders::part_end(std::string_view text, size_t at) const {
  if (!any_) return text.size();
  uint32_t before = utf8_code(text, at);
  for (at += utf8_length(text, at); at < text.size(); at += utf8_length(text, at)) {
    const uint32_t code = utf8_code(text, at);
    const bool fused = fuses_ && !singles_.contains(before) && !singles_.contains(code);
    if (!fused && !get(pairs_, pair(before, code))) return at;
    before = code;
  }
  return text.size();
}

}  // namespace kvcc
