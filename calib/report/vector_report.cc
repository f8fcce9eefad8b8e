#include "calib/report/vector_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvcc {
namespace {

using nlohmann::ordered_json;

double at(const std::vector<float>& values, size_t i) {
  return i < values.size() ? values[i] : std::numeric_limits<double>::quiet_NaN();
}

ordered_json number_json(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }

std::string number(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "-";
}

}  // namespace

std::vector<VectorLayer> vector_layers(const Codebook& codebook) {
  std::vector<VectorLayer> all;
  for (size_t layer = 0; layer < codebook.layer_index.size(); ++layer) {
    for (const bool key : {true, false}) {
      const TensorCodebooks& tensor = key ? codebook.key : codebook.value;
      const size_t size = static_cast<size_t>(tensor.units) * tensor.coordinates;
      VectorLayer row;
      row.layer = codebook.layer_index[layer];
      row.kind = key ? "key" : "value";
      int bits = 0;
      for (size_t i = layer * size; i < (layer + 1) * size; ++i) {
        if (tensor.group_width[i] == 0) continue;
        ++row.groups;
        row.empty += tensor.group_bits[i] == 0;
        row.most_bits = std::max<int>(row.most_bits, tensor.group_bits[i]);
        bits += tensor.group_bits[i];
      }
      row.bits = static_cast<double>(bits) / static_cast<double>(size);
      row.predicted_fitted = at(tensor.stats.predicted_fitted, layer);
      row.predicted_held_out = at(tensor.stats.predicted_held_out, layer);
      all.push_back(row);
    }
  }
  return all;
}

ordered_json vector_json(const Codebook& codebook) {
  ordered_json document{{"code_bits", bits_query(codebook).code_bits}};
  double fitted = 0, held_out = 0;
  ordered_json layers = ordered_json::array();
  for (const VectorLayer& row : vector_layers(codebook)) {
    fitted += row.predicted_fitted;
    held_out += row.predicted_held_out;
    layers.push_back({{"layer", row.layer},
                      {"kind", row.kind},
                      {"bits", row.bits},
                      {"groups", row.groups},
                      {"empty_groups", row.empty},
                      {"most_bits", row.most_bits},
                      {"predicted_dnll_fitted", number_json(row.predicted_fitted)},
                      {"predicted_dnll_held_out", number_json(row.predicted_held_out)}});
  }
  document["predicted_dnll_fitted"] = number_json(fitted);
  document["predicted_dnll_held_out"] = number_json(held_out);
  document["layers"] = std::move(layers);
  return document;
}

ordered_json refinement_json(const Codebook& codebook) {
  const auto noted = codebook.extras.find("/refinement");
  if (noted == codebook.extras.end() || noted->second.dataset) return nullptr;
  // No reader needs it, so that no reader has checked it: what is of another type is left out.
  ordered_json document = ordered_json::object();
  for (const char* name : {"artifact_sha256", "dataset_name", "dataset_sha256", "windows", "held_out", "seqlen", "seed",
                           "rate", "steps", "transforms", "kl_before", "kl_after", "quantised_weights"}) {
    const auto found = noted->second.attributes.find(name);
    if (found == noted->second.attributes.end() || !found->second.shape.empty()) continue;
    const TreeValue& value = found->second;
    if (value.type == Element::text) document[name] = value.bytes;
    if (value.type == Element::i64) document[name] = array_of<int64_t>(value).at(0);
    if (value.type == Element::f64) document[name] = number_json(array_of<double>(value).at(0));
  }
  return document;
}

std::string refinement_text(const Codebook& codebook) {
  const ordered_json noted = refinement_json(codebook);
  if (noted.is_null()) return "";
  const auto word = [&](const char* name) {
    const auto found = noted.find(name);
    if (found == noted.end()) return std::string("-");
    return found->is_string() ? found->get<std::string>() : found->dump();
  };
  const auto loss = [&](const char* name) {
    const auto found = noted.find(name);
    return found != noted.end() && found->is_number() ? fmt::format("{:.5f}", found->get<double>()) : std::string("-");
  };
  return fmt::format("from {} by {} steps on {}: {} windows of {} tokens; KL on {} more {}, before {}",
                     word("artifact_sha256").substr(0, 12), word("steps"), word("dataset_name"), word("windows"),
                     word("seqlen"), word("held_out"), loss("kl_after"), loss("kl_before"));
}

std::vector<std::vector<std::string>> vector_rows(const Codebook& codebook) {
  std::vector<std::vector<std::string>> rows{{"layer", "key bits", "groups", "of 0 bits", "most", "held-out dNLL",
                                              "value bits", "groups", "of 0 bits", "most", "held-out dNLL"}};
  for (const VectorLayer& layer : vector_layers(codebook)) {
    const bool key = layer.kind[0] == 'k';
    if (key) rows.push_back({std::to_string(layer.layer)});
    std::vector<std::string>& row = rows.back();
    row.insert(row.end(), {number(layer.bits, "{:.2f}"), std::to_string(layer.groups), std::to_string(layer.empty),
                           std::to_string(layer.most_bits), number(layer.predicted_held_out, "{:.6f}")});
  }
  return rows;
}

}  // namespace kvcc
