// kvcc inspect: what a file of kvcc holds.
#include <filesystem>

#include "formats/cli/inspect_parts.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/store/activations.h"
#include "formats/store/weights_file.h"

namespace {

namespace fs = std::filesystem;
using kvcc::cli::Common;
using kvcc::cli::InspectOptions;

void inspect(const InspectOptions& options, const Common& common) {
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
  InspectOptions options;
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
                          inspect(options, common);
                          return 0;
                        });
}
