#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/core/error.h"
#include "formats/export/export.h"

namespace kvcc {
namespace {

/// GGUF's numbers of the types that are written.
enum Kind : uint32_t { kI32 = 5, kString = 8, kArray = 9, kI64 = 11, kF64 = 12 };
constexpr uint32_t kVersion = 3, kF32Tensor = 0;
constexpr size_t kAlignment = 32;
constexpr double kExact = 1 << 24;  ///< up to here F32 holds every whole number

template <typename T>
void put(std::string& to, T number) {
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void put_text(std::string& to, std::string_view text) {
  put<uint64_t>(to, text.size());
  to += text;
}

void put_text_entry(std::string& to, std::string_view key, std::string_view text) {
  put_text(to, key);
  put<uint32_t>(to, kString);
  put_text(to, text);
}

/// Whole numbers and floats by their own type; every other list as text.
void put_entry(std::string& to, const std::string& key, const TreeValue& value) {
  const bool scalar = value.shape.empty();
  if (scalar && value.type == Element::i64) {
    put_text(to, key);
    put<uint32_t>(to, kI64);
    to += value.bytes;
  } else if (scalar && value.type == Element::f64) {
    put_text(to, key);
    put<uint32_t>(to, kF64);
    to += value.bytes;
  } else if (value.type == Element::i32 && value.shape.size() == 1) {
    put_text(to, key);
    put<uint32_t>(to, kArray);
    put<uint32_t>(to, kI32);
    put<uint64_t>(to, value.bytes.size() / sizeof(int32_t));
    to += value.bytes;
  } else {
    put_text_entry(to, key, attribute_text(value));
  }
}

template <typename T>
std::vector<float> exact(const TreeValue& value, const std::string& path) {
  std::vector<float> numbers;
  for (const T number : array_of<T>(value)) {
    const float as_float = static_cast<float>(number);
    const bool same = std::is_integral_v<T> ? std::fabs(static_cast<double>(number)) <= kExact
                                            : std::isnan(static_cast<double>(number)) ||
                                                  static_cast<double>(as_float) == static_cast<double>(number);
    if (!same) {
      throw Error(ErrorKind::failed, path, fmt::format("{} is no f32", number), "numbers that GGUF's F32 holds exactly",
                  "--to safetensors or npz keep every type");
    }
    numbers.push_back(as_float);
  }
  return numbers;
}

std::string f32_bytes(const TreeValue& value, const std::string& path) {
  const auto bytes = [](const std::vector<float>& numbers) {
    return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  };
  switch (value.type) {
    case Element::u8:
      return bytes(exact<uint8_t>(value, path));
    case Element::u16:
      return bytes(exact<uint16_t>(value, path));
    case Element::u32:
      return bytes(exact<uint32_t>(value, path));
    case Element::u64:
      return bytes(exact<uint64_t>(value, path));
    case Element::i8:
      return bytes(exact<int8_t>(value, path));
    case Element::i16:
      return bytes(exact<int16_t>(value, path));
    case Element::i32:
      return bytes(exact<int32_t>(value, path));
    case Element::i64:
      return bytes(exact<int64_t>(value, path));
    case Element::f64:
      return bytes(exact<double>(value, path));
    case Element::f32:
    case Element::text:
      break;
  }
  return value.bytes;
}

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Rows of `width` bytes: those of channel j D/2 + i go to 2 i + j, for every head.
std::string interleaved(const std::string& bytes, size_t channels, size_t width) {
  std::string out(bytes.size(), '\0');
  const size_t head = channels * width, half = channels / 2;
  for (size_t base = 0; base + head <= bytes.size(); base += head) {
    for (size_t i = 0; i < half; ++i) {
      for (size_t j = 0; j < 2; ++j) bytes.copy(&out[base + (2 * i + j) * width], width, base + (j * half + i) * width);
    }
  }
  return out;
}

}  // namespace

bool gguf_interleaves_keys(const std::string& architecture) {
  // METHODS.md, 10. A test compares this with the table of architectures; latent attention (deepseek) has no rows a
  // head.
  for (const char* name : {"llama", "mistral", "mixtral", "smollm3", "granite"}) {
    if (architecture == name) return true;
  }
  for (const char* name :
       {"qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3", "gemma3_text", "phi3", "olmo2", "glm4", "lfm2"}) {
    if (architecture == name) return false;
  }
  throw bad_input("architecture " + architecture, "whether its GGUF files permute rows of keys is not known here",
                  "llama, mistral, mixtral, smollm3, granite, qwen2, qwen3, qwen3_moe, gemma2, gemma3, phi3, olmo2, "
                  "glm4 or lfm2",
                  "--to safetensors, npz, json and header keep the artifact's own order");
}

Tree keys_as_in_gguf(Tree tree, const Codebook& codebook) {
  const ModelInfo& model = codebook.model;
  const bool permute = gguf_interleaves_keys(model.architecture) && model.rope.kind == "half-split";
  auto& about = tree["/export"].attributes;
  if (!permute) {
    about["channel_permutation"] = text_value("none");
    return tree;
  }
  if (model.rope.rotary_dim != model.shape.head_dim) {
    throw bad_input("architecture " + model.architecture,
                    fmt::format("{} rotary channels of {}", model.rope.rotary_dim, model.shape.head_dim),
                    "all of them: how GGUF files order a part is not known here");
  }
  for (auto& [path, object] : tree) {
    if (!path.starts_with("/key/") || !object.dataset) continue;
    const auto axes = object.attributes.find("axes");
    if (axes == object.attributes.end() || axes->second.bytes != "layer,head,channel") continue;
    object.value.bytes =
        interleaved(object.value.bytes, static_cast<size_t>(model.shape.head_dim), element_bytes(object.value.type));
  }
  tree["/model"].attributes["rope_kind"] = text_value("interleaved");
  about["channel_layout"] = text_value("interleaved");
  about["channel_permutation"] = text_value("key channel 2 i + j of a head is channel j D/2 + i of the artifact");
  return tree;
}

std::string tree_to_gguf(const Tree& tree) {
  std::string metadata;
  const auto named = named_attributes(tree);
  const auto attribute = [&](const std::string& name) {
    const auto it = std::find_if(named.begin(), named.end(), [&](const auto& entry) { return entry.first == name; });
    return it == named.end() ? std::string() : attribute_text(*it->second);
  };
  put_text_entry(metadata, "general.architecture", attribute("model.architecture"));
  put_text_entry(metadata, "general.type", "kvcc-codebook");
  put_text_entry(metadata, "general.name", attribute("model.name"));
  for (const auto& [name, value] : named) put_entry(metadata, "kvcc." + name, *value);

  std::string table, data;
  uint64_t tensors = 0;
  for (const auto& [path, object] : tree) {
    if (!object.dataset) continue;
    const std::vector<int64_t>& shape = object.value.shape;
    if (shape.size() > 4 || std::find(shape.begin(), shape.end(), 0) != shape.end()) {
      throw Error(ErrorKind::failed, path, fmt::format("shape [{}]", fmt::join(shape, ", ")),
                  "at most 4 dimensions, none of 0, in GGUF", "--to safetensors or npz");
    }
    ++tensors;
    put_text(table, path.substr(1));
    put<uint32_t>(table, static_cast<uint32_t>(std::max<size_t>(1, shape.size())));
    if (shape.empty()) put<uint64_t>(table, 1);
    for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent) {  // GGUF: innermost first
      put<uint64_t>(table, static_cast<uint64_t>(*extent));
    }
    put<uint32_t>(table, kF32Tensor);
    put<uint64_t>(table, data.size());
    data += f32_bytes(object.value, path);
    data.resize(padded(data.size()), '\0');
  }
  std::string file = "GGUF";
  put<uint32_t>(file, kVersion);
  put<uint64_t>(file, tensors);
  put<uint64_t>(file, named.size() + 3);
  file += metadata;
  file += table;
  file.resize(padded(file.size()), '\0');
  return file + data;
}

}  // namespace kvcc
