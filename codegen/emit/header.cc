#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "codegen/emit/emit.h"
#include "codegen/emit/fill.h"
#include "formats/layout/linear.h"

namespace kvcc::codegen {
namespace {

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  return text;
}

/// [L, H] words of codes of the heads before each, and [L] of all: needed where a layer's heads have several widths.
std::string width_tables(const std::string& name, const std::string& tensor, const CacheShape& shape, int head_dim,
                         const TensorTables& tables, std::string& code_words) {
  std::string first = fmt::format("static const uint32_t kvcc_{}_{}_head_words[{}][{}] = {{\n", name, tensor,
                                  shape.layers, shape.kv_heads);
  std::string total = fmt::format("static const int32_t kvcc_{}_{}_code_words[{}] = {{", name, tensor, shape.layers);
  for (int l = 0; l < shape.layers; ++l) {
    uint32_t words = 0;
    first += "  {";
    for (int h = 0; h < shape.kv_heads; ++h) {
      first += fmt::format("{}{}", h == 0 ? "" : ", ", words);
      words += linear::kPageTokens * linear::row_words(head_dim, tables.bits[l * shape.kv_heads + h]);
    }
    first += l + 1 < shape.layers ? "},\n" : "}\n";
    total += fmt::format("{}{}", l == 0 ? "" : ", ", words);
  }
  code_words = fmt::format("kvcc_{}_{}_code_words[layer]", name, tensor);
  return first + "};\n" + total + "};\n";
}

std::string tensor_text(const Artifact& artifact, bool key, const Templates& templates) {
  const TensorScheme& scheme = key ? artifact.scheme.key : artifact.scheme.value;
  if (scheme.grid == Grid::full) return "";
  const TensorTables& tables = key ? artifact.key : artifact.value;
  const CacheShape& shape = artifact.shape;
  const int head_dim = key ? shape.head_dim : shape.value_head_dim;
  const std::string name = identifier(artifact.name), tensor = key ? "key" : "value";
  const bool channel = scheme.axis == Axis::channel;
  const bool csr = channel && artifact.scheme.sparse > 0;
  const bool mixed = std::set<uint8_t>(tables.bits.begin(), tables.bits.end()).size() > 1;
  std::string widths, code_words;
  if (mixed) {
    widths = width_tables(name, tensor, shape, head_dim, tables, code_words);
  } else {
    code_words =
        std::to_string(shape.kv_heads * linear::kPageTokens * linear::row_words(head_dim, tables.bits.front()));
  }
  const std::map<std::string, std::string> values = {
      {"upper", upper(name)},
      {"name", name},
      {"tensor", tensor},
      {"TENSOR", upper(tensor)},
      {"tail", std::to_string(channel ? 0 : outliers_per_tail(artifact.scheme.sparse, shape.kv_heads * head_dim))},
      {"capacity",
       std::to_string(csr ? linear::default_capacity(artifact.scheme.sparse, shape.kv_heads, head_dim) : 0)},
      {"widths", widths},
      {"code_words", code_words},
      {"csr", csr ? "1" : "0"},
      {"ranges", channel ? "0" : "1"},
  };
  return fill(templates.at("header_tensor.h.in"), values, "header_tensor.h.in");
}

}  // namespace

std::string comment_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '/' && out.ends_with('*')) out += ' ';
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\' ? '?' : c;
  }
  return out;
}

std::string identifier(const std::string& name) {
  std::string text;
  for (const char c : name) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    text += word ? c : '_';
  }
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) text = "_" + text;
  return text;
}

std::string emit_header(const Artifact& artifact, const Plan& plan, const Templates& templates,
                        const std::string& tool_version) {
  const std::string prefix = upper(identifier(artifact.name));
  std::string kernels;
  for (const KernelSpec& spec : plan.kernels) {
    for (const Entry& entry : entries_of(spec)) {
      kernels += fmt::format("#define KVCC_{}_{}{} \"{}\" /* {}, {} */\n", prefix, upper(entry.family),
                             spec.configuration.mixed ? fmt::format("_{}BIT", spec.configuration.bits) : "",
                             entry.symbol, entry.params, entry.grid_rule);
    }
  }
  const CacheShape& shape = artifact.shape;
  const std::map<std::string, std::string> values = {
      {"tool_version", tool_version},
      {"artifact", comment_text(artifact.name)},
      {"content_sha256", artifact.content_sha256},
      {"scheme", to_string(artifact.scheme)},
      {"model", comment_text(artifact.model)},
      {"upper", prefix},
      {"layers", std::to_string(shape.layers)},
      {"query_heads", std::to_string(shape.query_heads)},
      {"kv_heads", std::to_string(shape.kv_heads)},
      {"head_dim", std::to_string(shape.head_dim)},
      {"value_head_dim", std::to_string(shape.value_head_dim)},
      {"rotary_dim", std::to_string(artifact.rope.rotary_dim)},
      {"sink", std::to_string(artifact.scheme.sink)},
      {"residual", std::to_string(artifact.scheme.residual)},
      {"tensors", tensor_text(artifact, true, templates) + tensor_text(artifact, false, templates)},
      {"kernels", kernels},
  };
  return fill(templates.at("header.h.in"), values, "header.h.in");
}

}  // namespace kvcc::codegen
