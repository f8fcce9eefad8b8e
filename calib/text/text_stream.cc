#include "calib/text/text_stream.h"

#include "calib/text/utf8.h"

namespace kvcc {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";

/// Whether more bytes could make `text` a character: it is cut short, not wrong.
bool may_go_on(std::string_view text) {
  for (const char* rest : {"\x80", "\x80\x80", "\x80\x80\x80", "\xbf\x80", "\xbf\x80\x80"}) {
    std::string whole(text);
    whole += rest;
    if (utf8_length(whole, 0) == whole.size()) return true;
  }
  return false;
}

}  // namespace

std::string TextStream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  size_t at = 0;
  while (at < held_.size()) {
    const size_t length = utf8_length(held_, at);
    if (length > 0) {
      out.append(held_, at, length);
      at += length;
    } else if (held_.size() - at < 4 && may_go_on(std::string_view(held_).substr(at))) {
      break;
    } else {
      out += kReplacement;
      ++at;
    }
  }
  held_.erase(0, at);
  return out;
}

std::string TextStream::finish() {
  std::string out;
  if (!held_.empty()) out = kReplacement;
  held_.clear();
  return out;
}

}  // namespace kvcc
