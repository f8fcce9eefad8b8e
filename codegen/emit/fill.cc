#include "codegen/emit/fill.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/core/error.h"

namespace kvcc::codegen {

std::string fill(std::string_view text, const std::map<std::string, std::string>& values, const std::string& place) {
  std::string out;
  std::set<std::string> used;
  for (size_t at = 0; at < text.size();) {
    const size_t open = text.find('@', at);
    out += text.substr(at, open - at);
    if (open == std::string_view::npos) break;
    const size_t close = text.find('@', open + 1);
    const std::string name(text.substr(open + 1, close == std::string_view::npos ? 16 : close - open - 1));
    const bool word = std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    });
    if (close == std::string_view::npos || name.empty() || !word) {
      throw Error(ErrorKind::failed, place, fmt::format("a lone @ before \"{}\"", name), "@name@");
    }
    const auto value = values.find(name);
    if (value == values.end()) throw Error(ErrorKind::failed, place, fmt::format("@{}@ has no value", name));
    out += value->second;
    used.insert(name);
    at = close + 1;
  }
  for (const auto& [name, value] : values) {
    if (!used.contains(name)) throw Error(ErrorKind::failed, place, fmt::format("@{}@ is not used", name));
  }
  return out;
}

}  // namespace kvcc::codegen
