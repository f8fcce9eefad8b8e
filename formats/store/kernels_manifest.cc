#include "formats/store/kernels_manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/store/elf.h"
#include "formats/store/model_json.h"

namespace kvcc {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kMostBytes = 64 << 20;

ordered_json launch_json(const KernelLaunch& launch) {
  ordered_json document;
  document["block"] = launch.block;
  document["tokens_per_block"] = launch.tokens_per_block;
  document["splits"] = launch.splits;
  document["grid"] = launch.grid;
  document["stage"] = launch.stage;
  document["when"] = launch.when;
  if (launch.dynamic_shared_bytes >= 0) document["dynamic_shared_bytes"] = launch.dynamic_shared_bytes;
  return document;
}

ordered_json entry_json(const KernelEntry& entry) {
  ordered_json arguments = ordered_json::array();
  for (const KernelArgument& argument : entry.arguments) {
    arguments.push_back({{"name", argument.name}, {"type", argument.type}, {"shape", argument.shape}});
  }
  ordered_json document;
  document["name"] = entry.name;
  document["symbol"] = entry.symbol;
  document["family"] = entry.family;
  document["spec"] = entry.spec;
  document["arch"] = entry.arch;
  document["source"] = entry.source;
  document["cubin"] = entry.cubin;
  document["ptx"] = entry.ptx;
  if (entry.arch == kCpuArch) {
    document["library"] = entry.library;
    document["instruction_sets"] = entry.instruction_sets;
  }
  document["registers"] = entry.registers;
  document["spill_bytes"] = entry.spill_bytes;
  document["shared_bytes"] = entry.shared_bytes;
  if (entry.min_blocks > 0) document["min_blocks"] = entry.min_blocks;
  document["launch"] = launch_json(entry.launch);
  document["arguments"] = std::move(arguments);
  return document;
}

/// Nothing outside the folder is ever opened.
void check_name(const std::string& name, const std::string& place) {
  const std::filesystem::path path(name);
  const bool leaves = std::find(path.begin(), path.end(), "..") != path.end();
  if (name.empty() || path.is_absolute() || leaves || name.find('\0') != std::string::npos) {
    throw bad_input(place, fmt::format("file '{}'", name), "a name inside the folder");
  }
}

/// A count: a whole number from 0.
int json_count(const ordered_json& document, const char* name, const std::string& place) {
  const int number = json_member<int>(document, name, place);
  if (number < 0) throw bad_input(place, fmt::format("'{}' is {}", name, number), "0 or more");
  return number;
}

KernelEntry entry_from_json(const ordered_json& document, const std::string& place) {
  KernelEntry entry;
  entry.name = json_member<std::string>(document, "name", place);
  const std::string where = place + ": " + entry.name;
  entry.symbol = json_member<std::string>(document, "symbol", where);
  entry.family = json_member<std::string>(document, "family", where);
  entry.spec = json_member<ordered_json>(document, "spec", where);
  entry.arch = json_member<std::string>(document, "arch", where);
  entry.source = json_member<std::string>(document, "source", where);
  entry.cubin = json_member<std::string>(document, "cubin", where);
  entry.ptx = json_member<std::string>(document, "ptx", where);
  if (entry.arch == kCpuArch) {  // since 1.2
    entry.library = json_member<std::string>(document, "library", where);
    entry.instruction_sets = json_member<std::vector<std::string>>(document, "instruction_sets", where);
  }
  for (const std::string& file : {entry.source, entry.cubin, entry.ptx, entry.library}) {
    if (!file.empty()) check_name(file, where);
  }
  if (!entry.spec.is_object()) throw bad_input(where, "'spec' is " + json_brief(entry.spec), "an object");
  entry.registers = json_count(document, "registers", where);
  entry.spill_bytes = json_count(document, "spill_bytes", where);
  entry.shared_bytes = json_count(document, "shared_bytes", where);
  if (document.contains("min_blocks")) entry.min_blocks = json_count(document, "min_blocks", where);  // since 1.1
  const auto launch = json_member<ordered_json>(document, "launch", where);
  entry.launch.block = json_member<std::array<int, 3>>(launch, "block", where + " launch");
  for (const int threads : entry.launch.block) {
    if (threads < 0) throw bad_input(where + " launch", fmt::format("'block' has {}", threads), "0 or more");
  }
  entry.launch.tokens_per_block = json_count(launch, "tokens_per_block", where + " launch");
  entry.launch.splits = json_member<std::string>(launch, "splits", where + " launch");
  if (launch.contains("grid")) {  // since 1.1
    entry.launch.grid = json_member<std::string>(launch, "grid", where + " launch");
    entry.launch.stage = json_count(launch, "stage", where + " launch");
    entry.launch.when = json_member<std::string>(launch, "when", where + " launch");
  }
  if (launch.contains("dynamic_shared_bytes")) {
    entry.launch.dynamic_shared_bytes = json_count(launch, "dynamic_shared_bytes", where + " launch");
  }
  for (const ordered_json& argument : json_member<std::vector<ordered_json>>(document, "arguments", where)) {
    entry.arguments.push_back({json_member<std::string>(argument, "name", where + " arguments"),
                               json_member<std::string>(argument, "type", where + " arguments"),
                               json_member<std::vector<std::string>>(argument, "shape", where + " arguments")});
  }
  return entry;
}

ordered_json pages_json(const KernelPages& pages) {
  ordered_json document;
  document["function"] = pages.function;
  document["code_words"] = pages.code_words;
  if (!pages.head_words.empty()) document["head_words"] = pages.head_words;
  document["ranges"] = pages.ranges;
  document["csr"] = pages.csr;
  document["classes"] = pages.classes;
  document["tail"] = pages.tail;
  document["default_capacity"] = pages.default_capacity;
  return document;
}

KernelPages pages_from_json(const ordered_json& document, const std::string& where) {
  KernelPages pages;
  pages.function = json_member<std::string>(document, "function", where);
  pages.code_words = json_member<std::vector<int32_t>>(document, "code_words", where);
  if (document.contains("head_words")) {
    pages.head_words = json_member<std::vector<std::vector<uint32_t>>>(document, "head_words", where);
  }
  pages.ranges = json_count(document, "ranges", where);
  pages.csr = json_count(document, "csr", where);
  pages.classes = json_count(document, "classes", where);
  pages.tail = json_count(document, "tail", where);
  pages.default_capacity = json_count(document, "default_capacity", where);
  return pages;
}

ordered_json vectors_json(const KernelsManifest& manifest) {
  ordered_json document = {{"file", manifest.vectors_file}, {"arrays", vector_arrays()}};
  for (const auto& [tensor, vectors] : manifest.vectors) {
    document[tensor] = {
        {"head_dim", vectors.head_dim}, {"transform", vectors.transform ? 1 : 0}, {"places", vectors.places}};
  }
  return document;
}

KernelVectors vectors_from_json(const ordered_json& document, const std::string& where) {
  KernelVectors vectors;
  vectors.head_dim = json_count(document, "head_dim", where);
  vectors.transform = json_count(document, "transform", where) != 0;
  vectors.places = json_member<std::vector<std::vector<int64_t>>>(document, "places", where);
  for (const std::vector<int64_t>& layer : vectors.places) {
    if (layer.size() != vector_arrays().size()) {
      throw bad_input(where, fmt::format("'places' of {} arrays", layer.size()),
                      fmt::format("{}", vector_arrays().size()));
    }
    for (const int64_t place : layer) {
      if (place < -1) throw bad_input(where, fmt::format("'places' has {}", place), "-1 or more");
    }
  }
  return vectors;
}

void read_vectors(const ordered_json& document, const std::string& place, KernelsManifest& manifest) {
  const std::string where = place + ", vectors";
  manifest.vectors_file = json_member<std::string>(document, "file", where);
  check_name(manifest.vectors_file, where);
  if (json_member<std::vector<std::string>>(document, "arrays", where) != vector_arrays()) {
    throw bad_input(where, "other 'arrays' than those of layout vector-1",
                    fmt::format("{}", fmt::join(vector_arrays(), ", ")));
  }
  for (const char* tensor : {"key", "value"}) {
    if (!document.contains(tensor)) continue;
    manifest.vectors[tensor] =
        vectors_from_json(json_member<ordered_json>(document, tensor, where), where + " of " + tensor);
  }
}

/// What is wrong with the file of the vector codebooks.
void check_vectors(const KernelsManifest& manifest, const std::filesystem::path& root,
                   std::vector<std::string>& problems) {
  if (manifest.vectors_file.empty()) return;
  if (!manifest.files.contains(manifest.vectors_file)) {
    problems.push_back(fmt::format("vectors: file {} is not listed", manifest.vectors_file));
  }
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(root / manifest.vectors_file, error));
  if (error) return;  // missing: told of the files
  for (const auto& [tensor, vectors] : manifest.vectors) {
    for (size_t l = 0; l < vectors.places.size(); ++l) {
      for (const int64_t place : vectors.places[l]) {
        if (place < bytes) continue;
        problems.push_back(fmt::format("vectors of {}, layer {}: an array at byte {} of {}", tensor, l, place, bytes));
      }
    }
  }
}

