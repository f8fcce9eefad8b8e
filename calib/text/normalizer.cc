#include "calib/text/normalizer.h"

#include "calib/text/unicode.h"
#include "calib/text/utf8.h"

namespace kvcc {
namespace {

using Kind = NormalizerStep::Kind;

std::string replace_all(std::string_view text, const std::string& pattern, const std::string& content) {
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  for (size_t found; (found = text.find(pattern, at)) != std::string_view::npos; at = found + pattern.size()) {
    out.append(text, at, found - at).append(content);
  }
  return out.append(text, at, text.size() - at);
}

std::string replace_matches(std::string_view text, const Regex& regex, const std::string& content) {
  std::string out;
  size_t at = 0, begin = 0, end = 0;
  for (; at < text.size() && regex.find(text, at, begin, end); at = end) {
    out.append(text, at, begin - at).append(content);
  }
  return out.append(text, at, text.size() - at);
}

std::string strip(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = text.size();
  while (left && begin < end && is_white_space(utf8_code(text, begin))) begin += utf8_length(text, begin);
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && utf8_length(text, last) == 0) --last;
    if (!is_white_space(utf8_code(text, last))) break;
    end = last;
  }
  return std::string(text.substr(begin, end - begin));
}

template <typename Function>
std::string each_character(std::string_view text, Function&& append) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0, length; at < text.size(); at += length) {
    length = utf8_length(text, at);
    append(utf8_code(text, at), text.substr(at, length), out);
  }
  return out;
}

// The rules of SentencePiece's "nmt": control characters go, other white space is a space.
void append_nmt(uint32_t code, std::string_view character, std::string& out) {
  const bool control = (code >= 0x1 && code <= 0x8) || code == 0xb || (code >= 0xe && code <= 0x1f) || code == 0x7f ||
                       code == 0x8f || code == 0x9f;
  const bool space = code == 0x9 || code == 0xa || code == 0xc || code == 0xd || code == 0x1680 ||
                     (code >= 0x200b && code <= 0x200f) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
                     code == 0xfeff || code == 0xfffd;
  if (!control) out.append(space ? std::string_view(" ") : character);
}

// Short clusters are looked up as a whole, others character by character, as PyPI tokenizers does.
std::string precompiled(std::string_view text, const Charsmap& table) {
  constexpr size_t kShort = 6;
  std::string out;
  out.reserve(text.size());
  size_t begin = 0;
  for (const size_t end : grapheme_ends(text)) {
    const std::string_view cluster = text.substr(begin, end - begin);
    begin = end;
    if (cluster.size() < kShort) {
      if (const auto whole = table.find(cluster)) {
        out += *whole;
        continue;
      }
    }
    out += each_character(cluster, [&](uint32_t, std::string_view character, std::string& part) {
      part += table.find(character).value_or(character);
    });
  }
  return out;
}

}  // namespace

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps, const std::string& place) {
  for (const NormalizerStep& step : steps) {
    steps_.push_back({step, {}});
    if (step.kind == Kind::replace_regex) steps_.back().regex.emplace(step.pattern, place);
  }
}

std::string Normalizer::run(std::string_view given, bool goes_on) const {
  std::string text(given);
  for (const Step& s : steps_) {
    switch (s.step.kind) {
      case Kind::nfc:
      case Kind::nfd:
      case Kind::nfkc:
      case Kind::nfkd:
        text = normal_form(text, s.step.kind == Kind::nfkc || s.step.kind == Kind::nfkd,
                           s.step.kind == Kind::nfc || s.step.kind == Kind::nfkc);
        break;
      case Kind::lowercase:
        text = lowercase(text);
        break;
      case Kind::strip_accents:
        text = each_character(text, [](uint32_t code, std::string_view character, std::string& out) {
          if (!is_mark(code)) out += character;
        });
        break;
      case Kind::strip:
        text = strip(text, s.step.left, s.step.right);
        break;
      case Kind::nmt:
        text = each_character(text, append_nmt);
        break;
      case Kind::prepend:
        if (!text.empty() && !goes_on) text.insert(0, s.step.content);
        break;
      case Kind::replace:
        text = replace_all(text, s.step.pattern, s.step.content);
        break;
      case Kind::replace_regex:
        text = replace_matches(text, *s.regex, s.step.content);
        break;
      case Kind::precompiled:
        text = precompiled(text, *s.step.table);
        break;
    }
  }
  return text;
}

}  // namespace kvcc
