// Small helpers for messages: nearest names, sizes, shapes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

/// The candidate with the smallest edit distance, or "" when none is near enough to be meant.
std::string nearest(std::string_view word, std::span<const std::string> candidates);
/// "1.5 GiB", "312 B".
std::string human_bytes(uint64_t bytes);
/// Parses "8GiB", "512MiB", "1000". Throws Error(usage).
uint64_t parse_bytes(std::string_view text);
/// The inside of a JSON string; bytes that are no UTF-8 become U+FFFD, as in the programs' documents.
std::string json_text(std::string_view text);
/// "[30, 3, 64]".
std::string shape_text(std::span<const int64_t> shape);

}  // namespace kvcc
