#include "calib/report/text_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace kvcc {
namespace {

std::string number(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "-";
}

/// At most six columns.
std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  std::string text = fmt::format("{:.3g}", value);
  if (text.size() > 6) text = fmt::format("{:.1g}", value);
  return text;
}

/// Least and greatest of the layers' positive numbers, for bars.
struct Scale {
  double least = INFINITY, greatest = 0;
  void add(double value) {
    if (!(value > 0) || !std::isfinite(value)) return;
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  double linear(double value) const { return greatest > 0 ? value / greatest : 0; }
  /// By the logarithm: the least is a fifth of a bar.
  double logarithmic(double value) const {
    if (!(value > 0)) return 0;
    if (greatest <= least) return 1;
    return 0.2 + 0.8 * std::log(value / least) / std::log(greatest / least);
  }
};

struct KindScales {
  Scale reach, fisher, error;
};

/// Columns of one kind in a layer's line: widths by the room there is.
struct KindLayout {
  int reach = 5, fisher = 5, error = 5;  ///< of the bars
  bool numbers = false;                  ///< outliers, Fisher mass and error as numbers too
  bool errors = true;                    ///< error and decibel: artifacts; activations have none
};

void append_cell(std::string& line, const std::string& text, int columns, bool left = false) {
  line += padded(text, columns, left) + " ";
}

std::string kind_header(const KindLayout& layout) {
  std::string line;
  append_cell(line, "max|x|", 6, true);
  append_cell(line, "", layout.reach);
  if (layout.numbers) append_cell(line, "outl%", 5, true);
  if (layout.numbers) append_cell(line, "mass", 6, true);
  append_cell(line, "Fisher", std::max(6, layout.fisher));
  if (!layout.errors) return line;
  if (layout.numbers) append_cell(line, "wsse", 6, true);
  append_cell(line, "error", layout.error);
  append_cell(line, "dB", 4, true);
  return line;
}

std::string kind_cells(const KindSum& sum, const KindScales& scales, const KindLayout& layout, const TextStyle& style) {
  std::string line;
  const bool none = sum.heads == 0;
  append_cell(line, none ? "" : short_number(sum.reach), 6, true);
  line += paint(bar(scales.reach.linear(sum.reach), layout.reach, style), Ink::blue, style) + " ";
  if (layout.numbers) append_cell(line, none ? "" : number(100 * sum.outlier_fraction, "{:.2f}"), 5, true);
  if (layout.numbers) append_cell(line, none ? "" : short_number(sum.fisher_mass), 6, true);
  const int fisher = std::max(6, layout.fisher);
  line += paint(bar(scales.fisher.logarithmic(sum.fisher_mass), fisher, style), Ink::blue, style) + " ";
  if (!layout.errors) return line;
  if (layout.numbers) append_cell(line, none ? "" : short_number(sum.weighted_sse), 6, true);
  line += paint(bar(scales.error.logarithmic(sum.weighted_sse), layout.error, style), Ink::blue, style) + " ";
  append_cell(line, none ? "" : number(sum.sqnr_db, "{:.1f}"), 4, true);
  return line;
}

}  // namespace

