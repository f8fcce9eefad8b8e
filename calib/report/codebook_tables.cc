#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "calib/report/codebook_report.h"
#include "calib/report/vector_report.h"
#include "formats/core/effective_bits.h"
#include "formats/store/model_json.h"

namespace kvcc {
namespace {

using nlohmann::ordered_json;

ordered_json number_json(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }

ordered_json array_json(const std::vector<float>& values) {
  ordered_json list = ordered_json::array();
  for (const float value : values) list.push_back(number_json(value));
  return list;
}

ordered_json summary_json(const LayerSums& sums) {
  ordered_json document = ordered_json::object();
  for (const int kind : {0, 1}) {
    const KindSum& sum = sums.kinds[kind];
    if (sum.heads == 0) continue;
    document[kind == 0 ? "key" : "value"] = {{"reach", number_json(sum.reach)},
                                             {"outlier_fraction", number_json(sum.outlier_fraction)},
                                             {"fisher_mass", number_json(sum.fisher_mass)},
                                             {"weighted_sse", number_json(sum.weighted_sse)},
                                             {"sqnr_db", number_json(sum.sqnr_db)}};
  }
  document["flagged_heads"] = sums.flagged;
  return document;
}

ordered_json channels_json(const ChannelReport& channels) {
  ordered_json document = ordered_json::object();
  for (const ChannelColumn& column : channel_columns()) {
    const std::vector<float>& values = channels.*column.values;
    if (!values.empty()) document[column.name] = array_json(values);
  }
  return document;
}

ordered_json head_json(const HeadReport& head) {
  ordered_json document;
  document["head"] = head.head;
  document["bits"] = head.bits < 0 ? ordered_json() : ordered_json(head.bits);
  document["codebook"] = head.codebook;
  for (const HeadColumn& column : head_columns()) {
    const std::string name = column.name;
    if (column.value == nullptr || name == "layer" || name == "head" || name == "bits") continue;
    const double value = column.value(head);
    if (column.whole) {
      document[name] = value < 0 ? ordered_json() : ordered_json(static_cast<int64_t>(value));
    } else {
      document[name] = number_json(value);
    }
  }
  if (!head.histogram.empty()) document["histogram"] = array_json(head.histogram);
  if (!head.code_use.empty()) document["code_use"] = array_json(head.code_use);
  document["channels"] = channels_json(head.channels);
  document["flags"] = head.flags;
  return document;
}

ordered_json provenance_json(const Provenance& provenance) {
  ordered_json document = {{"tool_version", provenance.tool_version},
                           {"dataset", provenance.dataset_name},
                           {"dataset_sha256", provenance.dataset_sha256},
                           {"dataset_flavour", provenance.dataset_flavour},
                           {"tokenizer_sha256", provenance.tokenizer_sha256},
                           {"bos", provenance.bos},
                           {"samples", provenance.samples},
                           {"seqlen", provenance.seqlen},
                           {"seed", provenance.seed},
                           {"tokens", provenance.tokens},
                           {"samples_asked", std::max(provenance.samples, provenance.samples_asked)},
                           {"held_out", provenance.held_out},
                           {"quantised_weights", provenance.quantised_weights},
                           {"activations_sha256", provenance.activations_sha256},
                           {"date", provenance.date}};
  if (!provenance.sources_json.empty()) {
    document["sources"] = ordered_json::parse(provenance.sources_json, nullptr, false);
    if (document["sources"].is_discarded()) document.erase("sources");
  }
  return document;
}

}  // namespace

std::span<const ChannelColumn> channel_columns() {
  using C = ChannelReport;
  static constexpr ChannelColumn kAll[] = {
      {"min", "element", &C::min},
      {"max", "element", &C::max},
      {"mean", "element", &C::mean},
      {"deviation", "element", &C::deviation},
      {"fisher", "(nat/element)^2", &C::fisher},
      {"scale", "element", &C::scale},
      {"zero", "element", &C::zero},
      {"threshold_lower", "element", &C::threshold_lower},
      {"threshold_upper", "element", &C::threshold_upper},
      {"range_min", "element", &C::range_min},
      {"range_max", "element", &C::range_max},
      {"rotated_min", "element", &C::rotated_min},
      {"rotated_max", "element", &C::rotated_max},
  };
  return kAll;
}

std::map<int, LayerSums> layer_sums(const std::vector<HeadReport>& heads) {
  std::map<int, LayerSums> layers;
  for (const HeadReport& head : heads) {
    LayerSums& line = layers[head.layer];
    KindSum& sum = line.kinds[head.kind[0] == 'k' ? 0 : 1];
    const double reach = std::max(std::fabs(head.range_min), std::fabs(head.range_max));
    sum.reach = std::isnan(reach) ? reach : std::max(sum.reach, reach);
    sum.outlier_fraction += head.outlier_fraction;
    sum.fisher_mass += head.fisher_mass;
    sum.weighted_sse += head.weighted_sse;
    sum.sqnr_db += head.sqnr_db;
    ++sum.heads;
    line.flagged += head.flags.empty() ? 0 : 1;
  }
  for (auto& [layer, line] : layers) {
    for (KindSum& sum : line.kinds) {
      sum.outlier_fraction /= std::max(1, sum.heads);
      sum.sqnr_db /= std::max(1, sum.heads);
    }
  }
  return layers;
}

std::vector<ContextBits> context_bits(const Codebook& codebook) {
  std::vector<ContextBits> all;
  for (const int64_t context : {int64_t{2048}, int64_t{32768}, int64_t{131072}}) {
    all.push_back(
        {context, effective_bits(codebook.scheme, codebook.model.shape, bits_query(codebook, {.context = context}))});
  }
  return all;
}

ordered_json warnings_json(const ReportData& data) {
  ordered_json list = ordered_json::array();
  for (const Warning& warning : data.warnings) {
    ordered_json entry = {
        {"name", warning.name}, {"where", warning.where}, {"cause", warning.cause}, {"cure", warning.cure}};
    entry["heads"] = ordered_json::array();
    for (const size_t i : warning.heads) {
      const HeadReport& head = data.heads[i];
      entry["heads"].push_back({{"layer", head.layer}, {"kind", head.kind}, {"head", head.head}});
    }
    list.push_back(std::move(entry));
  }
  return list;
}

ordered_json layers_json(const std::vector<HeadReport>& heads) {
  // Rows may be sorted over layers; the document is by layer, and in the rows' order within it.
  const std::map<int, LayerSums> sums = layer_sums(heads);
  ordered_json layers = ordered_json::array();
  std::map<int, size_t> index;
  for (const HeadReport& head : heads) {
    if (!index.contains(head.layer)) {
      index[head.layer] = layers.size();
      layers.push_back({{"layer", head.layer},
                        {"summary", summary_json(sums.at(head.layer))},
                        {"key", ordered_json::array()},
                        {"value", ordered_json::array()}});
    }
    layers[index[head.layer]][head.kind].push_back(head_json(head));
  }
  return layers;
}

ordered_json codebook_json(const ReportData& data, const std::vector<HeadReport>& heads) {
  const Codebook& codebook = data.codebook;
  ordered_json document;
  document["kind"] = "codebook";
  document["format_version"] = codebook.format_version;
  document["content_sha256"] = codebook.content_sha256;
  document["model"] = to_json(codebook.model);
  document["scheme"] = to_string(codebook.scheme);
  document["scheme_name"] = short_name(codebook.scheme);
  document["nominal_bits"] = nominal_bits(codebook.scheme);
  for (const ContextBits& at : context_bits(codebook)) {
    document["effective_bits"].push_back(
        {{"context", at.context}, {"total", at.bits.total}, {"constant_bytes", at.bits.constant_bytes}});
  }
  document["provenance"] = provenance_json(codebook.provenance);
  if (codebook.scheme.is_vector()) document["vector"] = vector_json(codebook);
  if (ordered_json refined = refinement_json(codebook); !refined.is_null()) document["refinement"] = std::move(refined);
  document["warnings"] = warnings_json(data);
  document["histogram_edges"] = {normalised_edge(0), normalised_edge(kNormalisedBins)};
  document["layers"] = layers_json(heads);
  return document;
}

}  // namespace kvcc
