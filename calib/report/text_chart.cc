#include "calib/report/text_chart.h"

#include <algorithm>
#include <cmath>

namespace kvcc {
namespace {

// An eighth to eight eighths.
constexpr const char* kAcross[] = {"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
constexpr const char* kUpwards[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

bool starts_code_point(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

/// The first `columns` code points.
std::string cut(const std::string& text, int columns) {
  int count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (starts_code_point(text[i]) && count++ == columns) return text.substr(0, i);
  }
  return text;
}

/// Words that stay together: up to and with a space or comma.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    words.back() += c;
    if (c == ' ' || c == ',') words.emplace_back();
  }
  return words;
}

}  // namespace

std::string paint(const std::string& text, Ink ink, const TextStyle& style) {
  if (!style.color || ink == Ink::plain || text.empty()) return text;
  constexpr const char* kCodes[] = {"0", "2", "1", "36", "33"};
  return "\x1b[" + std::string(kCodes[static_cast<int>(ink)]) + "m" + text + "\x1b[0m";
}

std::string printable(const std::string& text, const TextStyle& style) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too; in UTF-8 they begin with 0xc2.
    const bool second = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c < 0x20 || c == 0x7f || second || (c >= 0x80 && !style.unicode)) {
      if (starts_code_point(text[i])) out += '?';
      if (second) ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

int columns_of(const std::string& text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), starts_code_point));
}

std::string padded(const std::string& text, int columns, bool left) {
  const int room = columns - columns_of(text);
  if (room < 0) return cut(text, columns);
  const std::string space(static_cast<size_t>(room), ' ');
  return left ? space + text : text + space;
}

std::string folded(const std::string& label, const std::string& text, int indent, const TextStyle& style) {
  std::string out, line = padded(label, indent);
  const int room = std::max(style.width - indent, 8);
  int used = 0;
  const auto end_line = [&] {
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    line = std::string(static_cast<size_t>(indent), ' ');
    used = 0;
  };
  for (std::string word : words_of(text)) {
    std::string bare = word;
    bare.erase(bare.find_last_not_of(' ') + 1);
    if (used > 0 && used + columns_of(bare) > room) end_line();
    while (columns_of(bare) > room) {  // longer than any line
      const std::string part = cut(word, room);
      line += part;
      end_line();
      word = word.substr(part.size());
      bare = bare.substr(std::min(bare.size(), part.size()));
    }
    line += word;
    used += columns_of(word);
  }
  if (used > 0 || out.empty()) end_line();
  return out;
}

std::string bar(double share, int cells, const TextStyle& style) {
  const double clipped = std::isnan(share) ? 0.0 : std::clamp(share, 0.0, 1.0);
  std::string text;
  if (style.unicode) {
    const int eighths = static_cast<int>(std::lround(clipped * cells * 8));
    for (int i = 0; i < eighths / 8; ++i) text += kAcross[7];
    if (eighths % 8 > 0) text += kAcross[eighths % 8 - 1];
  } else {
    const int halves = static_cast<int>(std::lround(clipped * cells * 2));
    text = std::string(static_cast<size_t>(halves / 2), '#') + (halves % 2 > 0 ? "-" : "");
  }
  return padded(text, cells);
}

std::vector<std::string> column_chart(std::span<const double> heights, int rows, std::span<const int> marks,
                                      const TextStyle& style) {
  std::vector<std::string> lines(static_cast<size_t>(rows));
  for (int row = 0; row < rows; ++row) {
    std::string& line = lines[static_cast<size_t>(row)];
    for (size_t i = 0; i < heights.size(); ++i) {
      const double eighths = std::clamp(heights[i], 0.0, 1.0) * rows * 8 - 8 * (rows - 1 - row);
      // What is there at all shows in the lowest row.
      const bool lowest = row == rows - 1 && heights[i] > 0;
      const int filled = std::clamp(static_cast<int>(std::lround(eighths)), lowest ? 1 : 0, 8);
      const bool marked = std::find(marks.begin(), marks.end(), static_cast<int>(i)) != marks.end();
      if (filled == 0) {
        line += marked ? (style.unicode ? "┊" : ":") : " ";
      } else if (style.unicode) {
        line += kUpwards[filled - 1];
      } else {
        line += filled > 6 ? '#' : (filled > 3 ? '+' : '.');
      }
    }
  }
  return lines;
}

std::vector<std::string> extent_chart(std::span<const double> low, std::span<const double> high, int rows,
                                      const TextStyle& style) {
  std::vector<std::string> lines(static_cast<size_t>(rows));
  for (int row = 0; row < rows; ++row) {
    for (size_t i = 0; i < low.size(); ++i) {
      // In halves of a cell, from the bottom; an extent has at least the half in which its middle lies.
      const double halves = 2.0 * rows;
      int first = static_cast<int>(std::lround(low[i] * halves)),
          last = static_cast<int>(std::lround(high[i] * halves));
      if (first >= last) {
        first = std::clamp(static_cast<int>((low[i] + high[i]) / 2 * halves), 0, 2 * rows - 1);
        last = first + 1;
      }
      const int lower = 2 * (rows - 1 - row);
      const bool bottom = first <= lower && lower < last, top = first <= lower + 1 && lower + 1 < last;
      const char* cell = " ";
      if (style.unicode) {
        cell = bottom && top ? "█" : bottom ? "▄" : top ? "▀" : " ";
      } else {
        cell = bottom && top ? "#" : bottom ? "." : top ? "'" : " ";
      }
      lines[static_cast<size_t>(row)] += cell;
    }
  }
  return lines;
}

}  // namespace kvcc