std::string layers_text(const std::vector<HeadReport>& heads, const TextStyle& style) {
  const std::map<int, LayerSums> layers = layer_sums(heads);
  KindScales scales[2];
  bool errors = false;
  for (const auto& [layer, line] : layers) {
    for (const int kind : {0, 1}) {
      const KindSum& sum = line.kinds[kind];
      scales[kind].reach.add(sum.reach);
      scales[kind].fisher.add(sum.fisher_mass);
      scales[kind].error.add(sum.weighted_sse);
      errors = errors || (sum.heads > 0 && std::isfinite(sum.sqnr_db));
    }
  }
  KindLayout layout;
  layout.errors = errors;
  const auto width_of = [](const KindLayout& l) { return columns_of(kind_header(l)); };
  constexpr int kLayer = 6, kFlags = 8, kBetween = 2;
  const auto fits = [&](const KindLayout& l) { return kLayer + 2 * width_of(l) + kBetween + kFlags <= style.width; };
  KindLayout wider = layout;
  wider.numbers = true;
  if (fits(wider)) layout = wider;
  for (int turn = 0; turn < 24; ++turn) {
    wider = layout;
    ++(turn % 3 == 0 ? wider.reach : turn % 3 == 1 ? wider.error : wider.fisher);
    if (fits(wider)) layout = wider;
  }
  const int kind_width = width_of(layout);
  std::string text = paint(padded("", kLayer) + padded("keys", kind_width + kBetween) + "values", Ink::strong, style);
  text += "\n" +
          paint(padded("layer", kLayer) + kind_header(layout) + "  " + kind_header(layout) + "heads !", Ink::strong,
                style) +
          "\n";
  for (const auto& [layer, line] : layers) {
    std::string row = padded(fmt::format("{:>5}", layer), kLayer);
    row += kind_cells(line.kinds[0], scales[0], layout, style) + "  ";
    row += kind_cells(line.kinds[1], scales[1], layout, style);
    if (line.flagged > 0) row += paint(fmt::format("{:>7}", line.flagged), Ink::yellow, style);
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  text += folded("",
                 std::string("max|x|: greatest magnitude; Fisher: mass of squared gradients, log scale; ") +
                     (errors ? "error: sum of Fisher x squared error, log scale; dB: signal to error; " : "") +
                     (layout.numbers ? "outl%: stored exactly; " : "") + "heads !: heads with warnings",
                 0, style);
  return text;
}

std::string heads_text(const std::vector<HeadReport>& heads, const std::string& sort, const TextStyle& style) {
  // In order of need; flags come last in the table and take what room is left.
  static constexpr const char* kNeed[] = {"layer",
                                          "kind",
                                          "head",
                                          "bits",
                                          "range_min",
                                          "range_max",
                                          "sqnr_db",
                                          "weighted_sse",
                                          "fisher_mass",
                                          "flags",
                                          "outlier_fraction",
                                          "first_token_share",
                                          "drift",
                                          "token_share",
                                          "sample_share",
                                          "held_out_outliers",
                                          "offset",
                                          "unused_codes",
                                          "distinct",
                                          "reached",
                                          "constant_channels",
                                          "fit_gap_bound",
                                          "heaviest_sample",
                                          "token_sample",
                                          "token_position"};
  const std::string sorted = sort.starts_with('-') ? sort.substr(1) : sort;
  const auto width_of = [&](const HeadColumn& column) {
    int width = columns_of(column.name);
    for (const HeadReport& head : heads) width = std::max(width, columns_of(column.text(head)));
    return width;
  };
  std::map<std::string, int> shown;  // with width
  int used = 0;
  const auto take = [&](const std::string& name) {
    for (const HeadColumn& column : head_columns()) {
      if (name != column.name || shown.contains(name)) continue;
      const int width = width_of(column) + (shown.empty() ? 0 : 2);
      const bool must = name == sorted || name == "layer" || name == "kind" || name == "head";
      if (!must && used + width > style.width) continue;
      shown[name] = width_of(column);
      used += width;
    }
  };
  take(sorted);
  for (const char* name : kNeed) take(name);
  std::string text;
  const auto add_row = [&](const auto& cell, Ink ink) {
    std::string line;
    for (const HeadColumn& column : head_columns()) {
      const auto found = shown.find(column.name);
      if (found == shown.end()) continue;
      if (!line.empty()) line += "  ";
      line += padded(cell(column), found->second, std::string(column.name) != "flags");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += paint(line, ink, style) + "\n";
  };
  add_row([](const HeadColumn& column) { return std::string(column.name); }, Ink::strong);
  for (const HeadReport& head : heads) {
    add_row([&](const HeadColumn& column) { return column.text(head); }, Ink::plain);
  }
  if (shown.size() < head_columns().size()) {
    text +=
        folded("", "Not shown for want of room: some columns; --csv and --json have all, and so have wider terminals.",
               0, style);
  }
  return text;
}

std::string warnings_text(const std::vector<Warning>& warnings, const TextStyle& style) {
  std::string text;
  for (const Warning& warning : warnings) {
    const std::string place = warning.heads.empty() ? "" : " (" + warning.where + ")";
    text += paint(
        folded("warning", fmt::format("{}: {}{}; {}", warning.name, warning.cause, place, warning.cure), 9, style),
        Ink::yellow, style);
  }
  return text;
}

std::string heads_csv(const std::vector<HeadReport>& heads) {
  const auto list = [](const std::vector<float>& values) { return fmt::format("{}", fmt::join(values, " ")); };
  std::vector<std::string> names;
  for (const HeadColumn& column : head_columns()) names.emplace_back(column.name);
  for (const char* name : {"codebook", "histogram", "code_use"}) names.emplace_back(name);
  for (const ChannelColumn& column : channel_columns()) names.push_back(fmt::format("channels.{}", column.name));
  std::string text = fmt::format("{}\n", fmt::join(names, ","));
  for (const HeadReport& head : heads) {
    std::vector<std::string> cells;
    for (const HeadColumn& column : head_columns()) {
      const std::string name = column.name;
      if (name == "flags") {
        cells.push_back(fmt::format("{}", fmt::join(head.flags, " ")));
      } else if (column.value == nullptr || column.whole) {
        const std::string cell = column.text(head);
        cells.push_back(cell == "-" ? "" : cell);
      } else {
        const double value = column.value(head);
        cells.push_back(std::isfinite(value) ? fmt::format("{}", value) : "");
      }
    }
    for (const auto* values : {&head.codebook, &head.histogram, &head.code_use}) cells.push_back(list(*values));
    for (const ChannelColumn& column : channel_columns()) cells.push_back(list(head.channels.*column.values));
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

}  // namespace kvcc
