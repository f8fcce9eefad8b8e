#include "formats/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>

namespace kvcc::cli {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

int stdout_columns() {
  constexpr int kLeast = 40, kMost = 1000, kUsual = 80;
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return std::clamp<int>(size.ws_col, kLeast, kMost);
  }
  const std::string text = environment("COLUMNS");
  int columns = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), columns);
  const bool good = end.ec == std::errc() && end.ptr == text.data() + text.size();
  return good && columns >= kLeast && columns <= kMost ? columns : kUsual;
}

bool shows_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value = environment(name);
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

bool shows_colors() {
  return isatty(STDOUT_FILENO) == 1 && environment("NO_COLOR").empty() && environment("TERM") != "dumb";
}

}  // namespace kvcc::cli
