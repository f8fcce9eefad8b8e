#include <cmath>
#include <functional>
#include <map>
#include <sstream>

#include "calib/report/codebook_report.h"
#include "calib/report/html_assets.h"
#include "calib/report/html_page.h"
#include "calib/report/html_report.h"
#include "calib/report/vector_report.h"

namespace kvcc {
namespace {

using nlohmann::ordered_json;

/// What formats/spec/statistics.md says about each name: the last cell of the first row that begins with it.
std::map<std::string, std::string> meanings() {
  std::map<std::string, std::string> out;
  std::istringstream page{std::string(html_asset("statistics.md"))};
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `") || !line.ends_with(" |")) continue;
    const std::string name = line.substr(3, line.find('`', 3) - 3);
    const size_t cell = line.rfind(" | ") + 3;
    out.try_emplace(name, line.substr(cell, line.size() - 2 - cell));
  }
  return out;
}

ordered_json head_json(const HeadReport& head) {
  ordered_json out = {{"layer", head.layer}, {"kind", head.kind}, {"head", head.head}, {"codebook", head.codebook}};
  for (const HeadColumn& column : head_columns()) {
    if (column.value == nullptr || out.contains(column.name)) continue;
    const double value = column.value(head);
    const bool known = std::isfinite(value) && !(column.whole && value < 0);
    out[column.name] = known ? ordered_json(value) : ordered_json();
  }
  return out;
}

/// One array over all heads of a kind, in base64; null unless each head has it.
ordered_json joined(const std::vector<const HeadReport*>& heads,
                    const std::function<const std::vector<float>&(const HeadReport&)>& of) {
  std::vector<float> all;
  for (const HeadReport* head : heads) {
    const std::vector<float>& values = of(*head);
    if (values.empty()) return nullptr;
    all.insert(all.end(), values.begin(), values.end());
  }
  return html_floats(all);
}

ordered_json tensor_json(const std::vector<const HeadReport*>& heads, int dim, int codes, bool bounds) {
  ordered_json out = {{"dim", dim}, {"codes", codes}, {"bounds", bounds}};
  out["heads"] = ordered_json::array();
  for (const HeadReport* head : heads) out["heads"].push_back(head_json(*head));
  out["channels"] = out["post_rope"] = ordered_json::object();
  const auto add = [&](const char* group, const char* name, std::vector<float> ChannelReport::*values) {
    ordered_json array =
        joined(heads, [&](const HeadReport& head) -> const std::vector<float>& { return head.channels.*values; });
    if (!array.is_null()) out[group][name] = std::move(array);
  };
  using C = ChannelReport;
  add("channels", "min", &C::min);
  add("channels", "max", &C::max);
  add("channels", "mean", &C::mean);
  add("channels", "deviation", &C::deviation);
  add("channels", "fisher", &C::fisher);
  add("channels", "threshold_lower", &C::threshold_lower);
  add("channels", "threshold_upper", &C::threshold_upper);
  add("post_rope", "before_min", &C::range_min);
  add("post_rope", "before_max", &C::range_max);
  add("post_rope", "min", &C::rotated_min);
  add("post_rope", "max", &C::rotated_max);
  out["histogram"] = joined(heads, [](const HeadReport& head) -> const std::vector<float>& { return head.histogram; });
  // Heads of fewer bits have fewer codes: each gets the room of the widest.
  std::vector<float> use;
  for (const HeadReport* head : heads) {
    if (head->code_use.empty()) return out;
    const size_t end = use.size() + static_cast<size_t>(codes);
    use.insert(use.end(), head->code_use.begin(), head->code_use.end());
    use.resize(end);
  }
  out["code_use"] = html_floats(use);
  return out;
}

ordered_json vector_tensor_json(const TensorCodebooks& tensor) {
  const auto floats = [](const auto& values) { return html_floats(std::vector<float>(values.begin(), values.end())); };
  ordered_json out = {{"units", tensor.units}, {"coordinates", tensor.coordinates}};
  out["width"] = floats(tensor.group_width);
  out["bits"] = floats(tensor.group_bits);
  if (!tensor.stats.energy.empty()) out["energy"] = html_floats(tensor.stats.energy);
  return out;
}

}  // namespace

std::string codebook_html(const ReportData& report, const std::string& path, uint64_t bytes) {
  const Codebook& codebook = report.codebook;
  const bool activations = codebook.scheme.is_full();
  const std::string what = activations ? "activations" : short_name(codebook.scheme);
  ordered_json data = {{"title", "kvcc: " + codebook.model.name + ", " + what}, {"path", path}, {"bytes", bytes}};
  // What the text and the JSON of kvcc inspect say, less the heads, which follow in the form that the page reads.
  const ordered_json document = codebook_json(report, {});
  for (const auto& [name, value] : document.items()) {
    if (name != "layers" && name != "warnings") data[name] = value;
  }
  if (activations) {
    data["kind"] = "activations";
    data["content_sha256"] = codebook.provenance.activations_sha256;
  }
  data["refinement_text"] = refinement_text(codebook);
  data["layer_index"] = codebook.layer_index;
  data["histogram"] = {
      {"low", normalised_edge(0)}, {"high", normalised_edge(kNormalisedBins)}, {"bins", kNormalisedBins}};
  if (!report.rotated_problem.empty()) data["rotated_problem"] = report.rotated_problem;
  data["fields"] = ordered_json::array();
  std::map<std::string, std::string> meaning = meanings();
  for (const HeadColumn& column : head_columns()) {
    if (column.value == nullptr) continue;
    data["fields"].push_back({{"name", column.name}, {"unit", column.unit}, {"meaning", meaning[column.name]}});
  }
  data["warnings"] = ordered_json::array();
  for (const Warning& warning : report.warnings) {
    data["warnings"].push_back({{"name", warning.name},
                                {"where", warning.where},
                                {"cause", warning.cause},
                                {"cure", warning.cure},
                                {"heads", warning.heads}});
  }
  for (const char* kind : {"key", "value"}) {
    const bool key = std::string_view(kind) == "key";
    std::vector<const HeadReport*> heads;
    for (const HeadReport& head : report.heads) {
      if (std::string_view(head.kind) == kind) heads.push_back(&head);
    }
    const CacheShape& shape = codebook.model.shape;
    data["tensors"][kind] =
        tensor_json(heads, key ? shape.head_dim : shape.value_head_dim, (key ? codebook.key : codebook.value).codes,
                    !(key ? codebook.key : codebook.value).threshold_lower.empty());
    if (const TensorCodebooks& tensor = key ? codebook.key : codebook.value; tensor.units > 0) {
      data["tensors"][kind]["vector"] = vector_tensor_json(tensor);
    }
  }
  return html_page(data, kCodebookScripts, "kvcc inspect --json");
}

}  // namespace kvcc
