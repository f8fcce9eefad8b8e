#include "calib/cli/fit_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "calib/cli/fit_vector.h"
#include "formats/cli/program.h"
#include "formats/core/effective_bits.h"

namespace kvcc::cli {
namespace {

using Json = nlohmann::ordered_json;

float greatest(const std::vector<float>& values) {
  return values.empty() ? 0.0f : *std::max_element(values.begin(), values.end());
}

double mean(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

uint32_t fewest_distinct(const Codebook& codebook) {
  uint32_t fewest = UINT32_MAX;
  for (const auto* tensor : {&codebook.key, &codebook.value}) {
    for (const uint32_t count : tensor->stats.distinct) fewest = std::min(fewest, count);
  }
  return fewest;
}

void add_vector_json(Json& row, const Codebook& book) {
  if (!book.scheme.is_vector()) return;
  for (const char* scalar : {"max_gap_bound", "min_distinct", "key_outlier_fraction", "value_outlier_fraction"}) {
    row.erase(scalar);  // of levels and outliers
  }
  const EffectiveBitsQuery query = bits_query(book);
  const Predicted predicted = cli::predicted(book);
  row["code_bits"] = query.code_bits;
  row["effective_bits"] = effective_bits(book.scheme, book.model.shape, query).total;
  row["held_out_samples"] = book.provenance.held_out;
  row["predicted_dnll_fitted"] = predicted.fitted;
  row["predicted_dnll_held_out"] = predicted.held_out;
}

}  // namespace

bool has_kmeans(const Scheme& s) { return s.key.grid == Grid::nuq || s.value.grid == Grid::nuq || s.is_vector(); }

float gap_bound(const Codebook& codebook) {
  return std::max(greatest(codebook.key.stats.fit_gap_bound), greatest(codebook.value.stats.fit_gap_bound));
}

std::string thin_heads(const Codebook& codebook) {
  std::vector<std::string> thin;
  const auto heads = static_cast<size_t>(codebook.model.shape.kv_heads);
  for (const bool key : {true, false}) {
    const std::vector<uint32_t>& reached = (key ? codebook.key : codebook.value).stats.reached;
    for (size_t i = 0; i < reached.size(); ++i) {
      if (!is_thin(reached[i], codebook.provenance.tokens)) continue;
      thin.push_back(fmt::format("layer {} {} head {} (at {} tokens)", codebook.layer_index[i / heads],
                                 key ? "key" : "value", i % heads, reached[i]));
    }
  }
  if (thin.empty()) return "";
  return fmt::format(
      "gradients reached {} of {} heads at fewer than 1 % of {} tokens: {}; without any they are fitted without "
      "weights. Calibrate on more or other text",
      thin.size(), 2 * codebook.layer_index.size() * heads, codebook.provenance.tokens, fmt::join(thin, ", "));
}

std::string explain_fit(const Scheme& s) {
  const auto grid = [](const TensorScheme& t) {
    const char* name = t.grid == Grid::nuq       ? "levels by exact weighted k-means"
                       : t.grid == Grid::integer ? "uniform levels"
                                                 : "levels of the normal density";
    return fmt::format("{} {}", 1 << t.bits, name);
  };
  const auto range = [&](const TensorScheme& t) {
    if (t.axis == Axis::token) {
      return s.sparse > 0 ? "each token's own range (fp16), its ends of both tails kept exactly"
                          : std::string("each token's own range (fp16)");
    }
    const std::string tokens = s.first_in_thresholds ? "all tokens" : "all tokens but the first of each sample";
    return s.sparse > 0
               ? fmt::format("each channel's quantiles {:g} and {:g} over {}; what lies outside is kept exactly",
                             s.sparse / 2, 1 - s.sparse / 2, tokens)
               : fmt::format("each channel's least and greatest value over {}", tokens);
  };
  if (!has_kmeans(s)) {
    return fmt::format(
        "{}\n  keys:     {}, in {}\n  values:   {}, in {}\n  exact at inference: the first {} and the last {} tokens "
        "(fp16)\n",
        to_string(s), grid(s.key), range(s.key), grid(s.value), range(s.value), s.sink, s.residual);
  }
  const char* weight = s.weight == FitWeight::none ? "none"
                       : s.weight == FitWeight::f  ? "squared gradient"
                                                   : "squared gradient times squared scale";
  return fmt::format(
      "{}\n  keys:     {}, in {}\n  values:   {}, in {}\n  k-means:  one codebook per {}; weight: {}; first token of "
      "each "
      "sample {}\n  exact at inference: the first {} and the last {} tokens (fp16)\n",
      to_string(s), grid(s.key), range(s.key), grid(s.value), range(s.value),
      s.codebook == CodebookScope::head ? "layer and head" : "layer", weight, s.first_in_kmeans ? "in" : "out", s.sink,
      s.residual);
}

Json fit_results_json(const std::vector<FitResult>& results) {
  Json list = Json::array();
  for (const FitResult& result : results) {
    const Codebook& book = result.codebook;
    list.push_back({{"scheme", short_name(book.scheme)},
                    {"scheme_text", to_string(book.scheme)},
                    {"output", result.output},
                    {"skipped", result.skipped},
                    {"content_sha256", book.content_sha256},
                    {"fit_seconds", result.seconds},
                    {"max_gap_bound", gap_bound(book)},
                    {"min_distinct", fewest_distinct(book)},
                    {"key_outlier_fraction", mean(book.key.outlier_fraction)},
                    {"value_outlier_fraction", mean(book.value.outlier_fraction)},
                    {"key_sqnr_db", mean(book.key.stats.sqnr_db)},
                    {"value_sqnr_db", mean(book.value.stats.sqnr_db)}});
    add_vector_json(list.back(), book);
  }
  return list;
}

std::string fit_table(const std::vector<FitResult>& results) {
  std::vector<std::vector<std::string>> rows{
      {"artifact", "fit s", "gap bound", "key outliers", "value outliers", "key dB", "value dB", "dNLL", "sha256"}};
  for (const FitResult& result : results) {
    const Codebook& book = result.codebook;
    // Vector codebooks have neither outliers nor a bound; dNLL is the prediction on the samples held out of their fit.
    const bool vector = book.scheme.is_vector();
    const double held_out = vector ? predicted(book).held_out : NAN;
    rows.push_back({result.output, result.skipped ? "kept" : fmt::format("{:.1f}", result.seconds),
                    vector ? "-" : fmt::format("{:.1e}", gap_bound(book)),
                    vector ? "-" : fmt::format("{:.2f}%", 100 * mean(book.key.outlier_fraction)),
                    vector ? "-" : fmt::format("{:.2f}%", 100 * mean(book.value.outlier_fraction)),
                    fmt::format("{:.1f}", mean(book.key.stats.sqnr_db)),
                    fmt::format("{:.1f}", mean(book.value.stats.sqnr_db)),
                    std::isnan(held_out) ? "-" : fmt::format("{:.4f}", held_out), book.content_sha256.substr(0, 12)});
  }
  return table(rows);
}

}  // namespace kvcc::cli
