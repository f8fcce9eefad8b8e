// kvcc inspect: what a file of kvcc holds.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "calib/report/html_report.h"
#include "calib/report/text_page.h"
#include "calib/report/vector_report.h"
#include "calib/report/weights_report.h"
#include "formats/cli/output.h"
#include "formats/cli/program.h"
#include "formats/cli/terminal.h"
#include "formats/core/effective_bits.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/text.h"
#include "formats/store/activations.h"
#include "formats/store/kernels_manifest.h"
#include "formats/store/model_json.h"

namespace {

namespace fs = std::filesystem;
using kvcc::cli::Common;
using nlohmann::ordered_json;

struct Options {
  std::string path, activations, html;
  int layer = -1, head = -1;
  int64_t samples = -1;  ///< of activations; -1: as many as are read at once, 0: all
  bool csv = false;
  kvcc::HeadFilter filter;
  bool selects() const {
    return layer >= 0 || head >= 0 || !filter.kind.empty() || !filter.sort.empty() || filter.top > 0;
  }
};

/// Of an activations folder that much is read without --samples.
constexpr uint64_t kReadAtOnce = uint64_t{1} << 30;
constexpr int kLabel = 12;

std::string short_hash(const std::string& sha256) { return sha256.substr(0, 12); }

kvcc::TextStyle text_style() {
  return {kvcc::cli::stdout_columns(), kvcc::cli::shows_unicode(), kvcc::cli::shows_colors()};
}

/// "label       text", folded to the terminal.
void print_line(const char* label, const std::string& text, const kvcc::TextStyle& style) {
  fmt::print("{}", kvcc::folded(label, kvcc::printable(text, style), kLabel, style));
}

/// In one piece, however long, so that it can be copied.
void print_path(const std::string& path) { fmt::print("{}\n", kvcc::printable(path, {.unicode = true})); }

void print_model(const kvcc::ModelInfo& model, const kvcc::TextStyle& style) {
  const kvcc::CacheShape& shape = model.shape;
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

/// The heads asked for: layers in one line each, some heads in a line each, or one layer's head in full.
void print_heads(const Options& options, const kvcc::ReportData& data, const std::vector<kvcc::HeadReport>& heads,
                 const kvcc::TextStyle& style) {
  if (!options.selects()) {
    fmt::print("{}{}", kvcc::layers_text(heads, style), kvcc::warnings_text(data.warnings, style));
    return;
  }
  if (options.layer < 0 || options.head < 0) {
    fmt::print("{}", kvcc::heads_text(heads, options.filter.sort, style));
    return;
  }
  for (size_t i = 0; i < heads.size(); ++i) {
    fmt::print("{}{}", i > 0 ? "\n" : "", kvcc::head_text(heads[i], data.codebook, style));
  }
}

/// The artifact with its statistics; with --activations also the channels' ranges there.
kvcc::ReportData read_report(const Options& options, const Common& common) {
  kvcc::Codebook codebook = kvcc::read_codebook(options.path);
  if (options.activations.empty()) return kvcc::report_data(std::move(codebook));
  const kvcc::ActivationsReader reader(options.activations);
  if (reader.settings().model.weights_sha256 != codebook.model.weights_sha256) {
    spdlog::warn("{}: of other weights than the artifact's: its ranges say little about it", options.activations);
  } else if (reader.content_sha256() != codebook.provenance.activations_sha256) {
    spdlog::warn("{}: not the activations that the artifact was fitted to", options.activations);
  }
  kvcc::cli::Progress progress("activations", static_cast<uint64_t>(reader.settings().model.shape.layers),
                               common.quiet);
  const kvcc::ActivationRanges ranges =
      kvcc::read_activation_ranges(reader, common.threads, [&] { progress.advance(); });
  if (!ranges.rotated_problem.empty()) spdlog::warn("no ranges after RoPE: {}", ranges.rotated_problem);
  return kvcc::report_data(std::move(codebook), &ranges, options.activations);
}

/// With --html: the report. `bytes`: of the file or folder.
void write_report(const Options& options, const kvcc::ReportData& data, uint64_t bytes) {
  if (options.html.empty()) return;
  std::error_code error;
  if (fs::equivalent(options.html, options.path, error)) {
    throw kvcc::Error(kvcc::ErrorKind::usage, "--html " + options.html, "is the file to inspect", "another name");
  }
  kvcc::cli::check_replaced(options.html, {"<!doctype html>", "content=\"kvcc "}, "--html");
  kvcc::write_text_file(options.html, kvcc::codebook_html(data, options.path, bytes));
  spdlog::info("{}: the report", options.html);
}

/// Throws Error(usage) where a report is asked of a file that has no statistics of heads.
void refuse_report(const Options& options) {
  if (options.html.empty() && options.activations.empty()) return;
  throw kvcc::Error(kvcc::ErrorKind::usage, options.html.empty() ? "--activations" : "--html",
                    options.path + " has no heads to report on", "a .kvcb or an activations folder");
}

int inspect_codebook(const Options& options, const Common& common) {
  const kvcc::ReportData data = read_report(options, common);
  write_report(options, data, fs::file_size(options.path));
  const kvcc::Codebook& codebook = data.codebook;
  const std::vector<kvcc::HeadReport> heads = kvcc::select_heads(data.heads, options.filter);
  if (options.csv) {
    fmt::print("{}", kvcc::heads_csv(heads));
    return 0;
  }
  if (common.json) {
    ordered_json whole;
    whole["path"] = options.path;
    whole["bytes"] = fs::file_size(options.path);
    const ordered_json document = kvcc::codebook_json(data, heads);
    for (const auto& [key, value] : document.items()) whole[key] = value;
    kvcc::cli::print_json(whole);
    return 0;
  }
  const kvcc::TextStyle style = text_style();
  const kvcc::Provenance& from = codebook.provenance;
  print_path(options.path);
  print_line(
      "file",
      fmt::format("codebook, format {}, {}", codebook.format_version, kvcc::human_bytes(fs::file_size(options.path))),
      style);
  print_line("content", codebook.content_sha256, style);
  print_model(codebook.model, style);
  print_line("scheme", kvcc::short_name(codebook.scheme), style);
  if (kvcc::short_name(codebook.scheme) != kvcc::to_string(codebook.scheme)) {
    print_line("", kvcc::to_string(codebook.scheme), style);
  }
  std::string bits = fmt::format("nominal {:.2f}; effective", kvcc::nominal_bits(codebook.scheme));
  const std::vector<kvcc::ContextBits> contexts = kvcc::context_bits(codebook);
  for (const kvcc::ContextBits& at : contexts) {
    bits += fmt::format("{} {:.4f} at {}K", &at == &contexts.front() ? "" : ",", at.bits.total, at.context / 1024);
  }
  print_line("bits",
             fmt::format("{}; constants {}", bits,
                         kvcc::human_bytes(static_cast<uint64_t>(contexts.front().bits.constant_bytes))),
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
  if (const std::string refined = kvcc::refinement_text(codebook); !refined.empty()) {
    print_line("refined", refined, style);
  }
  if (codebook.scheme.is_vector() && options.layer < 0 && options.head < 0) {
    fmt::print("\n{}", kvcc::cli::table(kvcc::vector_rows(codebook)));
  }
  fmt::print("\n");
  print_heads(options, data, heads, style);
  return 0;
}

/// How many samples of the folder are read for its statistics.
int64_t samples_to_read(const Options& options, const kvcc::ActivationsReader& reader, uint64_t bytes) {
  const int64_t all = reader.settings().samples;
  if (options.samples == 0) return all;
  if (options.samples > 0) return std::min(options.samples, all);
  const uint64_t each = std::max<uint64_t>(1, bytes / static_cast<uint64_t>(all));
  return std::clamp<int64_t>(static_cast<int64_t>(kReadAtOnce / each), 1, all);
}

int inspect_activations(const Options& options, const Common& common) {
  if (!options.activations.empty()) {
    throw kvcc::Error(kvcc::ErrorKind::usage, "--activations", options.path + " is no artifact", "a .kvcb");
  }
  const kvcc::ActivationsReader reader(options.path);
  const kvcc::ActivationsSettings& settings = reader.settings();
  uint64_t bytes = 0;
  for (const auto& [key, entry] : reader.shards()) bytes += entry.bytes;
  const int64_t samples = samples_to_read(options, reader, bytes);
  kvcc::ReportData data;
  {
    kvcc::cli::Progress progress("read", static_cast<uint64_t>(settings.model.shape.layers), common.quiet);
    data = kvcc::activations_report(reader, samples, common.threads, [&] { progress.advance(); });
  }
  if (!data.rotated_problem.empty()) spdlog::warn("no ranges after RoPE: {}", data.rotated_problem);
  write_report(options, data, bytes);
  const std::vector<kvcc::HeadReport> heads = kvcc::select_heads(data.heads, options.filter);
  if (options.csv) {
    fmt::print("{}", kvcc::heads_csv(heads));
    return 0;
  }
  if (common.json) {
    ordered_json document;
    document["path"] = options.path;
    document["bytes"] = bytes;
    document["kind"] = "activations";
    document["content_sha256"] = reader.content_sha256();
    document["model"] = kvcc::to_json(settings.model);
    document["text"] = {
        {"name", settings.text_name}, {"sha256", settings.text_sha256}, {"flavour", settings.text_flavour}};
    document["tokenizer_sha256"] = settings.tokenizer_sha256;
    document["bos"] = settings.bos;
    document["samples"] = settings.samples;
    document["samples_asked"] = std::max(settings.samples, settings.samples_asked);
    document["samples_read"] = samples;
    document["seqlen"] = settings.seqlen;
    document["tokens"] = settings.tokens();
    if (const std::string sources = kvcc::sources_json(settings); !sources.empty()) {
      document["sources"] = ordered_json::parse(sources);
    }
    document["seed"] = settings.seed;
    document["offsets"] = settings.offsets;
    document["compute_dtype"] = settings.compute_dtype;
    document["acts_dtype"] = settings.acts_dtype;
    document["fisher"] = settings.fisher;
    document["layer_index"] = settings.layer_index;
    document["shards"] = reader.shards().size();
    document["warnings"] = kvcc::warnings_json(data);
    document["layers"] = kvcc::layers_json(heads);
    kvcc::cli::print_json(document);
    return 0;
  }
  const kvcc::TextStyle style = text_style();
  print_path(options.path);
  print_line("folder", fmt::format("activations, {} shards, {}", reader.shards().size(), kvcc::human_bytes(bytes)),
             style);
  print_line("content", reader.content_sha256(), style);
  print_model(settings.model, style);
  print_line(
      "text",
      fmt::format("{} ({}, sha256 {})", settings.text_name, settings.text_flavour, short_hash(settings.text_sha256)),
      style);
  print_line("samples",
             fmt::format("{} of {}{} tokens, seed {}, bos {}", settings.samples,
                         settings.lengths.empty() ? "" : "at most ", settings.seqlen, settings.seed, settings.bos),
             style);
  print_line("stored",
             fmt::format("{}, computed in {}, {} Fisher gradients", settings.acts_dtype, settings.compute_dtype,
                         settings.fisher ? "with" : "without"),
             style);
  if (samples < settings.samples) {
    print_line("statistics",
               fmt::format("of the first {} of {} samples; --samples 0 reads them all", samples, settings.samples),
               style);
  }
  fmt::print("\n");
  print_heads(options, data, heads, style);
  return 0;
}

int inspect_weights(const Options& options, const Common& common) {
  refuse_report(options);
  for (const auto& [option, given] : {std::pair{"--head", options.head >= 0},
                                      {"--kind", !options.filter.kind.empty()},
                                      {"--sort", !options.filter.sort.empty()},
                                      {"--top", options.filter.top > 0},
                                      {"--csv", options.csv}}) {
    if (given) throw kvcc::Error(kvcc::ErrorKind::usage, option, options.path + " has no heads", "--layer");
  }
  const kvcc::QuantisedWeights weights = kvcc::read_weights(options.path);
  const auto rows = kvcc::weights_rows(weights, options.layer);
  if (common.json) {
    ordered_json document{{"path", options.path}, {"bytes", fs::file_size(options.path)}};
    document.update(kvcc::weights_json(weights));
    kvcc::cli::print_json(document);
    return 0;
  }
  const kvcc::TextStyle style = text_style();
  const kvcc::WeightsProvenance& from = weights.provenance;
  const kvcc::WeightBits bits = kvcc::weight_bits(weights.matrices);
  print_path(options.path);
  print_line("file",
             fmt::format("quantised weights, format {}, {}", weights.format_version,
                         kvcc::human_bytes(fs::file_size(options.path))),
             style);
  print_line("content", weights.content_sha256, style);
  print_model(weights.model, style);
  print_line("weights",
             fmt::format("{}: {} matrices, {} weights, {} kept exactly ({:.3f}% by Fisher information)", weights.name(),
                         weights.matrices.size(), bits.weights, bits.exact, 100 * weights.sensitive),
             style);
  print_line("bits",
             fmt::format("nominal {}; effective {:.4f}: codes {:.4f}, levels {:.4f}, exact weights {:.4f}",
                         weights.bits, bits.total(), bits.codes, bits.levels, bits.sparse),
             style);
  print_line(
      "calibrated",
      fmt::format("on {} ({}, sha256 {}): {} samples of {} tokens, seed {}, bos {}", from.text_name, from.text_flavour,
                  short_hash(from.text_sha256), from.samples, from.seqlen, from.seed, from.bos),
      style);
  print_line("by", "kvcc " + from.tool_version, style);
  fmt::print("\n{}", kvcc::cli::table(rows));
  return 0;
}

int inspect_kernels(const std::string& folder, const Common& common) {
  const kvcc::KernelsManifest manifest = kvcc::read_kernels_manifest(folder);
  if (common.json) {
    ordered_json document = {{"path", folder}, {"kind", "kernels"}};
    const ordered_json content = kvcc::to_json(manifest);
    for (const auto& [key, value] : content.items()) document[key] = value;
    kvcc::cli::print_json(document);
    return 0;
  }
  fmt::print("{}: {} kernels for {}, scheme {}\n", folder, manifest.kernels.size(), manifest.model, manifest.scheme);
  fmt::print("artifact    {} ({})\nlayout      {}\nnvcc        {}\n", manifest.artifact, manifest.content_sha256,
             manifest.layout, manifest.nvcc_version.empty() ? "not run" : manifest.nvcc_version);
  if (!manifest.cxx_version.empty()) {
    fmt::print("C++         {}, Highway {}\n", manifest.cxx_version, manifest.highway_version);
  }
  fmt::print("\n");
  std::vector<std::vector<std::string>> rows = {{"kernel", "family", "arch", "registers", "spill", "shared", "block"}};
  for (const kvcc::KernelEntry& kernel : manifest.kernels) {
    rows.push_back({kernel.name, kernel.family, kernel.arch, std::to_string(kernel.registers),
                    std::to_string(kernel.spill_bytes),
                    std::to_string(kernel.shared_bytes + std::max(0, kernel.launch.dynamic_shared_bytes)),
                    fmt::format("{}", fmt::join(kernel.launch.block, "x"))});
  }
  fmt::print("{}", kvcc::cli::table(rows));
  return 0;
}

/// Any other HDF5 file that kvcc wrote: its objects.
int inspect_tree(const std::string& path, const kvcc::Tree& tree, const Common& common) {
  ordered_json document = {{"path", path}, {"kind", "shard"}, {"datasets", ordered_json::array()}};
  std::vector<std::vector<std::string>> rows = {{"dataset", "type", "shape", "unit"}};
  for (const auto& [name, object] : tree) {
    if (!object.dataset) continue;
    const auto unit = object.attributes.find("unit");
    const std::string unit_text = unit == object.attributes.end() ? "" : unit->second.bytes;
    rows.push_back({name, kvcc::element_name(object.value.type), kvcc::shape_text(object.value.shape), unit_text});
    document["datasets"].push_back({{"path", name},
                                    {"type", kvcc::element_name(object.value.type)},
                                    {"shape", object.value.shape},
                                    {"unit", unit_text}});
  }
  if (common.json) {
    kvcc::cli::print_json(document);
  } else {
    fmt::print("{}", kvcc::cli::table(rows));
  }
  return 0;
}

int inspect(const Options& options, const Common& common) {
  std::error_code error;
  const fs::path path = options.path;
  if (fs::is_directory(path, error)) {
    if (kvcc::is_activations_folder(options.path)) return inspect_activations(options, common);
    refuse_report(options);
    if (fs::exists(path / "kernels.json", error)) return inspect_kernels(options.path, common);
    throw kvcc::bad_input(options.path, "a folder without manifest.json or kernels.json",
                          "a .kvcb, an activations folder or a kernels folder");
  }
  if (path.filename() == "kernels.json") {
    refuse_report(options);
    const std::string folder = path.parent_path().string();
    return inspect_kernels(folder.empty() ? "." : folder, common);
  }
  {
    const kvcc::MappedFile file(options.path);
    const kvcc::Tree tree = kvcc::hdf5_to_tree(file.bytes(), options.path);
    if (kvcc::is_weights_tree(tree)) return inspect_weights(options, common);
    const auto& root = tree.at("/").attributes;
    const auto format = root.find("format");
    if (format != root.end() && format->second.bytes == "kvcc-activations-shard") {
      refuse_report(options);
      return inspect_tree(options.path, tree, common);
    }
  }
  return inspect_codebook(options, common);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const auto define = [&](CLI::App& app) {
    const CLI::Validator number = CLI::Range(0, 1 << 20).description("");
    app.add_option("FILE", options.path, "A .kvcb, a .kvcw, an activations folder, or a kernels folder")->required();
    app.add_option("--layer", options.layer, "Only this layer, by the model's number")->check(number);
    app.add_option("--head", options.head, "Only this KV head")->check(number);
    app.add_option("--kind", options.filter.kind, "Only key or value")
        ->check(CLI::IsMember({"key", "value"}).description(""));
    app.add_option("--sort", options.filter.sort, "Heads by this column, largest first; -COLUMN: smallest first");
    app.add_option("--top", options.filter.top, "Only the first N heads")->check(number);
    app.add_option("--activations", options.activations,
                   "Activations folder: ranges of its channels, keys before and after RoPE (of a .kvcb)");
    app.add_option("--samples", options.samples,
                   "Samples of an activations folder to read; 0: all (default: as many as 1 GiB holds)")
        ->check(number);
    app.add_option("--html", options.html,
                   "Also write a report to look at, one HTML file (of a .kvcb or an activations folder)");
    app.add_flag("--csv", options.csv, "Every number of the heads as comma-separated values, one row a head");
  };
  return kvcc::cli::run(argc, argv, "inspect", "What a file of kvcc holds: provenance, statistics, codebooks",
                        kvcc::cli::kJson | kvcc::cli::kThreads, define, [&](const Common& common) {
                          if (options.csv && common.json) {
                            throw kvcc::Error(kvcc::ErrorKind::usage, "--csv", "with --json", "one of them");
                          }
                          if (options.layer >= 0) options.filter.layer = options.layer;
                          if (options.head >= 0) options.filter.head = options.head;
                          return inspect(options, common);
                        });
}
