#include "formats/cli/inspect_parts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>

#include "calib/report/html_report.h"
#include "formats/cli/output.h"
#include "formats/cli/terminal.h"
#include "formats/core/error.h"
#include "formats/core/file.h"

namespace kvcc::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kLabel = 12;

}  // namespace

std::string short_hash(const std::string& sha256) { return sha256.substr(0, 12); }

TextStyle text_style() { return {stdout_columns(), shows_unicode(), shows_colors()}; }

void print_line(const char* label, const std::string& text, const TextStyle& style) {
  fmt::print("{}", folded(label, kvcc::printable(text, style), kLabel, style));
}

void print_path(const std::string& path) { fmt::print("{}\n", kvcc::printable(path, {.unicode = true})); }

void print_model(const ModelInfo& model, const TextStyle& style) {
  const CacheShape& shape = model.shape;
  print_line("model",
             fmt::format("{} ({}, {}), weights {}", model.name, model.architecture, model.dtype,
                         short_hash(model.weights_sha256)),
             style);
  print_line("cache",
             fmt::format("{} layers, {} query heads, {} kv heads, head dim {}/{}", shape.layers, shape.query_heads,
                         shape.kv_heads, shape.head_dim, shape.value_head_dim),
             style);
  print_line("rope",
             fmt::format("theta {}, {}, scaling {}, {} dims", model.rope.theta, model.rope.kind, model.rope.scaling,
                         model.rope.rotary_dim),
             style);
}

void print_heads(const InspectOptions& options, const ReportData& data, const std::vector<HeadReport>& heads,
                 const TextStyle& style) {
  if (!options.selects()) {
    fmt::print("{}{}", layers_text(heads, style), warnings_text(data.warnings, style));
    return;
  }
  if (options.layer < 0 || options.head < 0) {
    fmt::print("{}", heads_text(heads, options.filter.sort, style));
    return;
  }
  for (size_t i = 0; i < heads.size(); ++i) {
    fmt::print("{}{}", i > 0 ? "\n" : "", head_text(heads[i], data.codebook, style));
  }
}

void write_report(const InspectOptions& options, const ReportData& data, uint64_t bytes) {
  if (options.html.empty()) return;
  std::error_code error;
  if (fs::equivalent(options.html, options.path, error)) {
    throw Error(ErrorKind::usage, "--html " + options.html, "is the file to inspect", "another name");
  }
  check_replaced(options.html, {"<!doctype html>", "content=\"kvcc "}, "--html");
  write_text_file(options.html, codebook_html(data, options.path, bytes));
  spdlog::info("{}: the report", options.html);
}

void refuse_report(const InspectOptions& options) {
  if (options.html.empty() && options.activations.empty()) return;
  throw Error(ErrorKind::usage, options.html.empty() ? "--activations" : "--html",
              options.path + " has no heads to report on", "a .kvcb or an activations folder");
}

}  // namespace kvcc::cli
