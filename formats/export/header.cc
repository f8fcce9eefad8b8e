#include <fmt/format.h>

#include <cctype>
#include <cmath>

#include "formats/core/error.h"
#include "formats/export/export.h"

namespace kvcc {
namespace {

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return text;
}

/// A string literal of C, C++ and CUDA: everything but plain ASCII in octal, which needs no encoding of the source.
std::string literal(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const bool plain = byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\' && c != '?';
    out += plain ? std::string(1, c) : fmt::format("\\{:03o}", byte);
  }
  return out + "\"";
}

/// Shortest decimal that reads back as the same float.
std::string number(float value) {
  if (std::isnan(value)) return "NAN";
  if (std::isinf(value)) return value > 0 ? "INFINITY" : "-INFINITY";
  const std::string text = fmt::format("{}", value);
  return text + (text.find_first_of(".e") == std::string::npos ? ".0f" : "f");
}
std::string number(double value) {
  const std::string text = fmt::format("{}", value);
  return text + (text.find_first_of(".e") == std::string::npos ? ".0" : "");
}
std::string number(uint16_t value) { return std::to_string(value); }
std::string number(uint8_t value) { return std::to_string(value); }

class Header {
 public:
  Header(const Codebook& codebook, std::string prefix, std::vector<ExportedTensor>& listing)
      : codebook_(codebook), prefix_(std::move(prefix)), macro_(upper(prefix_)), listing_(listing) {}

  std::string make() {
    out_ = fmt::format(
        "/* Codebooks of a key/value cache, made by kvcc export --to header (formats/spec/export-header.md). C99, C++, "
        "CUDA.\n"
        " * A value decodes as fmaf(codebook[code], scale, zero). {0}_STORAGE may be set before, for CUDA for example "
        "to\n"
        " * static __device__ const. */\n"
        "#ifndef {0}_H\n#define {0}_H\n\n#include <math.h>\n\n#ifndef {0}_STORAGE\n#define {0}_STORAGE static const\n"
        "#endif\n\n",
        macro_);
    identity();
    geometry();
    array("layer_index", "unsigned short", "U16", {codebook_.model.shape.layers}, codebook_.layer_index);
    tensor("key", codebook_.key, codebook_.model.shape.head_dim);
    tensor("value", codebook_.value, codebook_.model.shape.value_head_dim);
    return out_ + "\n#endif\n";
  }

 private:
  void define(const char* name, const std::string& value) {
    out_ += fmt::format("#define {}_{} {}\n", macro_, name, value);
  }
  void text(const char* name, const std::string& value) { define(name, literal(value)); }
  void whole(const char* name, int64_t value) { define(name, std::to_string(value)); }

  void identity() {
    const ModelInfo& model = codebook_.model;
    const Provenance& from = codebook_.provenance;
    text("FORMAT_VERSION", codebook_.format_version);
    text("CONTENT_SHA256", codebook_.content_sha256);
    text("SCHEME", to_string(codebook_.scheme));
    text("MODEL_NAME", model.name);
    text("ARCHITECTURE", model.architecture);
    text("WEIGHTS_SHA256", model.weights_sha256);
    text("DATASET", from.dataset_name);
    text("DATASET_SHA256", from.dataset_sha256);
    text("DATASET_FLAVOUR", from.dataset_flavour);
    text("TOKENIZER_SHA256", from.tokenizer_sha256);
    define("TOKENS", fmt::format("{}LL", from.tokens));
    out_ += "\n";
  }

