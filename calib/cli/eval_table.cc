#include "calib/cli/eval_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "formats/cli/program.h"

namespace kvcc::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A NaN (no standard error of one window) is null in JSON.
Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

Json numbers(const std::vector<double>& x) {
  Json array = Json::array();
  for (const double v : x) array.push_back(number(v));
  return array;
}

void put(Json& row, const std::string& name, const Estimate& estimate) {
  row[name] = number(estimate.value);
  row[name + "_se"] = number(estimate.error);
}

EffectiveBits bits_of(const EvalTable& table, const EvalSubject* subject, int64_t context) {
  EffectiveBitsQuery query = table.bits;
  query.context = context;
  if (subject == nullptr) return effective_bits(parse_scheme("fp"), table.shape, query);
  if (subject->codebook) query = bits_query(*subject->codebook, query);
  return effective_bits(subject->scheme, table.shape, query);
}

/// [L][heads] of one vector.
Json by_layer(const std::vector<double>& x, int heads) {
  Json array = Json::array();
  for (auto row = x.begin(); row != x.end(); row += heads) array.push_back(numbers({row, row + heads}));
  return array;
}

Json key_error(const KeyErrors& errors) {
  Json json{{"worst_percent", kWorstPercents}};
  Json shares = Json::array(), layers = Json::array();
  for (size_t k = 0; k < kWorstPercents.size(); ++k) shares.push_back(number(errors.magnitude_share(k)));
  const auto count = static_cast<int64_t>(errors.total.size() / kWorstPercents.size());
  for (int64_t l = 0; l < count; ++l) {
    Json layer = Json::array();
    for (size_t k = 0; k < kWorstPercents.size(); ++k) layer.push_back(number(errors.magnitude_share(l, k)));
    layers.push_back(layer);
  }
  json["magnitude_share"] = shares;
  json["magnitude_share_by_layer"] = layers;
  return json;
}

Json attention_error(const AttentionErrors& errors, const EvalReport& report, int heads) {
  std::vector<double> relative;
  for (size_t i = 0; i < errors.still_power.size(); ++i) {
    relative.push_back(std::sqrt(errors.still_power[i] / errors.output_power[i]));
  }
  return {{"queries", report.queries},
          {"layers", report.layers},
          {"static", errors.still_by_query},
          {"accumulated", errors.grown_by_query},
          {"kl_by_layer", by_layer(errors.still_kl, heads)},
          {"static_by_layer", by_layer(errors.still_error, heads)},
          {"relative_by_layer", by_layer(relative, heads)},
          {"accumulated_by_layer", by_layer(errors.grown_error, heads)}};
}

Json mode_json(Json row, const ModeOptions& mode) {
  row["mode"] = mode_name(mode.mode);
  if (mode.mode == EvalMode::pseudo_decode) row["block"] = mode.block;
  if (mode.mode == EvalMode::prefill_exact) row["prompt"] = mode.prompt;
  return row;
}

Json measures(Json row, const EvalTable& table, const EvalReport& report, const EvalResult& result) {
  put(row, "dnll", result.dnll);
  put(row, "kl", result.kl);
  put(row, "kl_median", result.kl_median);
  put(row, "kl_p90", result.kl_p90);
  put(row, "kl_p99", result.kl_p99);
  put(row, "kl_p999", result.kl_p999);
  row["top1_agreement"] = number(result.top1.value);
  row["top1_agreement_se"] = number(result.top1.error);
  row["key_outlier_fraction"] = number(result.key_outlier_fraction);
  if (!result.key_errors.total.empty()) row["key_error"] = key_error(result.key_errors);
  if (table.options.eviction) {
    row["eviction"] = eviction_name(*table.options.eviction);
    row["kept"] = result.kept;
  }
  row["positions"] = {{"begin", report.bins}, {"kl", numbers(result.bin_kl)}, {"dnll", numbers(result.bin_dnll)}};
  for (const RepairedKl& repair : result.repairs) {
    row["repair"].push_back(
        {{"percent", repair.percent}, {"kl_worst_exact", repair.worst_exact}, {"kl_rest_exact", repair.rest_exact}});
  }
  if (result.attention.windows > 0) {
    row["attention"] = attention_error(result.attention, report, table.shape.query_heads);
  }
  return row;
}

Json row_json(const EvalTable& table, const EvalReport& report, const EvalResult& result, const EvalSubject* subject) {
  Json row{{"scheme", subject != nullptr ? subject->name : "fp"}};
  if (subject != nullptr && subject->codebook) {
    row["codebook"] = subject->path;
    row["content_sha256"] = subject->codebook->content_sha256;
    row["artifact_bytes"] = std::filesystem::file_size(subject->path);
  }
  if (subject != nullptr && table.options.weights != nullptr) row["weights"] = table.options.weights->name();
  if (subject != nullptr) {
    row["needs_calibration"] = subject->scheme.needs_calibration();
    row = mode_json(std::move(row), result.mode);
    row["sink"] = subject->scheme.sink;
    row["tail"] = subject->scheme.residual;
  }
  row["nominal_bits"] = subject != nullptr ? nominal_bits(subject->scheme) : 16.0;
  const EffectiveBits effective = bits_of(table, subject, table.bits.context);
  row["effective_bits"] = effective.total;
  for (const int64_t context : kContexts) {
    row["effective_bits_at"][std::to_string(context)] = bits_of(table, subject, context).total;
  }
  row["constant_bytes"] = effective.constant_bytes;
  row["nll"] = number(result.nll);
  row["perplexity"] = number(result.perplexity);
  if (subject != nullptr) row = measures(std::move(row), table, report, result);
  row["window_nll"] = result.window_nll;
  row["seconds"] = result.seconds;
  return row;
}

