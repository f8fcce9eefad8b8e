#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "formats/core/error.h"
#include "formats/core/json.h"
#include "formats/weights/architecture.h"
#include "formats/weights/block_formats.h"
#include "formats/weights/config.h"
#include "formats/weights/model_sources.h"
#include "formats/weights/packed_tensors.h"
#include "formats/weights/safetensors_file.h"
#include "formats/weights/wrappers.h"

namespace kvcc {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kMostIndex = 64 << 20;  // bytes; an index of 100,000 tensors has 10 MB
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string below(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// tensor name -> shard file name
std::map<std::string, std::string> read_index(const std::string& path) {
  std::map<std::string, std::string> shards;
  const json index = read_json<json>(path, kMostIndex);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    throw bad_input(path, "no weight_map", "an object of tensor names and shard files");
  }
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) throw bad_input(path, "the shard of " + name + " is not a string");
    const std::string shard = file.get<std::string>();
    if (shard.empty() || shard.find('/') != std::string::npos || shard.find('\0') != std::string::npos ||
        shard == ".." || shard == ".") {
      throw bad_input(path, "shard \"" + shard + "\" of " + name, "the name of a file beside the index");
    }
    shards[name] = shard;
  }
  return shards;
}

// Opens the shards in name order, after checking that all of them are there.
std::vector<SafetensorsFile> open_shards(const std::string& folder) {
  std::vector<SafetensorsFile> files;
  if (!is_file(below(folder, kIndex))) {
    if (!is_file(below(folder, kSingle))) {
      throw bad_input(folder, "no weights", std::string(kSingle) + " or " + kIndex,
                      "convert .bin files with transformers' save_pretrained");
    }
    files.emplace_back(below(folder, kSingle));
    return files;
  }
  const std::string index_path = below(folder, kIndex);
  const std::map<std::string, std::string> index = read_index(index_path);
  std::set<std::string> names;
  for (const auto& [tensor, shard] : index) names.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!is_file(below(folder, name))) missing.push_back(name);
  }
  if (!missing.empty()) {
    throw bad_input(
        folder,
        std::to_string(missing.size()) + " of " + std::to_string(names.size()) + " shards missing: " + some_of(missing),
        "every file that " + std::string(kIndex) + " names", "fetch the missing files");
  }
  for (const std::string& name : names) files.emplace_back(below(folder, name));
  std::map<std::string, std::set<std::string>> holds;
  for (const SafetensorsFile& file : files) {
    for (const SafeTensor& tensor : file.tensors())
      holds[fs::path(file.path()).filename().string()].insert(tensor.name);
  }
  for (const auto& [tensor, shard] : index) {
    if (!holds[shard].count(tensor)) {
      throw bad_input(below(folder, shard), "no tensor " + tensor,
                      "the tensors that " + std::string(kIndex) + " puts there");
    }
  }
  return files;
}

/// A tensor and the file that has it.
struct Located {
  const SafetensorsFile* file;
  const SafeTensor* tensor;
};

class SafetensorsSource : public TensorSource {
 public:
  /// `parts`, by the decoder's names, and `packed` point into `files`.
  SafetensorsSource(std::vector<SafetensorsFile> files, std::map<std::string, Located> parts,
                    const std::vector<ExpectedTensor>& expected, std::map<std::string, PackedTensor> packed)
      : files_(std::move(files)), packed_(std::move(packed)), parts_(std::move(parts)) {
    for (const auto& [name, tensor] : packed_) infos_.push_back({name, tensor.shape, tensor.type});
    for (const ExpectedTensor& want : expected) {
      if (packed_.contains(want.hf)) continue;
      const SafeTensor& tensor = *part(want.hf).tensor;
      infos_.push_back({want.hf, tensor.shape, *tensor.type});
    }
    std::sort(infos_.begin(), infos_.end(), [](auto& a, auto& b) { return name_less(a.name, b.name); });
  }

  const std::vector<TensorInfo>& tensors() const override { return infos_; }

  void read(const std::string& name, std::span<float> out) const override {
    if (const auto it = packed_.find(name); it != packed_.end()) {
      const PackedTensor& tensor = it->second;
      if (static_cast<int64_t>(out.size()) != tensor.shape[0] * tensor.shape[1]) {
        throw Error(ErrorKind::failed, "tensor " + name, "a buffer of " + std::to_string(out.size()) + " values");
      }
      return tensor.read(folder() + ": tensor " + name, out);
    }
    const auto& [file, tensor] = part(name);
    const size_t elements = tensor->bytes.size() / static_cast<size_t>(block_format(*tensor->type).bytes);
    if (out.size() != elements) {
      throw Error(ErrorKind::failed, file->path() + ": tensor " + name,
                  "a buffer of " + std::to_string(out.size()) + " values", std::to_string(elements));
    }
    dequantize(*tensor->type, tensor->bytes, out);
  }

