// kvcc export: a codebook artifact for other runtimes.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/text.h"
#include "formats/export/export.h"
#include "formats/store/codebook.h"

namespace {

struct Options {
  std::string input, format, output;
};

std::vector<kvcc::ExportedTensor> listing(const kvcc::Tree& tree) {
  std::vector<kvcc::ExportedTensor> tensors;
  for (const auto& [path, object] : tree) {
    if (object.dataset) tensors.push_back({path.substr(1), kvcc::element_name(object.value.type), object.value.shape});
  }
  return tensors;
}

int export_file(const Options& options, const kvcc::cli::Common& common) {
  const kvcc::Codebook codebook = kvcc::read_codebook(options.input);  // refuses what is not sound
  const kvcc::MappedFile file(options.input);
  const kvcc::Tree tree = kvcc::hdf5_to_tree(file.bytes(), options.input);
  std::error_code error;
  if (std::filesystem::equivalent(options.input, options.output, error)) {
    throw kvcc::Error(kvcc::ErrorKind::usage, options.output, "is the artifact itself", "another name");
  }
  std::vector<kvcc::ExportedTensor> tensors;
  if (options.format == "safetensors") {
    kvcc::write_text_file(options.output, kvcc::tree_to_safetensors(tree));
    tensors = kvcc::check_safetensors(options.output);
  } else {
    kvcc::write_text_file(options.output, kvcc::tree_to_json(tree));
    tensors = listing(tree);
  }
  if (common.json) {
    nlohmann::ordered_json document;
    document["output"] = options.output;
    document["format"] = options.format;
    document["content_sha256"] = codebook.content_sha256;
    document["bytes"] = std::filesystem::file_size(options.output);
    for (const kvcc::ExportedTensor& tensor : tensors) {
      document["tensors"].push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
    }
    kvcc::cli::print_json(document);
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"tensor", "type", "shape"}};
  for (const auto& tensor : tensors) rows.push_back({tensor.name, tensor.dtype, kvcc::shape_text(tensor.shape)});
  fmt::print("{}{}: {} tensors, {}\n", kvcc::cli::table(rows), options.output, tensors.size(),
             kvcc::human_bytes(std::filesystem::file_size(options.output)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const auto define = [&](CLI::App& app) {
    app.add_option("FILE", options.input, "Codebook artifact (.kvcb)")->required();
    app.add_option("--to", options.format, "Format: safetensors or json")
        ->required()
        ->check(CLI::IsMember({"safetensors", "json"}).description(""));
    app.add_option("-o,--output", options.output, "File to write")->required();
  };
  return kvcc::cli::run(argc, argv, "export", "Write a codebook artifact in a format of others", kvcc::cli::kJson,
                        define, [&](const kvcc::cli::Common& common) { return export_file(options, common); });
}
