#include <filesystem>

#include "calib/report/html_page.h"
#include "calib/report/html_report.h"

namespace kvcc {

std::string evaluation_html(const nlohmann::ordered_json& document) {
  nlohmann::ordered_json data = document;
  const std::filesystem::path model = document.at("model").get<std::string>();
  data["title"] = "kvcc evaluation of " + (model.has_filename() ? model : model.parent_path()).filename().string();
  if (!data.at("results").is_array()) data.at("results") = nlohmann::ordered_json::array();
  return html_page(data, kEvaluationScripts, "kvcc eval --json");
}

}  // namespace kvcc
