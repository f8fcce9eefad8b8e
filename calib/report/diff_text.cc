#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "calib/report/codebook_diff.h"

namespace kvcc {
namespace {

using nlohmann::ordered_json;

/// Mean and greatest distance of one kind's heads.
struct KindDistance {
  double mean = 0, greatest = 0;
  int heads = 0, different = 0, incomparable = 0;
};

KindDistance kind_distance(const std::vector<HeadDifference>& heads, char kind) {
  KindDistance out;
  for (const HeadDifference& head : heads) {
    if (head.kind[0] != kind) continue;
    if (std::isnan(head.distance)) {
      ++out.incomparable;
      continue;
    }
    ++out.heads;
    out.different += head.distance > 0;
    out.mean += head.distance;
    out.greatest = std::max(out.greatest, head.distance);
  }
  out.mean /= std::max(1, out.heads);
  return out;
}

std::string shortened(const std::string& text) { return text.size() > 40 ? text.substr(0, 37) + "..." : text; }
std::string shown(const std::string& text) { return text.empty() ? "(none)" : shortened(text); }
ordered_json number_json(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }

}  // namespace

std::string diff_text(const CodebookDifference& difference, int top, const TextStyle& style) {
  if (difference.equal) return "equal\n";
  std::string text = difference.same_decoding
                         ? "differ, but decode the same: only provenance, names or statistics changed\n"
                         : "differ\n";
  for (const ValueDifference& value : difference.values) {
    text +=
        folded("", printable(fmt::format("{}: {} -> {}", value.name, shown(value.a), shown(value.b)), style), 0, style);
  }
  for (const DatasetDifference& dataset : difference.datasets) {
    text += folded("", fmt::format("{}: {}", dataset.path, dataset.what), 0, style);
  }
  if (!difference.no_heads.empty()) return text + folded("", "no distances: " + difference.no_heads, 0, style);
  text += "\n";
  for (const char* kind : {"key", "value"}) {
    const KindDistance sum = kind_distance(difference.heads, kind[0]);
    if (sum.incomparable > 0) {
      text += folded("", fmt::format("{}s: scaled per channel in one and per token in the other, no distance", kind), 0,
                     style);
      continue;
    }
    text += folded("",
                   fmt::format("{}s: {} of {} heads differ, distance {:.3g} on average, at most {:.3g}", kind,
                               sum.different, sum.heads, sum.mean, sum.greatest),
                   0, style);
  }
  std::vector<HeadDifference> heads = difference.heads;
  std::erase_if(heads, [](const HeadDifference& head) { return !(head.distance > 0); });
  std::stable_sort(heads.begin(), heads.end(), [](const auto& a, const auto& b) { return a.distance > b.distance; });
  if (top > 0 && heads.size() > static_cast<size_t>(top)) heads.resize(static_cast<size_t>(top));
  if (heads.empty()) return text;
  const double greatest = std::isfinite(heads.front().distance) ? heads.front().distance : 1;
  text += "\n" + paint("layer  kind   head  distance", Ink::strong, style) + "\n";
  for (const HeadDifference& head : heads) {
    std::string line = fmt::format("{:>5}  {:<5}  {:>4}  {:>8.3g}  ", head.layer, head.kind, head.head, head.distance);
    line += paint(bar(head.distance / greatest, std::min(style.width - columns_of(line), 40), style), Ink::blue, style);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text +
         folded("",
                "distance: of what the two decode, in units of the error that quantising costs; 1.41: as far apart "
                "as two unrelated quantisers of that error",
                0, style);
}

ordered_json diff_json(const CodebookDifference& difference) {
  ordered_json document;
  document["equal"] = difference.equal;
  document["same_decoding"] = difference.same_decoding;
  document["values"] = ordered_json::array();
  for (const ValueDifference& value : difference.values) {
    document["values"].push_back({{"name", value.name}, {"a", value.a}, {"b", value.b}});
  }
  document["datasets"] = ordered_json::array();
  for (const DatasetDifference& dataset : difference.datasets) {
    document["datasets"].push_back({{"path", dataset.path}, {"what", dataset.what}, {"needed", dataset.needed}});
  }
  document["no_heads"] = difference.no_heads;
  for (const char* kind : {"key", "value"}) {
    const KindDistance sum = kind_distance(difference.heads, kind[0]);
    document[kind] = {{"heads", sum.heads},
                      {"different", sum.different},
                      {"incomparable", sum.incomparable},
                      {"mean_distance", number_json(sum.mean)},
                      {"max_distance", number_json(sum.greatest)}};
  }
  document["heads"] = ordered_json::array();
  for (const HeadDifference& head : difference.heads) {
    document["heads"].push_back(
        {{"layer", head.layer}, {"kind", head.kind}, {"head", head.head}, {"distance", number_json(head.distance)}});
  }
  return document;
}

}  // namespace kvcc
