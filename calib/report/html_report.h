// The HTML reports of kvcc inspect, kvcc eval and kvcc ablate.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "calib/report/report_data.h"

namespace kvcc {

/// Everything that kvcc inspect --json has about an artifact or an activations folder (activations_report()), drawn.
/// `path` and `bytes` are of the file or folder. About 5 bytes
/// a number: 2.6 MB for 32 layers x 8 heads x 128 channels.
std::string codebook_html(const ReportData& report, const std::string& path, uint64_t bytes);

/// The document of kvcc eval --json, drawn. Throws nlohmann::json::exception for one without "results".
std::string evaluation_html(const nlohmann::ordered_json& document);

/// The document of kvcc ablate --json, drawn.
std::string ablation_html(const nlohmann::ordered_json& document);

}  // namespace kvcc
