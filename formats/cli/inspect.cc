// kvcc inspect: what a file of kvcc holds.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "calib/report/codebook_report.h"
#include "formats/cli/program.h"
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
  std::string path;
  int layer = -1, head = -1;
  kvcc::HeadFilter filter;
  bool selects() const {
    return layer >= 0 || head >= 0 || !filter.kind.empty() || !filter.sort.empty() || filter.top > 0;
  }
};

/// Rows up to which the levels are printed below the table.
constexpr size_t kLevelsShown = 8;

std::string short_hash(const std::string& sha256) { return sha256.substr(0, 12); }

/// What the columns and the flags in the table mean.
void print_legend(const std::vector<kvcc::HeadReport>& heads) {
  fmt::print("\noutl.: share stored exactly; wsse: sum of Fisher x squared error; dB: signal to error\n");
  std::set<std::string> flags;
  for (const kvcc::HeadReport& head : heads) flags.insert(head.flags.begin(), head.flags.end());
  for (const std::string& flag : flags) fmt::print("{}: {}\n", flag, kvcc::warning_meaning(flag));
}

void print_model(const kvcc::ModelInfo& model) {
  const kvcc::CacheShape& shape = model.shape;
  fmt::print("model       {} ({}, {}), weights {}\n", model.name, model.architecture, model.dtype,
             short_hash(model.weights_sha256));
  fmt::print("cache       {} layers, {} query heads, {} kv heads, head dim {}/{}\n", shape.layers, shape.query_heads,
             shape.kv_heads, shape.head_dim, shape.value_head_dim);
  fmt::print("rope        theta {}, {}, scaling {}, {} dims\n", model.rope.theta, model.rope.kind, model.rope.scaling,
             model.rope.rotary_dim);
}

int inspect_codebook(const Options& options, const Common& common) {
  const kvcc::ReportData data = kvcc::report_data(kvcc::read_codebook(options.path));
  const kvcc::Codebook& codebook = data.codebook;
  const std::vector<kvcc::HeadReport> heads = kvcc::select_heads(data.heads, options.filter);
  const ordered_json document = kvcc::codebook_json(data, heads);
  if (common.json) {
    ordered_json whole;
    whole["path"] = options.path;
    whole["bytes"] = fs::file_size(options.path);
    for (const auto& [key, value] : document.items()) whole[key] = value;
    kvcc::cli::print_json(whole);
    return 0;
  }
  const kvcc::Provenance& from = codebook.provenance;
  fmt::print("{}: codebook, format {}, {}\n", options.path, codebook.format_version,
             kvcc::human_bytes(fs::file_size(options.path)));
  fmt::print("content     {}\n", codebook.content_sha256);
  print_model(codebook.model);
  fmt::print("scheme      {}\n", kvcc::short_name(codebook.scheme));
  if (kvcc::short_name(codebook.scheme) != kvcc::to_string(codebook.scheme)) {
    fmt::print("            {}\n", kvcc::to_string(codebook.scheme));
  }
  fmt::print("bits        nominal {:.2f}", document["nominal_bits"].get<double>());
  for (const auto& at : document["effective_bits"]) {
    fmt::print("{} {:.4f} at {}K", &at == &document["effective_bits"].front() ? "; effective" : ",",
               at["total"].get<double>(), at["context"].get<int64_t>() / 1024);
  }
  fmt::print("; constants {}\n", kvcc::human_bytes(document["effective_bits"][0]["constant_bytes"].get<uint64_t>()));
  fmt::print("calibrated  on {} ({}, sha256 {}): {} samples of {} tokens, seed {}, bos {}, {} tokens seen\n",
             from.dataset_name, from.dataset_flavour, short_hash(from.dataset_sha256), from.samples, from.seqlen,
             from.seed, from.bos, from.tokens);
  fmt::print("by          kvcc {}{}, activations {}\n\n", from.tool_version,
             from.date.empty() ? "" : " on " + from.date, short_hash(from.activations_sha256));
  if (!options.selects()) {
    fmt::print("{}", kvcc::cli::table(kvcc::layer_table(heads)));
    print_legend(heads);
    return 0;
  }
  fmt::print("{}", kvcc::cli::table(kvcc::head_table(heads)));
  if (heads.size() > kLevelsShown) return 0;
  for (const kvcc::HeadReport& head : heads) {
    fmt::print("\nlevels of layer {} {} head {}: {:.6g}", head.layer, head.kind, head.head,
               fmt::join(head.codebook, " "));
  }
  fmt::print("\n");
  return 0;
}

int inspect_activations(const Options& options, const Common& common) {
  const kvcc::ActivationsReader reader(options.path);
  const kvcc::ActivationsSettings& settings = reader.settings();
  uint64_t bytes = 0;
  for (const auto& [key, entry] : reader.shards()) bytes += entry.bytes;
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
    document["seqlen"] = settings.seqlen;
    document["seed"] = settings.seed;
    document["offsets"] = settings.offsets;
    document["compute_dtype"] = settings.compute_dtype;
    document["acts_dtype"] = settings.acts_dtype;
    document["fisher"] = settings.fisher;
    document["layer_index"] = settings.layer_index;
    document["shards"] = reader.shards().size();
    kvcc::cli::print_json(document);
    return 0;
  }
  fmt::print("{}: activations, {} shards, {}\n", options.path, reader.shards().size(), kvcc::human_bytes(bytes));
  fmt::print("content     {}\n", reader.content_sha256());
  print_model(settings.model);
  fmt::print("text        {} ({}, sha256 {})\n", settings.text_name, settings.text_flavour,
             short_hash(settings.text_sha256));
  fmt::print("samples     {} of {} tokens, seed {}, bos {}\n", settings.samples, settings.seqlen, settings.seed,
             settings.bos);
  fmt::print("stored      {}, computed in {}, {} Fisher gradients\n", settings.acts_dtype, settings.compute_dtype,
             settings.fisher ? "with" : "without");
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
    if (fs::exists(path / "kernels.json", error)) return inspect_kernels(options.path, common);
    throw kvcc::bad_input(options.path, "a folder without manifest.json or kernels.json",
                          "a .kvcb, an activations folder or a kernels folder");
  }
  if (path.filename() == "kernels.json") {
    const std::string folder = path.parent_path().string();
    return inspect_kernels(folder.empty() ? "." : folder, common);
  }
  {
    const kvcc::MappedFile file(options.path);
    const kvcc::Tree tree = kvcc::hdf5_to_tree(file.bytes(), options.path);
    const auto& root = tree.at("/").attributes;
    const auto format = root.find("format");
    if (format != root.end() && format->second.bytes == "kvcc-activations-shard") {
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
    app.add_option("FILE", options.path, "A .kvcb, an activations folder, or a kernels folder")->required();
    app.add_option("--layer", options.layer, "Only this layer, by the model's number")->check(number);
    app.add_option("--head", options.head, "Only this KV head")->check(number);
    app.add_option("--kind", options.filter.kind, "Only key or value")
        ->check(CLI::IsMember({"key", "value"}).description(""));
    app.add_option("--sort", options.filter.sort, "Heads by this column, largest first; -COLUMN: smallest first");
    app.add_option("--top", options.filter.top, "Only the first N heads")->check(number);
  };
  return kvcc::cli::run(argc, argv, "inspect", "What a file of kvcc holds: provenance, statistics, codebooks",
                        kvcc::cli::kJson, define, [&](const Common& common) {
                          if (options.layer >= 0) options.filter.layer = options.layer;
                          if (options.head >= 0) options.filter.head = options.head;
                          return inspect(options, common);
                        });
}
