#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "calib/report/codebook_report.h"
#include "formats/core/effective_bits.h"
#include "formats/store/model_json.h"

namespace kvcc {
namespace {

using nlohmann::ordered_json;

ordered_json head_json(const HeadReport& head) {
  ordered_json document;
  document["head"] = head.head;
  document["bits"] = head.bits;
  document["codebook"] = head.codebook;
  for (const HeadColumn& column : head_columns()) {
    const std::string name = column.name;
    if (column.value == nullptr || name == "layer" || name == "head" || name == "bits") continue;
    const double value = column.value(head);
    // Counts are whole numbers; NaN (no such statistic) and infinity become null.
    if (name == "distinct" || name == "reached" || name == "constant_channels") {
      document[name] = value < 0 ? ordered_json() : ordered_json(static_cast<int64_t>(value));
    } else {
      document[name] = std::isfinite(value) ? ordered_json(value) : ordered_json();
    }
  }
  document["flags"] = head.flags;
  return document;
}

ordered_json provenance_json(const Provenance& provenance) {
  return {{"tool_version", provenance.tool_version},
          {"dataset", provenance.dataset_name},
          {"dataset_sha256", provenance.dataset_sha256},
          {"dataset_flavour", provenance.dataset_flavour},
          {"tokenizer_sha256", provenance.tokenizer_sha256},
          {"bos", provenance.bos},
          {"samples", provenance.samples},
          {"seqlen", provenance.seqlen},
          {"seed", provenance.seed},
          {"tokens", provenance.tokens},
          {"activations_sha256", provenance.activations_sha256},
          {"date", provenance.date}};
}

ordered_json effective_bits_json(const Codebook& codebook) {
  ordered_json document = ordered_json::array();
  for (const int64_t context : {int64_t{2048}, int64_t{32768}, int64_t{131072}}) {
    const EffectiveBits bits = effective_bits(
        codebook.scheme, codebook.model.shape,
        {.context = context, .key_outlier_fraction = mean_outlier_fraction(codebook.key.outlier_fraction)});
    document.push_back({{"context", context}, {"total", bits.total}, {"constant_bytes", bits.constant_bytes}});
  }
  return document;
}

}  // namespace

std::vector<std::vector<std::string>> head_table(const std::vector<HeadReport>& heads) {
  std::vector<std::vector<std::string>> rows(1);
  for (const HeadColumn& column : head_columns()) rows[0].emplace_back(column.name);
  for (const HeadReport& head : heads) {
    std::vector<std::string> row;
    for (const HeadColumn& column : head_columns()) row.push_back(column.text(head));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::vector<std::string>> layer_table(const std::vector<HeadReport>& heads) {
  std::vector<std::vector<std::string>> rows = {{"layer", "key bits", "key min", "key max", "key outl.", "key wsse",
                                                 "key dB", "val bits", "val min", "val max", "val outl.", "val wsse",
                                                 "val dB", "flags"}};
  std::map<int, std::map<std::string, std::vector<const HeadReport*>>> layers;
  for (const HeadReport& head : heads) layers[head.layer][head.kind].push_back(&head);
  for (const auto& [layer, kinds] : layers) {
    std::vector<std::string> row = {std::to_string(layer)};
    std::set<std::string> flags;
    for (const char* kind : {"key", "value"}) {
      const auto found = kinds.find(kind);
      if (found == kinds.end()) {
        row.insert(row.end(), 6, "-");
        continue;
      }
      double bits = 0, low = INFINITY, high = -INFINITY, outliers = 0, sse = 0, decibel = 0;
      for (const HeadReport* head : found->second) {
        bits += head->bits;
        low = std::min(low, head->range_min);
        high = std::max(high, head->range_max);
        outliers += head->outlier_fraction;
        sse += head->weighted_sse;
        decibel += head->sqnr_db;
        for (const std::string& flag : head->flags) flags.insert(std::string(kind) + ":" + flag);
      }
      const auto count = static_cast<double>(found->second.size());
      const auto text = [](double value, const char* format) {
        return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : std::string("-");
      };
      row.push_back(text(bits / count, "{:.3g}"));
      row.push_back(text(low, "{:.4g}"));
      row.push_back(text(high, "{:.4g}"));
      row.push_back(text(outliers / count, "{:.4f}"));
      row.push_back(text(sse, "{:.4g}"));
      row.push_back(text(decibel / count, "{:.2f}"));
    }
    row.push_back(fmt::format("{}", fmt::join(flags, " ")));
    rows.push_back(std::move(row));
  }
  return rows;
}

ordered_json codebook_json(const Codebook& codebook, const std::vector<HeadReport>& heads) {
  ordered_json document;
  document["kind"] = "codebook";
  document["format_version"] = codebook.format_version;
  document["content_sha256"] = codebook.content_sha256;
  document["model"] = to_json(codebook.model);
  document["scheme"] = to_string(codebook.scheme);
  document["scheme_name"] = short_name(codebook.scheme);
  document["nominal_bits"] = nominal_bits(codebook.scheme);
  document["effective_bits"] = effective_bits_json(codebook);
  document["provenance"] = provenance_json(codebook.provenance);
  // Rows may be sorted over layers; the document is by layer, and in the rows' order within it.
  ordered_json layers = ordered_json::array();
  std::map<int, size_t> index;
  for (const HeadReport& head : heads) {
    if (!index.contains(head.layer)) {
      index[head.layer] = layers.size();
      layers.push_back({{"layer", head.layer}, {"key", ordered_json::array()}, {"value", ordered_json::array()}});
    }
    layers[index[head.layer]][head.kind].push_back(head_json(head));
  }
  document["layers"] = std::move(layers);
  return document;
}

}  // namespace kvcc
