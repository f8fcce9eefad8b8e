#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>

#include "calib/report/vector_report.h"
#include "formats/cli/inspect_parts.h"
#include "formats/cli/output.h"
#include "formats/core/effective_bits.h"
#include "formats/core/text.h"
#include "formats/store/activations.h"

namespace kvcc::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// The artifact with its statistics; with --activations also the channels' ranges there.
ReportData read_report(const InspectOptions& options, const Common& common) {
  Codebook codebook = read_codebook(options.path);
  if (options.activations.empty()) return report_data(std::move(codebook));
  const ActivationsReader reader(options.activations);
  if (reader.settings().model.weights_sha256 != codebook.model.weights_sha256) {
    spdlog::warn("{}: of other weights than the artifact's: its ranges say little about it", options.activations);
  } else if (reader.content_sha256() != codebook.provenance.activations_sha256) {
    spdlog::warn("{}: not the activations that the artifact was fitted to", options.activations);
  }
  Progress progress("activations", static_cast<uint64_t>(reader.settings().model.shape.layers), common.quiet);
  const ActivationRanges ranges = read_activation_ranges(reader, common.threads, [&] { progress.advance(); });
  if (!ranges.rotated_problem.empty()) spdlog::warn("no ranges after RoPE: {}", ranges.rotated_problem);
  return report_data(std::move(codebook), &ranges, options.activations);
}

}  // namespace

void inspect_codebook(const InspectOptions& options, const Common& common) {
  const ReportData data = read_report(options, common);
  write_report(options, data, fs::file_size(options.path));
  const Codebook& codebook = data.codebook;
  const std::vector<HeadReport> heads = select_heads(data.heads, options.filter);
  if (options.csv) {
    fmt::print("{}", heads_csv(heads));
    return;
  }
  if (common.json) {
    ordered_json whole;
    whole["path"] = options.path;
    whole["bytes"] = fs::file_size(options.path);
    const ordered_json document = codebook_json(data, heads);
    for (const auto& [key, value] : document.items()) whole[key] = value;
    print_json(whole);
    return;
  }
  const TextStyle style = text_style();
  const Provenance& from = codebook.provenance;
  print_path(options.path);
  print_line("file",
             fmt::format("codebook, format {}, {}", codebook.format_version, human_bytes(fs::file_size(options.path))),
             style);
  print_line("content", codebook.content_sha256, style);
  print_model(codebook.model, style);
  print_line("scheme", short_name(codebook.scheme), style);
  if (short_name(codebook.scheme) != to_string(codebook.scheme)) {
    print_line("", to_string(codebook.scheme), style);
  }
  std::string bits = fmt::format("nominal {:.2f}; effective", nominal_bits(codebook.scheme));
  const std::vector<ContextBits> contexts = context_bits(codebook);
  for (const ContextBits& at : contexts) {
    bits += fmt::format("{} {:.4f} at {}K", &at == &contexts.front() ? "" : ",", at.bits.total, at.context / 1024);
  }
  print_line(
      "bits",
      fmt::format("{}; constants {}", bits, human_bytes(static_cast<uint64_t>(contexts.front().bits.constant_bytes))),
      style);
  print_line("calibrated",
             fmt::format("on {} ({}, sha256 {}): {} samples of {} tokens, seed {}, bos {}, {} tokens seen",
                         from.dataset_name, from.dataset_flavour, short_hash(from.dataset_sha256), from.samples,
                         from.seqlen, from.seed, from.bos, from.tokens),
             style);
  print_line(
      "by",
      fmt::format(
          "kvcc {}{}, activations {}{}", from.tool_version, from.date.empty() ? "" : " on " + from.date,
          short_hash(from.activations_sha256),
          from.quantised_weights.empty() ? "" : ", of the quantised weights " + short_hash(from.quantised_weights)),
      style);
  if (const std::string refined = refinement_text(codebook); !refined.empty()) {
    print_line("refined", refined, style);
  }
  if (codebook.scheme.is_vector() && options.layer < 0 && options.head < 0) {
    fmt::print("\n{}", table(vector_rows(codebook)));
  }
  fmt::print("\n");
  print_heads(options, data, heads, style);
}

}  // namespace kvcc::cli
