// kvcc export: a codebook artifact for other runtimes.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/cli/output.h"
#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/json.h"
#include "formats/core/text.h"
#include "formats/export/export.h"
#include "formats/store/codebook.h"
#include "formats/store/shard.h"

namespace {

namespace fs = std::filesystem;
using kvcc::Error;
using kvcc::ErrorKind;
using kvcc::ExportedTensor;

constexpr const char* kSchemeFile = "kv_cache_scheme.json";

struct Options {
  std::string input, format, output, shard, prefix = "kvcc_codebook";
  bool per_head = false, prefix_given = false;
};

struct Export {
  std::string bytes;
  std::vector<ExportedTensor> tensors;
  std::string notes;
};

/// Names and shapes of the datasets, with the type that `dtype` gives them ("": their own).
std::vector<ExportedTensor> listing(const kvcc::Tree& tree, const std::string& dtype = "") {
  std::vector<ExportedTensor> tensors;
  for (const auto& [path, object] : tree) {
    if (!object.dataset) continue;
    const std::string type = dtype.empty() ? kvcc::element_name(object.value.type) : dtype;
    tensors.push_back({path.substr(1), type, object.value.shape});
  }
  return tensors;
}

/// Of every format what its files hold near their beginning, and other files of the kind do not.
void check_outputs(const Options& options, const std::string& scheme_file) {
  const std::string option = "--to " + options.format;
  if (options.format == "kvcb") {
    std::error_code error;
    if (!fs::is_regular_file(options.output, error) || fs::is_empty(options.output, error)) return;
    bool shard = false;
    try {
      shard = !kvcc::read_codebook(options.output).provenance.parent_sha256.empty();
    } catch (const Error&) {  // whatever it is
    }
    if (shard) return;
    throw kvcc::bad_input(options.output, "is there and no earlier result of --shard",
                          "such a result, or a name that is free", "give another name, or remove the file");
  }
  constexpr const char* kWhat = "kvcc-codebook";
  if (options.format == "safetensors") {
    kvcc::cli::check_replaced(options.output, {"{\"__metadata__\":{", kWhat}, option);
  } else if (options.format == "npz") {
    kvcc::cli::check_replaced(options.output, {"metadata.npy", kWhat}, option);
  } else if (options.format == "json") {
    kvcc::cli::check_replaced(options.output, {"{\"schema_version\":1,\"attributes\":", kWhat}, option);
  } else if (options.format == "gguf") {
    kvcc::cli::check_replaced(options.output, {"GGUF", "general.type", kWhat}, option);
  } else if (options.format == "header") {
    kvcc::cli::check_replaced(options.output, {"made by kvcc export --to header"}, option);
  } else {
    kvcc::cli::check_replaced(options.output, {"{\"__metadata__\":{", "\"export.granularity\":"}, option);
    kvcc::cli::check_replaced(scheme_file, {"\"kv_cache_scheme\":"}, option);
  }
}

Export make(const Options& options, const kvcc::Codebook& codebook, const kvcc::Tree& artifact) {
  Export out;
  kvcc::Tree tree = kvcc::describe_export(artifact, codebook);
  if (options.format == "kvcb") {
    out.bytes = kvcc::tree_to_hdf5(artifact);
    out.tensors = listing(artifact);
  } else if (options.format == "safetensors") {
    out.bytes = kvcc::tree_to_safetensors(tree);
  } else if (options.format == "json") {
    out.bytes = kvcc::tree_to_json(tree);
    out.tensors = listing(tree);
  } else if (options.format == "npz") {
    out.bytes = kvcc::tree_to_npz(tree);
  } else if (options.format == "gguf") {
    tree = kvcc::keys_as_in_gguf(std::move(tree), codebook);
    out.bytes = kvcc::tree_to_gguf(tree);
    out.tensors = listing(tree, "F32");
    const std::string how = tree["/export"].attributes["channel_permutation"].bytes;
    out.notes = how == "none" ? "channels of keys in the artifact's order" : how;
  } else if (options.format == "header") {
    out.bytes = kvcc::codebook_to_header(codebook, options.prefix, out.tensors);
  } else {
    out.bytes = kvcc::codebook_to_vllm(artifact, codebook, options.per_head);
    out.notes = fmt::format(
        "key scales bound keys after RoPE by sqrt(a^2 + b^2) of each rotary pair's ranges before it; {} holds what "
        "config.json needs",
        kSchemeFile);
  }
  return out;
}

int export_file(const Options& options, const kvcc::cli::Common& common) {
  if (options.per_head && options.format != "vllm") {
    throw Error(ErrorKind::usage, "--per-head", "without use for --to " + options.format, "--to vllm");
  }
  if (options.prefix_given && options.format != "header") {
    throw Error(ErrorKind::usage, "--prefix", "without use for --to " + options.format, "--to header");
  }
  kvcc::Codebook codebook = kvcc::read_codebook(options.input);  // refuses what is not sound
  const bool of_arrays = options.format == "safetensors" || options.format == "npz" || options.format == "json";
  if (codebook.scheme.is_vector() && !of_arrays && options.format != "kvcb") {
    throw Error(ErrorKind::usage, options.input, "scheme " + kvcc::short_name(codebook.scheme),
                "a scheme without vector codebooks, of which --to " + options.format + " knows nothing",
                "--to safetensors, npz or json");
  }
  if (codebook.scheme.is_extended() && !codebook.scheme.is_vector() && options.format != "json" &&
      options.format != "kvcb") {
    throw Error(ErrorKind::usage, options.input, "scheme " + kvcc::short_name(codebook.scheme),
                "a scheme without cap and qnorm", "readers of --to " + options.format + " know neither");
  }
  kvcc::Tree tree;
  if (options.shard.empty()) {
    const kvcc::MappedFile file(options.input);
    tree = kvcc::hdf5_to_tree(file.bytes(), options.input);
  } else {
    codebook = kvcc::shard_codebook(codebook, kvcc::parse_rank_shard(options.shard, "--shard"), options.input);
    tree = kvcc::codebook_tree(codebook);
  }
  const fs::path scheme_file = fs::path(options.output).parent_path() / kSchemeFile;
  std::vector<std::string> outputs = {options.output};
  if (options.format == "vllm") outputs.push_back(scheme_file.string());
  std::error_code error;
  for (const std::string& output : outputs) {
    if (fs::equivalent(options.input, output, error)) {
      throw Error(ErrorKind::usage, output, "is the artifact itself", "another name");
    }
  }
  if (options.format == "vllm" && fs::path(options.output).filename() == kSchemeFile) {
    throw Error(ErrorKind::usage, options.output, "is the name of the scheme beside the scales", "NAME.safetensors");
  }
  check_outputs(options, scheme_file.string());
  Export made = make(options, codebook, tree);
  kvcc::AtomicFile file(options.output);
  file.write(made.bytes);
  if (options.format == "vllm") {  // both are whole before one of them has its name
    kvcc::AtomicFile scheme(scheme_file);
    scheme.write(kvcc::vllm_cache_scheme(options.per_head));
    scheme.commit();
  }
  file.commit();
  if (options.format == "safetensors" || options.format == "vllm") {
    made.tensors = kvcc::check_safetensors(options.output);
  }
  if (options.format == "npz") made.tensors = kvcc::check_npz(options.output);
  const uint64_t size = made.bytes.size();
  if (common.json) {
    nlohmann::ordered_json document;
    document["output"] = options.output;
    document["format"] = options.format;
    document["content_sha256"] = codebook.content_sha256;
    document["bytes"] = size;
    if (options.format == "vllm") {
      document["scheme_file"] = scheme_file.string();
      document["config"] =
          kvcc::parse_json<nlohmann::ordered_json>(kvcc::vllm_cache_scheme(options.per_head), scheme_file.string());
    }
    if (!made.notes.empty()) document["notes"] = made.notes;
    for (const ExportedTensor& tensor : made.tensors) {
      document["tensors"].push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
    }
    kvcc::cli::print_json(document);
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"tensor", "type", "shape"}};
  for (const auto& tensor : made.tensors) rows.push_back({tensor.name, tensor.dtype, kvcc::shape_text(tensor.shape)});
  fmt::print("{}{}: {} tensors, {}\n", kvcc::cli::table(rows), options.output, made.tensors.size(),
             kvcc::human_bytes(size));
  if (!made.notes.empty()) fmt::print("{}\n", made.notes);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::Option* prefix = nullptr;
  const auto define = [&](CLI::App& app) {
    app.add_option("FILE", options.input, "Codebook artifact (.kvcb)")->required();
    app.add_option(
           "--to", options.format,
           "Format: safetensors, npz, json, header (C99, C++, CUDA), gguf, vllm (FP8 scales), or kvcb (with --shard)")
        ->required()
        ->check(CLI::IsMember({"safetensors", "npz", "json", "header", "gguf", "vllm", "kvcb"}).description(""));
    app.add_option("-o,--output", options.output, "File to write; with vllm kv_cache_scheme.json is written beside it")
        ->required();
    app.add_option("--shard", options.shard,
                   "RANK/RANKS, from 0: the key/value heads of one tensor-parallel rank, as 0/2 and 1/2");
    app.add_flag("--per-head", options.per_head, "vllm: one scale per KV head, not one per tensor");
    prefix = app.add_option("--prefix", options.prefix, "header: what every name begins with")->capture_default_str();
  };
  return kvcc::cli::run(argc, argv, "export", "Write a codebook artifact in a format of others", kvcc::cli::kJson,
                        define, [&](const kvcc::cli::Common& common) {
                          options.prefix_given = prefix->count() > 0;
                          return export_file(options, common);
                        });
}
