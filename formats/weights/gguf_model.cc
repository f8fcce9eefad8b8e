#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "formats/core/error.h"
#include "formats/weights/architecture.h"
#include "formats/weights/block_formats.h"
#include "formats/weights/config.h"
#include "formats/weights/gguf_file.h"
#include "formats/weights/model_sources.h"

namespace kvcc {
namespace {

/// Newer files of latent attention have attn_kv_b as two tensors, of one matrix a head: of keys [heads, rank, nope],
/// which is transposed, and of values [heads, value, rank].
struct SplitLatent {
  const GgufTensor* key = nullptr;
  const GgufTensor* value = nullptr;
  explicit operator bool() const { return key && value; }
};

SplitLatent split_latent(const GgufFile& file, const ExpectedTensor& want, const DecoderConfig& c) {
  if (want.part != Part::latent_up || file.find(want.gguf)) return {};
  const std::string stem = "blk." + std::to_string(want.layer) + ".attn_";
  const SplitLatent split{file.find(stem + "k_b.weight"), file.find(stem + "v_b.weight")};
  const std::vector<int64_t> key{c.query_heads, c.value_head_dim, c.latent.nope_dim};
  const std::vector<int64_t> value{c.query_heads, c.latent.value_dim, c.value_head_dim};
  if (!split || split.key->shape != key || split.value->shape != value) return {};
  return split;
}

class GgufSource : public TensorSource {
 public:
  GgufSource(GgufFile file, const std::vector<ExpectedTensor>& expected, const DecoderConfig& config)
      : file_(std::move(file)), config_(config) {
    std::map<std::string, const GgufTensor*> by_name;
    for (const GgufTensor& tensor : file_.tensors()) by_name[tensor.name] = &tensor;
    for (const ExpectedTensor& want : expected) {
      TensorPart part{nullptr, want.interleaved_heads, std::max<int64_t>(want.expert, 0), 1, want.shape, {}};
      if (want.expert >= 0) part.slices = config.experts.count;
      part.split = split_latent(file_, want, config);
      part.tensor = part.split ? part.split.key : by_name.at(want.gguf);
      infos_.push_back({want.hf, want.shape, part.tensor->type});
      parts_[want.hf] = std::move(part);
    }
    std::sort(infos_.begin(), infos_.end(), [](auto& a, auto& b) { return name_less(a.name, b.name); });
  }

  const std::vector<TensorInfo>& tensors() const override { return infos_; }

  void read(const std::string& name, std::span<float> out) const override {
    const TensorPart& from = part(name);
    size_t elements = 1;
    for (const int64_t extent : from.shape) elements *= static_cast<size_t>(extent);
    if (out.size() != elements) {
      throw Error(ErrorKind::failed, file_.path() + ": tensor " + name,
                  "a buffer of " + std::to_string(out.size()) + " values", std::to_string(elements));
    }
    if (from.split) return read_split(from.split, out);
    const std::span<const std::byte> bytes = from.bytes();
    if (from.heads == 0) return dequantize(from.tensor->type, bytes, out);
    // File row h D + 2 i + j is row h D + j D/2 + i of the half-split order.
    const size_t rows = static_cast<size_t>(from.shape[0]), row = elements / rows;
    const size_t head_dim = rows / static_cast<size_t>(from.heads), row_bytes = bytes.size() / rows;
    for (size_t r = 0; r < rows; ++r) {
      const size_t h = r / head_dim, within = r % head_dim, i = within / 2, j = within % 2;
      const size_t target = h * head_dim + j * (head_dim / 2) + i;
      dequantize(from.tensor->type, bytes.subspan(r * row_bytes, row_bytes), out.subspan(target * row, row));
    }
  }

  std::span<const std::byte> raw(const std::string& name) const override {
    const TensorPart& from = part(name);
    const BlockFormat& format = block_format(from.tensor->type);
    if (from.heads != 0 || from.split || format.values != 1) return {};
    const std::span<const std::byte> bytes = from.bytes();
    if (reinterpret_cast<uintptr_t>(bytes.data()) % static_cast<uintptr_t>(format.bytes) != 0) return {};
    return bytes;
  }

  void release() const override { file_.release(); }

  void check_unchanged(bool name_too) const override { file_.check_unchanged(name_too); }

 private:
  struct TensorPart {
    const GgufTensor* tensor = nullptr;
    int64_t heads = 0;              ///< whose rows are interleaved; 0: plain order
    int64_t slice = 0, slices = 1;  ///< of the tensor's outermost extent
    std::vector<int64_t> shape;
    SplitLatent split;
    std::span<const std::byte> bytes() const {
      const size_t each = tensor->bytes.size() / static_cast<size_t>(slices);
      return tensor->bytes.subspan(static_cast<size_t>(slice) * each, each);
    }
  };

  /// Rows of each head: keys without rotation, then values.
  void read_split(const SplitLatent& split, std::span<float> out) const {
    const auto heads = static_cast<size_t>(config_.query_heads), rank = static_cast<size_t>(config_.value_head_dim);
    const auto nope = static_cast<size_t>(config_.latent.nope_dim), dim = static_cast<size_t>(config_.latent.value_dim);
    std::vector<float> key(heads * rank * nope), value(heads * dim * rank);
    dequantize(split.key->type, split.key->bytes, key);
    dequantize(split.value->type, split.value->bytes, value);
    for (size_t h = 0; h < heads; ++h) {
      float* rows = out.data() + h * (nope + dim) * rank;
      for (size_t r = 0; r < rank; ++r) {
        for (size_t n = 0; n < nope; ++n) rows[n * rank + r] = key[(h * rank + r) * nope + n];
      }
      std::copy_n(value.data() + h * dim * rank, dim * rank, rows + nope * rank);
    }
  }

