#include "calib/report/weights_report.h"

#include <fmt/format.h>

#include "formats/core/error.h"
#include "formats/store/model_json.h"

namespace kvcc {
namespace {

using Json = nlohmann::ordered_json;
using Matrices = std::vector<QuantisedMatrix>;

struct Sums {
  WeightBits bits;
  double fisher_mass = 0, fisher_error = 0, squared_error = 0, squared_weight = 0;
  double exact_share() const { return static_cast<double>(bits.exact) / static_cast<double>(bits.weights); }
  double relative_error() const { return squared_weight > 0 ? squared_error / squared_weight : 0.0; }
};

Sums sums_of(const Matrices& matrices) {
  Sums sums;
  sums.bits = weight_bits(matrices);
  for (const QuantisedMatrix& m : matrices) {
    sums.fisher_mass += m.fisher_mass;
    sums.fisher_error += m.fisher_error;
    sums.squared_error += m.squared_error;
    sums.squared_weight += m.squared_weight;
  }
  return sums;
}

/// The matrices of each layer, ascending.
std::vector<Matrices> by_layer(const Matrices& matrices) {
  std::vector<Matrices> layers;
  for (const QuantisedMatrix& m : matrices) {
    if (layers.empty() || layers.back().front().layer != m.layer) layers.emplace_back();
    layers.back().push_back(m);
  }
  return layers;
}

std::vector<std::string> row(const std::string& name, const Matrices& matrices, double all_fisher_error) {
  const Sums sums = sums_of(matrices);
  return {name,
          std::to_string(sums.bits.weights),
          fmt::format("{:.3f}", sums.bits.total()),
          fmt::format("{:.3f}%", 100 * sums.exact_share()),
          fmt::format("{:.3e}", sums.relative_error()),
          fmt::format("{:.3e}", sums.fisher_error),
          fmt::format("{:.1f}%", all_fisher_error > 0 ? 100 * sums.fisher_error / all_fisher_error : 0.0)};
}

Json bits_json(const WeightBits& bits) {
  return {{"total", bits.total()}, {"codes", bits.codes}, {"levels", bits.levels}, {"sparse", bits.sparse}};
}

Json figures(Json json, const Matrices& matrices) {
  const Sums sums = sums_of(matrices);
  json["weights"] = sums.bits.weights;
  json["exact"] = sums.bits.exact;
  json["exact_share"] = sums.exact_share();
  json["effective_bits"] = bits_json(sums.bits);
  json["relative_error"] = sums.relative_error();
  json["fisher_mass"] = sums.fisher_mass;
  json["fisher_error"] = sums.fisher_error;
  return json;
}

}  // namespace

std::vector<std::vector<std::string>> weights_rows(const QuantisedWeights& weights, int layer) {
  const double all = sums_of(weights.matrices).fisher_error;
  std::vector<std::vector<std::string>> rows{
      {layer < 0 ? "layer" : "matrix", "weights", "bits", "exact", "relative error", "Fisher error", "share"}};
  for (const Matrices& matrices : by_layer(weights.matrices)) {
    if (layer < 0) rows.push_back(row(std::to_string(matrices.front().layer), matrices, all));
    if (layer != matrices.front().layer) continue;
    for (const QuantisedMatrix& m : matrices) rows.push_back(row(m.name, {m}, all));
  }
  if (rows.size() == 1) {
    throw Error(ErrorKind::usage, "--layer " + std::to_string(layer), "no quantised weights there",
                fmt::format("{} to {}", weights.matrices.front().layer, weights.matrices.back().layer));
  }
  if (layer < 0) rows.push_back(row("all", weights.matrices, all));
  return rows;
}

Json weights_json(const QuantisedWeights& weights) {
  Json json{{"kind", "weights"},
            {"format_version", weights.format_version},
            {"content_sha256", weights.content_sha256},
            {"name", weights.name()},
            {"bits", weights.bits},
            {"sparse", weights.sparse},
            {"sensitive", weights.sensitive},
            {"model", to_json(weights.model)},
            {"provenance", to_json(weights.provenance)}};
  json = figures(std::move(json), weights.matrices);
  json["layers"] = Json::array();
  for (const Matrices& matrices : by_layer(weights.matrices)) {
    Json layer = figures({{"layer", matrices.front().layer}}, matrices);
    for (const QuantisedMatrix& m : matrices) {
      layer["matrices"].push_back(figures({{"name", m.name}, {"shape", {m.rows, m.columns}}}, {m}));
    }
    json["layers"].push_back(std::move(layer));
  }
  return json;
}

}  // namespace kvcc