  void geometry() {
    const ModelInfo& model = codebook_.model;
    const Scheme& scheme = codebook_.scheme;
    whole("LAYERS", model.shape.layers);
    whole("QUERY_HEADS", model.shape.query_heads);
    whole("KV_HEADS", model.shape.kv_heads);
    whole("HEAD_DIM", model.shape.head_dim);
    whole("VALUE_HEAD_DIM", model.shape.value_head_dim);
    define("ROPE_THETA", number(model.rope.theta));
    out_ += "/* 0: half-split, rotary pairs (i, i + ROPE_ROTARY_DIM/2); 1: interleaved, pairs (2i, 2i + 1) */\n";
    whole("ROPE_INTERLEAVED", model.rope.kind == "interleaved");
    whole("ROPE_ROTARY_DIM", model.rope.rotary_dim);
    text("ROPE_SCALING", model.rope.scaling);
    text("ROPE_SCALING_JSON", model.rope.scaling_json);
    whole("QK_NORM", model.qk_norm);
    out_ += "/* of the projections; -1: unknown */\n";
    whole("ATTENTION_BIAS", model.attention_bias ? *model.attention_bias : -1);
    out_ += "/* 1: keys are quantised before RoPE; 0: after it */\n";
    whole("KEY_PRE_ROPE", scheme.key.site == Site::pre_rope);
    out_ += "/* 1: static scale and zero per channel, below; 0: online, per token over all heads of a layer */\n";
    whole("KEY_PER_CHANNEL", scheme.key.axis == Axis::channel);
    whole("VALUE_PER_CHANNEL", scheme.value.axis == Axis::channel);
    whole("KEY_BITS", scheme.key.bits);
    whole("VALUE_BITS", scheme.value.bits);
    whole("KEY_CODES", codebook_.key.codes);
    whole("VALUE_CODES", codebook_.value.codes);
    out_ += "/* tokens kept exactly, first and last; share of values kept exactly, both tails */\n";
    whole("SINK", scheme.sink);
    whole("RESIDUAL", scheme.residual);
    define("SPARSE", number(scheme.sparse));
  }

  void tensor(const std::string& name, const TensorCodebooks& from, int dim) {
    const CacheShape& shape = codebook_.model.shape;
    const std::vector<int64_t> head = {shape.layers, shape.kv_heads}, channel = {shape.layers, shape.kv_heads, dim};
    array(name + "_bits", "unsigned char", "U8", head, from.bits);
    array(name + "_codebook", "float", "F32", {shape.layers, shape.kv_heads, from.codes}, from.codebook);
    array(name + "_scale", "float", "F32", channel, from.scale);
    array(name + "_zero", "float", "F32", channel, from.zero);
    array(name + "_threshold_lower", "float", "F32", channel, from.threshold_lower);
    array(name + "_threshold_upper", "float", "F32", channel, from.threshold_upper);
  }

  template <typename T>
  void array(const std::string& name, const char* type, const char* dtype, const std::vector<int64_t>& shape,
             const std::vector<T>& values) {
    if (values.empty()) return;
    out_ += fmt::format("\n{}_STORAGE {} {}_{}", macro_, type, prefix_, name);
    for (const int64_t extent : shape) out_ += fmt::format("[{}]", extent);
    out_ += " = ";
    size_t at = 0;
    nested(shape, 0, values, at);
    out_ += ";\n";
    listing_.push_back({prefix_ + "_" + name, dtype, shape});
  }

  template <typename T>
  void nested(const std::vector<int64_t>& shape, size_t axis, const std::vector<T>& values, size_t& at) {
    out_ += '{';
    for (int64_t i = 0; i < shape[axis]; ++i) {
      const bool last = axis + 1 == shape.size();
      if (i > 0) out_ += last && i % 12 != 0 ? ", " : ",\n";
      if (last) {
        out_ += number(values[at++]);
      } else {
        nested(shape, axis + 1, values, at);
      }
    }
    out_ += '}';
  }

  const Codebook& codebook_;
  std::string prefix_, macro_, out_;
  std::vector<ExportedTensor>& listing_;
};

}  // namespace

std::string codebook_to_header(const Codebook& codebook, const std::string& prefix,
                               std::vector<ExportedTensor>& listing) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  bool good = !prefix.empty() && letter(prefix.front());
  for (const char c : prefix) good = good && (letter(c) || (c >= '0' && c <= '9'));
  if (!good) {
    throw Error(ErrorKind::usage, "--prefix " + prefix, "is no identifier of C",
                "letters, digits and _, a letter first");
  }
  return Header(codebook, prefix, listing).make();
}

}  // namespace kvcc
