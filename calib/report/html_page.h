// A report as one HTML file: style, scripts and data inside, nothing asked of the network.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

/// Scripts of assets/, in the order in which they run.
extern const std::vector<std::string_view> kCodebookScripts, kEvaluationScripts, kAblationScripts;

/// `data` is what the scripts draw, JSON in an element that browsers do not run; its member "title" is the page's. A
/// content security policy allows this style and these scripts by their hashes and nothing else, so that a name in the
/// data could not run even if a script put it into the page as HTML, which none does. Text that is not UTF-8 (paths)
/// gets replacement characters. `instead`: the command for readers without scripts.
std::string html_page(const nlohmann::ordered_json& data, std::span<const std::string_view> scripts,
                      std::string_view instead);

/// & < > " ' as entities.
std::string html_escape(std::string_view text);

/// Little-endian float32 in base64: how arrays travel in the data (base.js, floats()).
std::string html_floats(std::span<const float> values);

}  // namespace kvcc
