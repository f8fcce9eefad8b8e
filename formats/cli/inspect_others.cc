// Quantised weights, kernels, and single files of activations.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "calib/report/weights_report.h"
#include "formats/cli/inspect_parts.h"
#include "formats/cli/output.h"
#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/store/kernels_manifest.h"

namespace kvcc::cli {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

void inspect_weights(const InspectOptions& options, const Common& common) {
  refuse_report(options);
  for (const auto& [option, given] : {std::pair{"--head", options.head >= 0},
                                      {"--kind", !options.filter.kind.empty()},
                                      {"--sort", !options.filter.sort.empty()},
                                      {"--top", options.filter.top > 0},
                                      {"--csv", options.csv}}) {
    if (given) throw Error(ErrorKind::usage, option, options.path + " has no heads", "--layer");
  }
  const QuantisedWeights weights = read_weights(options.path);
  const auto rows = weights_rows(weights, options.layer);
  if (common.json) {
    ordered_json document{{"path", options.path}, {"bytes", fs::file_size(options.path)}};
    document.update(weights_json(weights));
    print_json(document);
    return;
  }
  const TextStyle style = text_style();
  const WeightsProvenance& from = weights.provenance;
  const WeightBits bits = weight_bits(weights.matrices);
  print_path(options.path);
  print_line(
      "file",
      fmt::format("quantised weights, format {}, {}", weights.format_version, human_bytes(fs::file_size(options.path))),
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
  fmt::print("\n{}", table(rows));
}

void inspect_kernels(const std::string& folder, const Common& common) {
  const KernelsManifest manifest = read_kernels_manifest(folder);
  if (common.json) {
    ordered_json document = {{"path", folder}, {"kind", "kernels"}};
    const ordered_json content = to_json(manifest);
    for (const auto& [key, value] : content.items()) document[key] = value;
    print_json(document);
    return;
  }
  fmt::print("{}: {} kernels for {}, scheme {}\n", folder, manifest.kernels.size(), manifest.model, manifest.scheme);
  fmt::print("artifact    {} ({})\nlayout      {}\nnvcc        {}\n", manifest.artifact, manifest.content_sha256,
             manifest.layout, manifest.nvcc_version.empty() ? "not run" : manifest.nvcc_version);
  if (!manifest.cxx_version.empty()) {
    fmt::print("C++         {}, Highway {}\n", manifest.cxx_version, manifest.highway_version);
  }
  fmt::print("\n");
  std::vector<std::vector<std::string>> rows = {{"kernel", "family", "arch", "registers", "spill", "shared", "block"}};
  for (const KernelEntry& kernel : manifest.kernels) {
    rows.push_back({kernel.name, kernel.family, kernel.arch, std::to_string(kernel.registers),
                    std::to_string(kernel.spill_bytes),
                    std::to_string(kernel.shared_bytes + std::max(0, kernel.launch.dynamic_shared_bytes)),
                    fmt::format("{}", fmt::join(kernel.launch.block, "x"))});
  }
  fmt::print("{}", table(rows));
}

void inspect_tree(const std::string& path, const Tree& tree, const Common& common) {
  ordered_json document = {{"path", path}, {"kind", "shard"}, {"datasets", ordered_json::array()}};
  std::vector<std::vector<std::string>> rows = {{"dataset", "type", "shape", "unit"}};
  for (const auto& [name, object] : tree) {
    if (!object.dataset) continue;
    const auto unit = object.attributes.find("unit");
    const std::string unit_text = unit == object.attributes.end() ? "" : unit->second.bytes;
    rows.push_back({name, element_name(object.value.type), shape_text(object.value.shape), unit_text});
    document["datasets"].push_back({{"path", name},
                                    {"type", element_name(object.value.type)},
                                    {"shape", object.value.shape},
                                    {"unit", unit_text}});
  }
  if (common.json) {
    print_json(document);
  } else {
    fmt::print("{}", table(rows));
  }
}

}  // namespace kvcc::cli