std::string manifest_file(const std::string& folder) { return folder + "/kernels.json"; }

}  // namespace

const std::vector<std::string>& vector_arrays() {
  static const std::vector<std::string> names = {
      "head_words", "token_bits", "first_quad", "quads",       "tables",    "places",        "place",       "constant",
      "inverse",    "active",     "mean",       "active_mean", "forward",   "forward_mean",  "first_group", "groups",
      "planes",     "heads",      "slots",      "rows",        "fragments", "fragment_mean", "back"};
  return names;
}

ordered_json to_json(const KernelsManifest& manifest) {
  ordered_json document;
  document["schema_version"] = kKernelsSchema;
  document["schema_minor"] = kKernelsSchemaMinor;
  document["content_sha256"] = manifest.content_sha256;
  document["artifact"] = manifest.artifact;
  document["scheme"] = manifest.scheme;
  document["model"] = manifest.model;
  document["layout"] = manifest.layout;
  document["pages"] = ordered_json::object();
  for (const auto& [tensor, pages] : manifest.pages) document["pages"][tensor] = pages_json(pages);
  if (!manifest.vectors_file.empty()) document["vectors"] = vectors_json(manifest);
  document["tool_version"] = manifest.tool_version;
  document["nvcc_version"] = manifest.nvcc_version;
  if (!manifest.cxx_version.empty()) {
    document["cxx_version"] = manifest.cxx_version;
    document["highway_version"] = manifest.highway_version;
  }
  document["files"] = manifest.files;
  document["kernels"] = ordered_json::array();
  for (const KernelEntry& entry : manifest.kernels) document["kernels"].push_back(entry_json(entry));
  return document;
}

