// Small charts in a terminal's characters: Unicode blocks, or ASCII where those can't be shown.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace kvcc {

struct TextStyle {
  int width = 80;        ///< columns of the terminal, at least 40
  bool unicode = false;  ///< the terminal shows UTF-8
  bool color = false;
};

enum class Ink { plain, faint, strong, blue, yellow };
/// Wraps text in the escape codes of a colour when the style has colours.
std::string paint(const std::string& text, Ink ink, const TextStyle& style);

/// Text from a file made harmless for a terminal: control characters become '?', and without Unicode what is not ASCII.
std::string printable(const std::string& text, const TextStyle& style);

/// Columns that the text takes: one a code point.
int columns_of(const std::string& text);
/// Text padded with spaces on the right (left: on the left) to `columns`; longer text is cut.
std::string padded(const std::string& text, int columns, bool left = false);

/// "label  text", the text broken at spaces and after commas so that no line is wider than the style; the lines after
/// the first are indented by `indent` columns, as the label is.
std::string folded(const std::string& label, const std::string& text, int indent, const TextStyle& style);

/// A horizontal bar of `share` (0 to 1; NaN: empty) of `cells` columns, exactly that many columns wide.
std::string bar(double share, int cells, const TextStyle& style);

/// Vertical bars: one column for each height (0 to 1), `rows` lines from the top. `marks` are columns in which the
/// empty cells hold a dotted line.
std::vector<std::string> column_chart(std::span<const double> heights, int rows, std::span<const int> marks,
                                      const TextStyle& style);

/// Vertical extents: one column for each [low, high] (0 to 1, low <= high), `rows` lines from the top. An extent shows
/// in at least one cell.
std::vector<std::string> extent_chart(std::span<const double> low, std::span<const double> high, int rows,
                                      const TextStyle& style);

}  // namespace kvcc
