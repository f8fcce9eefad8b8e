// Words of the scheme grammar and what is said of a word that is none. For scheme*.cc alone.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "formats/core/scheme_parts.h"
#include "formats/core/text.h"

namespace kvcc::scheme_parts {

template <typename Value>
struct Word {
  const char* text;
  Value value;
};

template <typename Words>
std::vector<std::string> texts_of(const Words& words) {
  std::vector<std::string> texts;
  for (const auto& word : words) texts.emplace_back(word.text);
  return texts;
}

template <typename Words, typename Value>
const char* word_of(const Words& words, Value value) {
  return std::find_if(words.begin(), words.end(), [&](const auto& word) { return word.value == value; })->text;
}

inline std::string meant(std::string_view word, const std::vector<std::string>& choices) {
  const std::string near = nearest(word, choices);
  return near.empty() ? "" : fmt::format("did you mean '{}'?", near);
}

template <typename Words>
auto value_of(const Words& words, std::string_view key, std::string_view word, std::string_view text) {
  for (const auto& entry : words) {
    if (word == entry.text) return entry.value;
  }
  const std::vector<std::string> choices = texts_of(words);
  throw refuse(text, fmt::format("{} is '{}'", key, word), fmt::format("one of {}", fmt::join(choices, ", ")),
               meant(word, choices));
}

}  // namespace kvcc::scheme_parts