KernelsManifest kernels_from_json(const ordered_json& document, const std::string& place) {
  const auto version = json_member<int64_t>(document, "schema_version", place);
  if (version < 1) throw bad_input(place, fmt::format("'schema_version' is {}", version), "1 or more");
  if (version > kKernelsSchema) {
    throw bad_input(place, fmt::format("kernels format {}, this build reads up to {}", version, kKernelsSchema));
  }
  KernelsManifest manifest;
  manifest.content_sha256 = json_member<std::string>(document, "content_sha256", place);
  manifest.artifact = json_member<std::string>(document, "artifact", place);
  manifest.scheme = json_member<std::string>(document, "scheme", place);
  manifest.model = json_member<std::string>(document, "model", place);
  manifest.layout = json_member<std::string>(document, "layout", place);
  if (manifest.layout != "linear-1" && manifest.layout != "mma-1" && manifest.layout != "vector-1") {
    throw bad_input(place, fmt::format("'layout' is \"{}\"", manifest.layout), "linear-1, mma-1 or vector-1");
  }
  if (document.contains("pages")) {  // since 1.1
    for (const auto& [tensor, pages] : json_member<std::map<std::string, ordered_json>>(document, "pages", place)) {
      manifest.pages[tensor] = pages_from_json(pages, place + ", pages of " + tensor);
    }
  }
  if (manifest.layout == "vector-1") {  // since 1.3
    read_vectors(json_member<ordered_json>(document, "vectors", place), place, manifest);
  }
  manifest.tool_version = json_member<std::string>(document, "tool_version", place);
  manifest.nvcc_version = json_member<std::string>(document, "nvcc_version", place);
  if (document.contains("cxx_version")) {  // since 1.2
    manifest.cxx_version = json_member<std::string>(document, "cxx_version", place);
    manifest.highway_version = json_member<std::string>(document, "highway_version", place);
  }
  manifest.files = json_member<std::map<std::string, std::string>>(document, "files", place);
  for (const auto& [name, sha256] : manifest.files) {
    check_name(name, place + ": files");
    if (sha256.size() != 64 || sha256.find_first_not_of("0123456789abcdef") != std::string::npos) {
      throw bad_input(place + ": files", fmt::format("the sha256 of {} is '{}'", name, sha256.substr(0, 80)),
                      "64 lower-case hexadecimal digits");
    }
  }
  for (const ordered_json& entry : json_member<std::vector<ordered_json>>(document, "kernels", place)) {
    manifest.kernels.push_back(entry_from_json(entry, place));
  }
  return manifest;
}

std::string kernels_manifest_text(const KernelsManifest& manifest) {
  return to_json(manifest).dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

KernelsManifest read_kernels_manifest(const std::string& folder) {
  const std::string path = manifest_file(folder);
  return kernels_from_json(read_json<ordered_json>(path, kMostBytes), path);
}

std::vector<std::string> validate_kernels(const std::string& folder) {
  const KernelsManifest manifest = read_kernels_manifest(folder);
  std::vector<std::string> problems;
  const std::filesystem::path root = folder;
  for (const auto& [name, sha256] : manifest.files) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(root / name, error)) {
      problems.push_back(name + ": missing");
    } else if (sha256_file((root / name).string()) != sha256) {
      problems.push_back(name + ": its sha256 is not the manifest's");
    } else if (name.ends_with(".cubin") || name.ends_with(".so")) {
      const std::string fault = elf_fault(read_text_file((root / name).string()));
      if (!fault.empty()) problems.push_back(name + ": " + fault);
    }
  }
  check_vectors(manifest, root, problems);
  std::set<std::pair<std::string, std::string>> seen;
  for (const KernelEntry& entry : manifest.kernels) {
    const std::string what = fmt::format("kernel {} ({})", entry.name, entry.arch);
    if (!seen.insert({entry.name, entry.arch}).second) problems.push_back(what + ": listed twice");
    if (entry.spill_bytes > 0) problems.push_back(fmt::format("{}: spills {} bytes", what, entry.spill_bytes));
    for (const std::string& file : {entry.source, entry.cubin, entry.ptx, entry.library}) {
      if (!file.empty() && !manifest.files.contains(file)) {
        problems.push_back(fmt::format("{}: file {} is not listed", what, file));
      }
    }
  }
  return problems;
}

}  // namespace kvcc
