// Unicode's properties and forms, by utf8proc. Texts are well-formed UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

/// Unicode Standard Annex 15. O(n log n), however many combining marks follow one another.
std::string normal_form(std::string_view text, bool compatibility, bool composed);
std::string lowercase(std::string_view text);  ///< character by character, without regard to neighbours
bool is_mark(uint32_t code);                   ///< general category M
/// Ends of the extended grapheme clusters (Unicode Standard Annex 29), ascending; the last is text.size().
std::vector<size_t> grapheme_ends(std::string_view text);

}  // namespace kvcc
