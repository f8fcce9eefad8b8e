#include "calib/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <new>

#include "calib/text/utf8.h"

namespace kvcc {

std::string normal_form(std::string_view text, bool compatibility, bool composed) {
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatibility ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += utf8_length(text, at)) {
    utf8proc_int32_t parts[64];  // the longest decomposition has 18
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(utf8_code(text, at)), parts, 64, options, nullptr);
    if (count > 0) codes.insert(codes.end(), parts, parts + std::min<utf8proc_ssize_t>(count, 64));
  }
  // utf8proc orders marks by swapping neighbours, whose time grows with the square of their number.
  const auto order = [](utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto end = std::find_if(begin, codes.end(), [&](auto code) { return order(code) == 0; });
    if (end - begin > 1) std::stable_sort(begin, end, [&](auto a, auto b) { return order(a) < order(b); });
    begin = end == codes.end() ? end : end + 1;
  }
  auto length = static_cast<utf8proc_ssize_t>(codes.size());
  if (composed) {
    length = utf8proc_normalize_utf32(codes.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(out, static_cast<uint32_t>(codes[static_cast<size_t>(i)]));
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += utf8_length(text, at)) {
    const uint32_t code = utf8_code(text, at);
    if (code == 0x130) {  // the one character whose lower case is two (SpecialCasing.txt); utf8proc has the simple one
      out += "i\xcc\x87";
    } else {
      append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
    }
  }
  return out;
}

bool is_mark(uint32_t code) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

std::vector<size_t> grapheme_ends(std::string_view text) {
  std::vector<size_t> ends;
  utf8proc_int32_t state = 0, before = -1;
  for (size_t at = 0; at < text.size(); at += utf8_length(text, at)) {
    const auto code = static_cast<utf8proc_int32_t>(utf8_code(text, at));
    if (before >= 0 && utf8proc_grapheme_break_stateful(before, code, &state)) ends.push_back(at);
    before = code;
  }
  if (!text.empty()) ends.push_back(text.size());
  return ends;
}

}  // namespace kvcc