  const TensorPart& part(const std::string& name) const {
    const auto it = parts_.find(name);
    if (it == parts_.end()) throw bad_input(file_.path(), "no tensor " + name);
    return it->second;
  }

  GgufFile file_;
  DecoderConfig config_;
  std::vector<TensorInfo> infos_;
  std::map<std::string, TensorPart> parts_;
};

TokenizerSource tokenizer_source(const GgufFile& file) {
  TokenizerSource source;
  source.gguf_model = file.text("tokenizer.ggml.model").value_or("");
  source.gguf_pre = file.text("tokenizer.ggml.pre").value_or("");
  source.gguf_tokens = file.texts("tokenizer.ggml.tokens");
  source.gguf_merges = file.texts("tokenizer.ggml.merges");
  for (const int64_t type : file.integers("tokenizer.ggml.token_type")) {
    source.gguf_token_types.push_back(static_cast<int32_t>(std::clamp<int64_t>(type, 0, INT32_MAX)));
  }
  source.gguf_scores = file.numbers("tokenizer.ggml.scores");
  for (const int64_t byte : file.integers("tokenizer.ggml.precompiled_charsmap")) {
    source.gguf_charsmap += static_cast<char>(byte);
  }
  const auto flag = [&](const char* key) -> int64_t { return file.boolean(key).value_or(false); };
  const auto three = [&](const char* key) { return file.value(key) ? flag(key) : -1; };
  source.gguf_add_bos = three("tokenizer.ggml.add_bos_token");
  source.gguf_space_prefix = three("tokenizer.ggml.add_space_prefix");
  source.gguf_removes_spaces = three("tokenizer.ggml.remove_extra_whitespaces");
  source.bos_id = file.integer("tokenizer.ggml.bos_token_id").value_or(-1);
  source.eos_id = file.integer("tokenizer.ggml.eos_token_id").value_or(-1);
  source.place = file.path();
  return source;
}

/// Large models come in parts, NAME-00001-of-00003.gguf, of which the first has the metadata. Joins the others to it;
/// returns the paths of all.
std::vector<std::string> join_parts(GgufFile& file) {
  const int64_t parts = file.integer("split.count").value_or(1);
  std::vector<std::string> paths{file.path()};
  if (parts <= 1) return paths;
  const auto suffix = [&](int64_t part) {
    char text[32];
    std::snprintf(text, sizeof text, "-%05d-of-%05d.gguf", static_cast<int>(part), static_cast<int>(parts));
    return std::string(text);
  };
  const std::string& first = file.path();
  if (parts > 65535 || file.integer("split.no").value_or(0) != 0 || !first.ends_with(suffix(1))) {
    throw bad_input(first,
                    "part " + std::to_string(file.integer("split.no").value_or(0) + 1) + " of " +
                        std::to_string(parts) + " under this name",
                    "the first part, NAME-00001-of-NNNNN.gguf, with the others beside it");
  }
  const std::string stem = first.substr(0, first.size() - suffix(1).size());
  std::vector<std::string> missing;
  for (int64_t part = 2; part <= parts; ++part) {
    paths.push_back(stem + suffix(part));
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(paths.back(), ignored)) missing.push_back(paths.back());
  }
  if (!missing.empty()) {
    throw bad_input(first, "parts missing: " + some_of(missing), "all " + std::to_string(parts) + " parts");
  }
  for (int64_t part = 2; part <= parts; ++part) {
    GgufFile other(paths[part - 1]);
    if (other.integer("split.no").value_or(-1) != part - 1 || other.integer("split.count").value_or(0) != parts) {
      throw bad_input(other.path(), "not part " + std::to_string(part) + " of " + std::to_string(parts));
    }
    file.join(std::move(other));
  }
  if (const auto count = file.integer("split.tensors.count");
      count && *count != static_cast<int64_t>(file.tensors().size())) {
    throw bad_input(first, std::to_string(file.tensors().size()) + " tensors in all parts", std::to_string(*count));
  }
  return paths;
}

}  // namespace

ModelFiles open_gguf_model(const std::string& path) {
  GgufFile file(path);
  ModelFiles files;
  files.path = path;
  files.weight_files = join_parts(file);
  files.config = config_from_gguf(file);
  files.tokenizer = tokenizer_source(file);
  const Architecture& architecture = find_architecture(files.config.architecture, path);
  const std::vector<ExpectedTensor> expected = expected_tensors(architecture, files.config);
  std::vector<FoundTensor> found;
  std::set<const GgufTensor*> halves;
  for (const ExpectedTensor& want : expected) {
    const SplitLatent split = split_latent(file, want, files.config);
    if (!split) continue;
    halves.insert({split.key, split.value});
    found.push_back({want.gguf, want.shape, ""});
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (!halves.contains(&tensor)) found.push_back({tensor.name, tensor.shape, ""});
  }
  check_tensors(path, architecture, files.config, expected, true, found);
  files.tensors = std::make_unique<GgufSource>(std::move(file), expected, files.config);
  return files;
}

}  // namespace kvcc
