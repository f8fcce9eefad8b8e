#include <algorithm>
#include <map>

#include "formats/core/error.h"
#include "formats/weights/architecture.h"
#include "formats/weights/block_formats.h"
#include "formats/weights/config.h"
#include "formats/weights/gguf_file.h"
#include "formats/weights/model_sources.h"

namespace kvcc {
namespace {

class GgufSource : public TensorSource {
 public:
  GgufSource(GgufFile file, const std::vector<ExpectedTensor>& expected) : file_(std::move(file)) {
    std::map<std::string, const GgufTensor*> by_name;
    for (const GgufTensor& tensor : file_.tensors()) by_name[tensor.name] = &tensor;
    for (const ExpectedTensor& want : expected) {
      const GgufTensor* tensor = by_name.at(want.gguf);
      infos_.push_back({want.hf, want.shape, tensor->type});
      parts_[want.hf] = {tensor, want.interleaved_heads};
    }
    std::sort(infos_.begin(), infos_.end(), [](auto& a, auto& b) { return name_less(a.name, b.name); });
  }

  const std::vector<TensorInfo>& tensors() const override { return infos_; }

  void read(const std::string& name, std::span<float> out) const override {
    const auto& [tensor, heads] = part(name);
    const std::vector<int64_t>& shape = tensor->shape;
    const size_t row = shape.size() == 2 ? static_cast<size_t>(shape[1]) : 1, rows = static_cast<size_t>(shape[0]);
    if (out.size() != row * rows) {
      throw Error(ErrorKind::failed, file_.path() + ": tensor " + name,
                  "a buffer of " + std::to_string(out.size()) + " values", std::to_string(row * rows));
    }
    if (heads == 0) return dequantize(tensor->type, tensor->bytes, out);
    // File row h D + 2 i + j is row h D + j D/2 + i of the half-split order.
    const size_t head_dim = rows / static_cast<size_t>(heads), row_bytes = tensor->bytes.size() / rows;
    for (size_t r = 0; r < rows; ++r) {
      const size_t h = r / head_dim, within = r % head_dim, i = within / 2, j = within % 2;
      const size_t target = h * head_dim + j * (head_dim / 2) + i;
      dequantize(tensor->type, tensor->bytes.subspan(r * row_bytes, row_bytes), out.subspan(target * row, row));
    }
  }

  std::span<const std::byte> raw(const std::string& name) const override {
    const auto& [tensor, heads] = part(name);
    const BlockFormat& format = block_format(tensor->type);
    if (heads != 0 || format.values != 1) return {};
    if (reinterpret_cast<uintptr_t>(tensor->bytes.data()) % static_cast<uintptr_t>(format.bytes) != 0) return {};
    return tensor->bytes;
  }

  void check_unchanged(bool name_too) const override { file_.check_unchanged(name_too); }

 private:
  struct Part {
    const GgufTensor* tensor;
    int64_t heads;
  };
  const Part& part(const std::string& name) const {
    const auto it = parts_.find(name);
    if (it == parts_.end()) throw bad_input(file_.path(), "no tensor " + name);
    return it->second;
  }

  GgufFile file_;
  std::vector<TensorInfo> infos_;
  std::map<std::string, Part> parts_;
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
  if (const auto add = file.boolean("tokenizer.ggml.add_bos_token")) source.gguf_add_bos = *add ? 1 : 0;
  source.bos_id = file.integer("tokenizer.ggml.bos_token_id").value_or(-1);
  source.eos_id = file.integer("tokenizer.ggml.eos_token_id").value_or(-1);
  source.place = file.path();
  return source;
}

}  // namespace

ModelFiles open_gguf_model(const std::string& path) {
  GgufFile file(path);
  ModelFiles files;
  files.path = path;
  files.weight_files = {path};
  files.config = config_from_gguf(file);
  files.tokenizer = tokenizer_source(file);
  const Architecture& architecture = find_architecture(files.config.architecture, path);
  const std::vector<ExpectedTensor> expected = expected_tensors(architecture, files.config);
  std::vector<FoundTensor> found;
  for (const GgufTensor& tensor : file.tensors()) found.push_back({tensor.name, tensor.shape, ""});
  check_tensors(path, architecture, files.config, expected, true, found);
  files.tensors = std::make_unique<GgufSource>(std::move(file), expected);
  return files;
}

}  // namespace kvcc