  std::span<const std::byte> raw(const std::string& name) const override {
    if (packed_.contains(name)) return {};
    const SafeTensor* tensor = part(name).tensor;
    const auto bytes = static_cast<uintptr_t>(block_format(*tensor->type).bytes);
    if (reinterpret_cast<uintptr_t>(tensor->bytes.data()) % bytes != 0) return {};  // the format allows odd offsets
    return tensor->bytes;
  }

  void release() const override {
    for (const SafetensorsFile& file : files_) file.release();
  }

  void check_unchanged(bool name_too) const override {
    for (const SafetensorsFile& file : files_) file.check_unchanged(name_too);
  }

 private:
  const Located& part(const std::string& name) const {
    const auto it = parts_.find(name);
    if (it == parts_.end()) throw bad_input(folder(), "no tensor " + name);
    return it->second;
  }
  std::string folder() const { return fs::path(files_.front().path()).parent_path().string(); }

  std::vector<SafetensorsFile> files_;
  std::map<std::string, PackedTensor> packed_;
  std::map<std::string, Located> parts_;
  std::vector<TensorInfo> infos_;
};

}  // namespace

ModelFiles open_directory_model(const std::string& path) {
  const std::string config_path = below(path, "config.json");
  if (!is_file(config_path)) {
    throw bad_input(path, "no config.json", "a Hugging Face model directory or a .gguf file");
  }
  ModelFiles files;
  files.path = path;
  files.config = config_from_json(config_path);
  std::vector<SafetensorsFile> shards = open_shards(path);
  std::map<std::string, Located> parts;
  std::map<std::string, const SafeTensor*> tensors;
  int64_t images = 0;
  for (const SafetensorsFile& shard : shards) {
    files.weight_files.push_back(shard.path());
    for (const SafeTensor& tensor : shard.tensors()) {
      const std::string name = files.config.wrapper.empty() ? tensor.name : text_tensor(tensor.name);
      if (name.empty()) {
        ++images;
        continue;
      }
      const auto [it, added] = parts.emplace(name, Located{&shard, &tensor});
      if (!added) {
        throw bad_input(shard.path() + ": tensor " + tensor.name, "it is in " + it->second.file->path() + " too");
      }
      tensors[name] = &tensor;
    }
  }
  if (!files.config.wrapper.empty()) {
    files.left_out = fmt::format("the text decoder ({}) of {}; {} tensors of images are left out",
                                 files.config.architecture, files.config.wrapper, images);
    // What its configuration says of the head is not what the files hold in all of them (transformers looks as well).
    if (tensors.contains("lm_head.weight")) files.config.tied_embeddings = false;
  }
  const Architecture& architecture = find_architecture(files.config.architecture, config_path);
  const std::vector<ExpectedTensor> expected = expected_tensors(architecture, files.config);
  std::map<std::string, PackedTensor> packed = find_packed(path, read_packing(config_path), expected, tensors);
  std::set<const SafeTensor*> in_packed;
  std::vector<FoundTensor> found;
  for (const auto& [name, tensor] : packed) {
    in_packed.insert({tensor.values, tensor.scales, tensor.zeros, tensor.order});
    found.push_back({name, tensor.shape, ""});
  }
  for (const auto& [name, tensor] : tensors) {
    if (in_packed.contains(tensor)) continue;
    const std::string bad = tensor->type ? "" : tensor->dtype + " (kvcc reads F32, F16 and BF16)";
    found.push_back({name, tensor->shape, bad});
  }
  check_tensors(path, architecture, files.config, expected, false, found);
  files.tensors = std::make_unique<SafetensorsSource>(std::move(shards), std::move(parts), expected, std::move(packed));

  TokenizerSource& tokenizer = files.tokenizer;
  const std::string json_path = below(path, "tokenizer.json"), settings = below(path, "tokenizer_config.json");
  tokenizer.place = path;
  const std::string sentencepiece = below(path, "tokenizer.model"), added = below(path, "added_tokens.json");
  if (is_file(json_path)) tokenizer.json_path = tokenizer.place = json_path;
  if (is_file(sentencepiece)) tokenizer.sentencepiece_path = sentencepiece;
  if (tokenizer.json_path.empty() && is_file(sentencepiece)) tokenizer.place = sentencepiece;
  if (is_file(added)) tokenizer.added_json_path = added;
  if (is_file(settings)) tokenizer.config_json_path = settings;
  tokenizer.bos_id = files.config.bos_id;
  tokenizer.eos_id = files.config.eos_id;
  return files;
}

}  // namespace kvcc
