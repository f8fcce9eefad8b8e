// One head in full.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "calib/report/text_page.h"

namespace kvcc {
namespace {

constexpr double kShown = 1.25;  // the histogram's axis goes from -kShown to kShown

std::string number(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "-";
}
std::string percent(double share) { return std::isfinite(share) ? fmt::format("{:.2f} %", 100 * share) : "-"; }

/// Column of y on an axis of `columns`.
int column_of(double y, int columns) {
  return std::clamp(static_cast<int>((y + kShown) / (2 * kShown) * columns), 0, columns - 1);
}

/// The histogram's density in `columns` equal parts of [-kShown, kShown], the greatest between the ends 1. What lies
/// beyond is added to the ends.
std::vector<double> densities(const std::vector<float>& histogram, int columns) {
  std::vector<double> out(static_cast<size_t>(columns));
  const double width = 2 * kShown / columns;
  for (int b = 0; b < kNormalisedBins; ++b) {
    const double low = normalised_edge(b), high = normalised_edge(b + 1), share = histogram[static_cast<size_t>(b)];
    if (high <= -kShown || low >= kShown) {
      out[high <= -kShown ? 0 : out.size() - 1] += share;
      continue;
    }
    const int first = column_of(low, columns), last = column_of(high, columns);
    for (int c = first; c <= last; ++c) {
      const double left = -kShown + c * width;
      const double overlap = std::min(high, left + width) - std::max(low, left);
      if (overlap > 0) out[static_cast<size_t>(c)] += share * overlap / (high - low);
    }
  }
  // The ends, which hold all that lies beyond, must not dwarf the rest.
  double greatest = *std::max_element(out.begin() + 1, out.end() - 1);
  if (greatest == 0) greatest = std::max(out.front(), out.back());
  for (double& value : out) value = greatest > 0 ? value / greatest : 0;
  return out;
}

/// A line of `columns` with `cell` where the levels are, and the ends of the range.
std::string level_line(const HeadReport& head, int columns, const TextStyle& style) {
  const char* line = style.unicode ? "─" : "-";
  const char* level = style.unicode ? "┼" : "|";
  const char* end = style.unicode ? "┃" : "!";
  std::vector<const char*> cells(static_cast<size_t>(columns), " ");
  const int low = column_of(-1, columns), high = column_of(1, columns);
  for (int c = low; c <= high; ++c) cells[static_cast<size_t>(c)] = line;
  cells[static_cast<size_t>(low)] = cells[static_cast<size_t>(high)] = end;
  for (const float y : head.codebook) cells[static_cast<size_t>(column_of(y, columns))] = level;
  return fmt::format("{}", fmt::join(cells, ""));
}

std::string axis_line(int columns) {
  std::string line(static_cast<size_t>(columns), ' ');
  for (const int y : {-1, 0, 1}) {
    const std::string label = std::to_string(y);
    const int at = column_of(y, columns) - static_cast<int>(label.size()) / 2;
    line.replace(static_cast<size_t>(std::max(at, 0)), label.size(), label);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string distribution_text(const HeadReport& head, const TextStyle& style) {
  const int columns = std::min(style.width - 4, 120);
  constexpr int kRows = 7;
  std::string text;
  const auto add = [&](const std::string& line, Ink ink) {
    std::string kept = line;
    kept.erase(kept.find_last_not_of(' ') + 1);
    text += "  " + paint(kept, ink, style) + "\n";
  };
  if (!head.histogram.empty()) {
    text += folded("", "histogram of normalised elements: thresholds (ends of the range) at -1 and 1, codes below", 0,
                   style);
    const int marks[] = {column_of(-1, columns), column_of(1, columns)};
    for (const std::string& line : column_chart(densities(head.histogram, columns), kRows, marks, style)) {
      add(line, Ink::blue);
    }
  }
  if (head.codebook.empty()) return text;
  add(level_line(head, columns, style), Ink::plain);
  add(axis_line(columns), Ink::faint);
  text += folded("codebook", fmt::format("{:.4g}", fmt::join(head.codebook, " ")), 10, style);
  if (head.code_use.empty()) return text;
  std::vector<std::string> use;
  for (const float share : head.code_use) use.push_back(share == 0 ? "0" : fmt::format("{:.2g}", 100 * share));
  return text + folded("used, %", fmt::format("{}", fmt::join(use, " ")), 10, style);
}

std::string ranges_text(const std::string& title, const std::vector<float>& low, const std::vector<float>& high,
                        const TextStyle& style) {
  if (low.empty() || high.empty()) return "";
  constexpr int kRows = 9, kAxis = 9;
  // As many channels in a column as it takes.
  const size_t group = (low.size() + static_cast<size_t>(style.width - kAxis) - 1) /
                       static_cast<size_t>(std::max(style.width - kAxis, 1));
  const float least = *std::min_element(low.begin(), low.end()), greatest = *std::max_element(high.begin(), high.end());
  const double span = greatest > least ? double{greatest} - least : 1;
  std::vector<double> from, to;
  for (size_t c = 0; c < low.size(); c += group) {
    const auto end = static_cast<long>(std::min(low.size(), c + group));
    from.push_back((*std::min_element(low.begin() + static_cast<long>(c), low.begin() + end) - least) / span);
    to.push_back((*std::max_element(high.begin() + static_cast<long>(c), high.begin() + end) - least) / span);
  }
  std::string text = folded("",
                            fmt::format("{}, channels 0 to {}{}", title, low.size() - 1,
                                        group > 1 ? fmt::format(" ({} in a column)", group) : ""),
                            0, style);
  const std::vector<std::string> lines = extent_chart(from, to, kRows, style);
  for (int row = 0; row < kRows; ++row) {
    const double value = greatest - (greatest - least) * (row + 0.5) / kRows;
    const std::string label = row == 0           ? fmt::format("{:.3g}", greatest)
                              : row == kRows - 1 ? fmt::format("{:.3g}", least)
                              : row == kRows / 2 ? fmt::format("{:.2g}", value)
                                                 : "";
    std::string line = lines[static_cast<size_t>(row)];
    line.erase(line.find_last_not_of(' ') + 1);
    text += paint(padded(label, kAxis - 1, true), Ink::faint, style) + " " + paint(line, Ink::blue, style) + "\n";
  }
  return text;
}

/// The channels of the widest ranges, with numbers.
std::string widest_text(const ChannelReport& channels, const TextStyle& style) {
  if (channels.min.empty() || channels.max.empty()) return "";
  std::vector<size_t> order(channels.size());
  for (size_t c = 0; c < order.size(); ++c) order[c] = c;
  const auto width = [&](size_t c) { return double{channels.max[c]} - channels.min[c]; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return width(a) > width(b); });
  std::vector<std::string> items;
  for (size_t i = 0; i < std::min<size_t>(order.size(), 6); ++i) {
    const size_t c = order[i];
    items.push_back(fmt::format("{} ({:.3g} to {:.3g})", c, channels.min[c], channels.max[c]));
  }
  return folded("widest", fmt::format("{}", fmt::join(items, ", ")), 10, style);
}

}  // namespace

std::string head_text(const HeadReport& head, const Codebook& codebook, const TextStyle& style) {
  const bool key = head.kind[0] == 'k';
  const TensorScheme& scheme = key ? codebook.scheme.key : codebook.scheme.value;
  std::string title = fmt::format("layer {} {} head {}", head.layer, head.kind, head.head);
  if (!head.codebook.empty()) {
    title += fmt::format(": {} bits, scaled per {}", head.bits, scheme.axis == Axis::channel ? "channel" : "token");
  }
  std::string text = paint(title, Ink::strong, style) + "\n";
  const auto line = [&](const char* label, const std::string& value) { text += folded(label, value, 14, style); };
  line("range", fmt::format("{} to {}", number(head.range_min, "{:.4g}"), number(head.range_max, "{:.4g}")));
  if (!head.codebook.empty()) {
    std::string held;
    if (std::isfinite(head.held_out_outliers)) held = "; " + percent(head.held_out_outliers) + " on held-out text";
    line("outliers",
         fmt::format("{}{}; {} % asked", percent(head.outlier_fraction), held, 100 * codebook.scheme.sparse));
    line("error", fmt::format("{} nat^2 weighted; SQNR {} dB", number(head.weighted_sse, "{:.4g}"),
                              number(head.sqnr_db, "{:.2f}")));
  }
  std::string shares = fmt::format("{} on first tokens", percent(head.first_token_share));
  if (std::isfinite(head.sample_share)) {
    shares += fmt::format("; of the rest {} on sample {}, {} on token {} of sample {}", percent(head.sample_share),
                          head.heaviest_sample, percent(head.token_share), head.token_position, head.token_sample);
  }
  line("Fisher mass", fmt::format("{} (nat/element)^2: {}", number(head.fisher_mass, "{:.4g}"), shares));
  line("means", fmt::format("at most {} standard deviations from 0; move by {} between the halves of the text",
                            number(head.offset, "{:.2f}"), number(head.drift, "{:.3f}")));
  if (!head.codebook.empty()) {
    line("fit", fmt::format("{} different levels, {} unused; at most {} from the optimum; {} constant channels",
                            head.distinct < 0 ? "-" : std::to_string(head.distinct),
                            head.unused_codes < 0 ? "-" : std::to_string(head.unused_codes),
                            number(head.fit_gap_bound, "{:.1e}"),
                            head.constant_channels < 0 ? "-" : std::to_string(head.constant_channels)));
  }
  if (!head.flags.empty()) {
    text += paint(folded("warnings", fmt::format("{}", fmt::join(head.flags, ", ")), 14, style), Ink::yellow, style);
  }
  text += distribution_text(head, style);
  const ChannelReport& channels = head.channels;
  text += ranges_text(key ? "ranges before RoPE" : "ranges", channels.min, channels.max, style);
  text += widest_text(channels, style);
  if (key) text += ranges_text("ranges after RoPE", channels.rotated_min, channels.rotated_max, style);
  return text;
}

}  // namespace kvcc
