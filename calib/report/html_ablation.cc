#include <filesystem>

#include "calib/report/html_page.h"
#include "calib/report/html_report.h"

namespace kvcc {

std::string ablation_html(const nlohmann::ordered_json& document) {
  nlohmann::ordered_json data = document;
  const std::filesystem::path model = document.at("model").get<std::string>();
  data["title"] = "kvcc ablation of " + (model.has_filename() ? model : model.parent_path()).filename().string();
  return html_page(data, kAblationScripts, "kvcc ablate --json");
}

}  // namespace kvcc
