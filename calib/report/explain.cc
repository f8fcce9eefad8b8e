#include "calib/report/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/core/error.h"

namespace kvcc {
namespace {

using nlohmann::ordered_json;

constexpr double kUsualSparse = 0.01;

struct Levels {
  const char *name, *codebook;
  Grid grid;
  FitWeight weight;
  CodebookScope scope;
};

/// From the simplest to the best; `fisher` is the scheme's weight, or the default where it has none.
std::vector<Levels> all_levels(FitWeight fisher) {
  using S = CodebookScope;
  return {{"int", "", Grid::integer, FitWeight::none, S::head},
          {"nf", "", Grid::normal_float, FitWeight::none, S::head},
          {"k-means", "layer", Grid::nuq, FitWeight::none, S::layer},
          {"k-means", "head", Grid::nuq, FitWeight::none, S::head},
          {"k-means Fisher", "layer", Grid::nuq, fisher, S::layer},
          {"k-means Fisher", "head", Grid::nuq, fisher, S::head}};
}

bool is_defined(Grid grid, int bits) {
  if (grid != Grid::normal_float) return true;
  try {
    normal_float_levels(bits);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void add_candidates(const Scheme& scheme, bool key, std::vector<Candidate>& out) {
  const TensorScheme& tensor = key ? scheme.key : scheme.value;
  const FitWeight fisher = scheme.weight == FitWeight::none ? FitWeight::fs2 : scheme.weight;
  const double sparse = scheme.sparse > 0 ? scheme.sparse : kUsualSparse;
  for (const Levels& levels : all_levels(fisher)) {
    if (!is_defined(levels.grid, tensor.bits)) continue;
    for (const bool outliers : {false, true}) {
      Candidate candidate{key ? "key" : "value", levels.name, levels.codebook, outliers, false, scheme, 0, 0, 0};
      Scheme& own = candidate.scheme;
      own.sparse = outliers ? sparse : 0;
      own.codebook = levels.scope;
      own.weight = levels.grid == Grid::nuq ? levels.weight : scheme.weight;
      (key ? own.key : own.value).grid = levels.grid;
      (key ? own.value : own.key) = TensorScheme{};
      const bool same_levels =
          levels.grid == tensor.grid &&
          (levels.grid != Grid::nuq || (own.weight == scheme.weight && own.codebook == scheme.codebook));
      candidate.chosen = same_levels && own.sparse == scheme.sparse;
      out.push_back(std::move(candidate));
    }
  }
}

double chosen_error(const std::vector<Candidate>& candidates, const char* kind) {
  for (const Candidate& candidate : candidates) {
    if (candidate.chosen && candidate.kind[0] == kind[0]) return candidate.weighted_sse;
  }
  return 0;
}

}  // namespace

std::vector<Candidate> explain_head(const LayerActivations& activations, const Scheme& scheme, int head,
                                    const std::string& kind, int threads) {
  if (head < 0 || head >= activations.heads) {
    throw Error(ErrorKind::usage, fmt::format("--head {}", head), "not in the activations",
                fmt::format("0 to {}", activations.heads - 1));
  }
  std::vector<Candidate> candidates;
  for (const bool key : {true, false}) {
    if (!kind.empty() && kind != (key ? "key" : "value")) continue;
    const TensorScheme& tensor = key ? scheme.key : scheme.value;
    const bool hidden = key && tensor.site == Site::post_rope;
    if (tensor.grid != Grid::full && !hidden) {
      add_candidates(scheme, key, candidates);
      continue;
    }
    if (kind.empty()) continue;
    throw Error(ErrorKind::usage, "--kind " + kind,
                hidden ? "the scheme takes keys after RoPE" : "the scheme does not quantise it",
                hidden ? "keys before RoPE, which activations hold" : "a kind that it quantises");
  }
  if (candidates.empty()) {
    throw Error(ErrorKind::usage, "scheme '" + to_string(scheme) + "'", "nothing that activations can explain",
                "keys before RoPE or values that it quantises");
  }
  std::vector<Scheme> schemes;
  for (const Candidate& candidate : candidates) schemes.push_back(candidate.scheme);
  const std::vector<LayerFit> fits = fit_layer(activations, schemes, threads);
  for (size_t i = 0; i < candidates.size(); ++i) {
    const TensorFit& fit = candidates[i].kind[0] == 'k' ? fits[i].key : fits[i].value;
    const auto at = static_cast<size_t>(head);
    candidates[i].weighted_sse = fit.weighted_sse[at];
    candidates[i].sqnr_db = fit.sqnr_db[at];
    candidates[i].outlier_fraction = fit.outlier_fraction[at];
  }
  return candidates;
}

std::string explain_text(const std::vector<Candidate>& candidates, const TextStyle& style) {
  std::string text;
  for (const char* kind : {"key", "value"}) {
    double greatest = 0;
    for (const Candidate& candidate : candidates) {
      if (candidate.kind[0] == kind[0]) greatest = std::max(greatest, candidate.weighted_sse);
    }
    const double chosen = chosen_error(candidates, kind);
    bool first = true;
    for (const Candidate& candidate : candidates) {
      if (candidate.kind[0] != kind[0]) continue;
      if (first) {
        text += paint(fmt::format("{:<5}  {:<14}  {:<8}  {:>8}  {:>9}  {:>6}  {:>6}", kind, "levels", "codebook",
                                  "outliers", "error", "times", "dB"),
                      Ink::strong, style) +
                "\n";
        first = false;
      }
      const std::string outliers =
          candidate.outliers ? fmt::format("{:.2f} %", 100 * candidate.outlier_fraction) : std::string("-");
      std::string line = fmt::format(
          "{:<5}  {:<14}  {:<8}  {:>8}  {:>9.3g}  {:>6}  {:>6.2f}  ", candidate.chosen ? "  *" : "", candidate.levels,
          candidate.codebook[0] == '\0' ? "-" : candidate.codebook, outliers, candidate.weighted_sse,
          chosen > 0 ? fmt::format("{:.3g}", candidate.weighted_sse / chosen) : "-", candidate.sqnr_db);
      const int room = std::clamp(style.width - columns_of(line), 0, 30);
      line += paint(bar(greatest > 0 ? candidate.weighted_sse / greatest : 0, room, style), Ink::blue, style);
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
  }
  return text +
         folded("",
                "error: sum of Fisher x squared error (nat^2); times: over that of the scheme, marked *; outliers: "
                "share stored exactly",
                0, style);
}

ordered_json explain_json(const std::vector<Candidate>& candidates) {
  ordered_json list = ordered_json::array();
  for (const Candidate& candidate : candidates) {
    const double chosen = chosen_error(candidates, candidate.kind);
    ordered_json entry;
    entry["kind"] = candidate.kind;
    entry["levels"] = candidate.levels;
    entry["codebook"] = candidate.codebook[0] == '\0' ? ordered_json() : ordered_json(candidate.codebook);
    entry["outliers"] = candidate.outliers;
    entry["outlier_fraction"] = candidate.outlier_fraction;
    entry["scheme"] = to_string(candidate.scheme);
    entry["weighted_sse"] = candidate.weighted_sse;
    entry["times_chosen"] = chosen > 0 ? ordered_json(candidate.weighted_sse / chosen) : ordered_json();
    entry["sqnr_db"] = candidate.sqnr_db;
    entry["chosen"] = candidate.chosen;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace kvcc
