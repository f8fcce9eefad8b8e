#include "calib/report/html_page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <bit>

#include "calib/report/html_assets.h"
#include "formats/core/error.h"
#include "formats/core/json.h"

namespace kvcc {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays in reports are little-endian");

std::string base64(const void* bytes, size_t size) {
  std::string text(4 * ((size + 2) / 3) + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     static_cast<const unsigned char*>(bytes), static_cast<int>(size));
  text.resize(static_cast<size_t>(length));
  return text;
}

/// As a content security policy names an inline script or style.
std::string policy_hash(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorKind::failed, "OpenSSL", "SHA-256 failed");
  }
  return "'sha256-" + base64(digest, size) + "'";
}

/// JSON that may stand in a script element: no "<", so that neither "</script>" nor "<!--" is in it.
std::string script_safe(const nlohmann::ordered_json& data) {
  const std::string text = data.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

/// The template with each @name@ replaced. Replacements are not looked into.
std::string fill(std::string_view text, const std::vector<std::pair<std::string_view, std::string>>& values) {
  std::string out;
  while (!text.empty()) {
    const size_t begin = text.find('@'), end = begin == text.npos ? text.npos : text.find('@', begin + 1);
    if (end == text.npos) break;
    const std::string_view name = text.substr(begin + 1, end - begin - 1);
    out += text.substr(0, begin);
    for (const auto& [known, value] : values) {
      if (known == name) out += value;
    }
    text.remove_prefix(end + 1);
  }
  return out.append(text);
}

}  // namespace

const std::vector<std::string_view> kCodebookScripts = {
    "base.js",      "scale.js",       "heat_map.js",       "tensors.js",     "channels.js",     "head_charts.js",
    "head_page.js", "head_search.js", "overview_cards.js", "vector_card.js", "codebook_page.js"};
const std::vector<std::string_view> kEvaluationScripts = {"base.js",
                                                          "scale.js",
                                                          "heat_map.js",
                                                          "chart.js",
                                                          "evaluation_data.js",
                                                          "evaluation_charts.js",
                                                          "evaluation_lines.js",
                                                          "evaluation_tasks.js",
                                                          "evaluation_page.js"};

const std::vector<std::string_view> kAblationScripts = {"base.js", "scale.js", "chart.js", "ablation_page.js"};

std::string html_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string html_floats(std::span<const float> values) { return base64(values.data(), values.size_bytes()); }

std::string html_page(const nlohmann::ordered_json& data, std::span<const std::string_view> scripts,
                      std::string_view instead) {
  std::string script = "(() => {\n\"use strict\";\n";
  for (const std::string_view name : scripts) script += html_asset(name);
  script += "})();\n";
  const std::string style(html_asset("page.css"));
  const std::string policy =
      fmt::format("default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src {}; script-src {}",
                  policy_hash(style), policy_hash(script));
  // A title may hold what is not UTF-8 either: it goes the way of the data.
  const std::string titled = nlohmann::ordered_json{{"title", data.at("title")}}.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  const auto title = parse_json<nlohmann::ordered_json>(titled, "title").at("title").get<std::string>();
  return fill(html_asset("page.html"), {{"version", KVCC_VERSION},
                                        {"policy", policy},
                                        {"title", html_escape(title)},
                                        {"style", style},
                                        {"instead", html_escape(instead)},
                                        {"data", script_safe(data)},
                                        {"script", script}});
}

}  // namespace kvcc