std::string plain(double x, int digits) { return std::isfinite(x) ? fmt::format("{:.{}f}", x, digits) : "-"; }

std::string with_error(const Estimate& x, int digits) {
  const std::string value = plain(x.value, digits);
  return std::isfinite(x.error) ? fmt::format("{} ±{:.{}f}", value, x.error, digits) : value;
}

}  // namespace

Json weights_json(const QuantisedWeights& weights, const std::string& path) {
  const WeightBits bits = weight_bits(weights.matrices);
  return {{"path", path},
          {"name", weights.name()},
          {"content_sha256", weights.content_sha256},
          {"bits", weights.bits},
          {"effective_bits", bits.total()},
          {"exact_share", static_cast<double>(bits.exact) / static_cast<double>(bits.weights)}};
}

int64_t EvalText::longest() const {
  size_t most = 0;
  for (const std::vector<int32_t>& window : windows) most = std::max(most, window.size());
  return static_cast<int64_t>(most);
}

bool EvalText::has_one_length() const {
  return std::all_of(windows.begin(), windows.end(),
                     [&](const std::vector<int32_t>& window) { return window.size() == windows[0].size(); });
}

Json eval_json(const EvalTable& table, const EvalText& text, const EvalReport& report) {
  Json document{{"model", table.model},
                {"dataset", {{"name", text.name}, {"sha256", text.sha256}, {"tokens", text.tokens}}},
                {"windows", text.windows.size()},
                {"seqlen", text.longest()},
                {"effective_bits_context", table.bits.context},
                {"effective_bits_amortise", table.bits.amortise},
                {"exact_tokens", table.same_exact_tokens ? "the same for all" : "as each scheme says"}};
  if (const QuantisedWeights* weights = table.options.weights) {
    document["weights"] = weights_json(*weights, table.weights_path);
  }
  if (!text.parts.is_null()) document["dataset"]["parts"] = text.parts;
  if (!text.has_one_length()) {
    for (const std::vector<int32_t>& window : text.windows) document["window_tokens"].push_back(window.size());
  }
  document["results"] = Json::array({row_json(table, report, report.full, nullptr)});
  for (const EvalResult& result : report.results) {
    document["results"].push_back(row_json(table, report, result, &table.subjects[result.subject]));
  }
  return document;
}

std::string eval_table(const EvalTable& table, const EvalReport& report) {
  const size_t modes = table.options.modes.size();
  std::vector<std::vector<std::string>> rows{{"scheme", "fit", "bits", "at 2K", "at 32K", "at 128K", "exact"}};
  for (const ModeOptions& mode : table.options.modes) {
    rows[0].push_back(modes == 1 && mode.mode == EvalMode::full ? "perplexity"
                                                                : std::string("ppl ") + mode_name(mode.mode));
  }
  rows[0].insert(rows[0].end(), {"dNLL", "KL", "top-1", "E_M 1%", "s"});
  const auto begin = [&](const EvalSubject* subject, const std::string& name, const std::string& exact) {
    std::vector<std::string> row{name, subject != nullptr && subject->scheme.needs_calibration() ? "yes" : "no",
                                 fmt::format("{:g}", subject != nullptr ? nominal_bits(subject->scheme) : 16.0)};
    for (const int64_t context : kContexts) {
      row.push_back(fmt::format("{:.3f}", bits_of(table, subject, context).total));
    }
    row.push_back(exact);
    return row;
  };
  rows.push_back(begin(nullptr, "fp", "-"));
  for (size_t m = 0; m < modes; ++m) rows.back().push_back(fmt::format("{:.4f}", report.full.perplexity));
  rows.back().insert(rows.back().end(), {"", "", "", "", fmt::format("{:.1f}", report.full.seconds)});
  for (size_t i = 0; i < table.subjects.size(); ++i) {
    const EvalSubject& subject = table.subjects[i];
    const std::string name =
        table.options.weights != nullptr ? table.options.weights->name() + " + " + subject.name : subject.name;
    rows.push_back(begin(&subject, name, fmt::format("{}+{}", subject.scheme.sink, subject.scheme.residual)));
    double seconds = 0;
    for (size_t m = 0; m < modes; ++m) {
      const EvalResult& result = report.results[i * modes + m];
      rows.back().push_back(fmt::format("{:.4f}", result.perplexity));
      seconds += result.seconds;
    }
    const EvalResult& r = report.results[i * modes];
    rows.back().insert(rows.back().end(), {with_error(r.dnll, 5), with_error(r.kl, 5), with_error(r.top1, 4),
                                           plain(r.key_errors.magnitude_share(1), 3), fmt::format("{:.1f}", seconds)});
  }
  std::string text = kvcc::cli::table(rows);
  if (const QuantisedWeights* weights = table.options.weights) {
    text += fmt::format("weights {}: {}, {:.3f} bits a quantised weight\n", weights->name(), table.weights_path,
                        weight_bits(weights->matrices).total());
  }
  return text;
}

}  // namespace kvcc::cli
