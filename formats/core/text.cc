#include "formats/core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Edit distance with neighbouring letters swapped counted as one edit (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({replaced, last[j] + 1, now[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

constexpr std::array<std::pair<std::string_view, uint64_t>, 13> kUnits = {{
    {"", 1},
    {"b", 1},
    {"kib", 1ull << 10},
    {"mib", 1ull << 20},
    {"gib", 1ull << 30},
    {"tib", 1ull << 40},
    {"k", 1ull << 10},
    {"m", 1ull << 20},
    {"g", 1ull << 30},
    {"kb", 1'000},
    {"mb", 1'000'000},
    {"gb", 1'000'000'000},
    {"tb", 1'000'000'000'000},
}};

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1023.95) break;  // what would print as 1024.0
    value /= 1024;
    unit = next;
  }
  return fmt::format("{:.1f} {}", value, unit);
}

uint64_t parse_bytes(std::string_view text) {
  const auto refuse = [&](std::string found) {
    return Error(ErrorKind::usage, fmt::format("size '{}'", text), std::move(found),
                 "a number of bytes such as 8GiB, 512MiB or 1000");
  };
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || std::isnan(value)) throw refuse("no number");
  std::string unit(end, text.data() + text.size());
  unit.erase(std::remove(unit.begin(), unit.end(), ' '), unit.end());
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto found = std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& entry) { return entry.first == unit; });
  if (found == kUnits.end()) throw refuse(fmt::format("unknown unit '{}'", unit));
  const double bytes = value * static_cast<double>(found->second);
  if (!(bytes >= 0)) throw refuse("negative");
  if (bytes >= 9.2e18) throw refuse("too large");
  return static_cast<uint64_t>(bytes);
}

std::string json_text(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    size_t length = byte < 0x80 ? 1 : byte >= 0xc2 && byte < 0xe0 ? 2 : byte >= 0xe0 && byte < 0xf0 ? 3 : 4;
    bool good = byte < 0x80 || (byte >= 0xc2 && byte < 0xf5 && i + length <= text.size());
    for (size_t k = 1; good && k < length; ++k) good = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
    if (!good) {
      out += "\\ufffd";
      length = 1;
    } else if (byte == '"' || byte == '\\') {
      out += {'\\', text[i]};
    } else if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += text.substr(i, length);
    }
    i += length;
  }
  return out;
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace kvcc
