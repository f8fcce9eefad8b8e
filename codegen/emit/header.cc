#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/emit/emit.h"
#include "codegen/emit/fill.h"
#include "formats/layout/launch.h"

namespace kvcc::codegen {
namespace {

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  return text;
}

/// [L, H] words of codes of the heads before each, and [L] of all: needed where a layer's heads have several widths.
std::string width_tables(const std::string& prefix, const PageRule& rule) {
  std::string first, total;
  for (size_t l = 0; l < rule.code_words.size(); ++l) {
    first += fmt::format("{}  {{{}}}", l == 0 ? "" : ",\n", fmt::join(rule.head_words[l], ", "));
  }
  return fmt::format("static const uint32_t {}_head_words[{}][{}] = {{\n{}\n}};\n", prefix, rule.code_words.size(),
                     rule.head_words[0].size(), first) +
         fmt::format("static const int32_t {}_code_words[{}] = {{{}}};\n", prefix, rule.code_words.size(),
                     fmt::join(rule.code_words, ", "));
}

/// Of vector codebooks.
std::string vectors_text(const Artifact& artifact, bool key, const Templates& templates) {
  const VectorArrays& vectors = key ? artifact.key_vectors : artifact.value_vectors;
  const std::string name = identifier(artifact.name), tensor = key ? "key" : "value";
  std::string arrays;
  for (size_t l = 0; l < vectors.places.size(); ++l) {
    arrays +=
        fmt::format("    {{{}}}{}\n", fmt::join(vectors.places[l], ", "), l + 1 < vectors.places.size() ? "," : "");
  }
  const std::map<std::string, std::string> values = {
      {"upper", upper(name)},
      {"name", name},
      {"tensor", tensor},
      {"TENSOR", upper(tensor)},
      {"transform", vectors.transform ? "1" : "0"},
      {"head_dim", std::to_string(key ? artifact.shape.head_dim : artifact.shape.value_head_dim)},
      {"layers", std::to_string(vectors.places.size())},
      {"widths", width_tables(fmt::format("kvcc_{}_{}", name, tensor), page_rule(artifact, Layout::vector, key))},
      {"arrays", arrays},
      {"file", vectors_file(artifact)},
  };
  return fill(templates.at("header_vectors.h.in"), values, "header_vectors.h.in");
}

std::string tensor_text(const Artifact& artifact, Layout layout, bool key, const Templates& templates) {
  if (layout == Layout::vector) return vectors_text(artifact, key, templates);
  const PageRule rule = page_rule(artifact, layout, key);
  if (!rule.coded) return "";
  const std::string name = identifier(artifact.name), tensor = key ? "key" : "value";
  const std::string prefix = fmt::format("kvcc_{}_{}", name, tensor);
  const bool mixed = !rule.head_words.empty(), mma = layout == Layout::mma;
  const std::string bytes = mma ? fmt::format("{}(cache->code_words, {}, {}, cache->heads, cache->sparse_capacity)",
                                              rule.function, rule.ranges, rule.classes)
                                : fmt::format("{}(cache->code_words, {}, {}, cache->tail, cache->sparse_capacity)",
                                              rule.function, rule.ranges, rule.csr);
  // Bytes between codes and records: ranges, then class ends (mma-1) or row ends and the tails (linear-1).
  const int after_codes = (rule.ranges > 0 ? KVCC_PAGE_TOKENS * 4 : 0) +
                          (mma ? artifact.shape.kv_heads * rule.classes * 2
                               : (rule.csr > 0 ? KVCC_PAGE_TOKENS * 4 : 0) + KVCC_PAGE_TOKENS * 2 * 4 * rule.tail);
  const std::map<std::string, std::string> values = {
      {"upper", upper(name)},
      {"name", name},
      {"tensor", tensor},
      {"TENSOR", upper(tensor)},
      {"tail", std::to_string(rule.tail)},
      {"capacity", std::to_string(rule.default_capacity)},
      {"capacity_means",
       mma ? "records a tile (one head of a page) can hold, a multiple of 4" : "csr records a page can hold"},
      {"widths", mixed ? width_tables(prefix, rule) : ""},
      {"code_words", mixed ? prefix + "_code_words[layer]" : std::to_string(rule.code_words.at(0))},
      {"sparse", rule.default_capacity > 0 ? "1" : "0"},
      {"page_bytes", bytes},
      {"lists", std::to_string(mma ? (rule.classes > 0 ? artifact.shape.kv_heads : 0) : (rule.csr > 0 ? 1 : 0))},
      {"after_codes", std::to_string(after_codes)},
      {"unused", mixed ? "" : "  (void)layer;\n"},
  };
  return fill(templates.at("header_tensor.h.in"), values, "header_tensor.h.in");
}

/// Of one width among several, as part of the entry's name.
std::string width_suffix(const Configuration& c) {
  if (c.family != Family::attention) return c.mixed ? fmt::format("_{}BIT", c.bits) : "";
  return (c.mixed ? fmt::format("_K{}BIT", c.bits) : "") + (c.value.mixed ? fmt::format("_V{}BIT", c.value.bits) : "");
}

/// The entries of a unit of the CPU.
std::string cpu_entries(const std::string& prefix, const KernelSpec& spec) {
  std::string lines;
  for (const Entry& entry : entries_of(spec)) {
    lines += fmt::format("#define KVCC_{}_CPU_{}{} \"{}\" /* {}, {} */\n", prefix, upper(entry.family),
                         width_suffix(spec.configuration), entry.symbol, entry.params, entry.grid_rule);
  }
  return lines;
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

std::string vectors_file(const Artifact& artifact) {
  return fmt::format("kvcc_{}_vectors.bin", identifier(artifact.name));
}

std::string emit_header(const Artifact& artifact, const Plan& plan, const Templates& templates,
                        const std::string& tool_version, const std::map<std::string, int>& dynamic_shared) {
  const std::string prefix = upper(identifier(artifact.name));
  std::string kernels, cpu_units;
  for (const KernelSpec& spec : plan.kernels) {
    if (spec.machine == Machine::cpu) {
      cpu_units += cpu_entries(prefix, spec);
      continue;
    }
    const std::string suffix = width_suffix(spec.configuration);
    for (const Entry& entry : entries_of(spec)) {
      const bool select = entry.family.ends_with("_select"), merge = entry.family.ends_with("_merge");
      kernels += fmt::format("#define KVCC_{}_{}{} \"{}\" /* {}, {}{} */\n", prefix, upper(entry.family), suffix,
                             entry.symbol, entry.params, entry.grid_rule,
                             select  ? ", launched before the next"
                             : merge ? ", after the one before when splits > 1"
                                     : "");
      if (const auto bytes = dynamic_shared.find(entry.symbol); bytes != dynamic_shared.end()) {
        kernels += fmt::format("#define KVCC_{}_{}{}_DYNAMIC_SHARED_BYTES {}\n", prefix, upper(entry.family), suffix,
                               bytes->second);
      }
    }
  }
  std::string cpu;
  if (!cpu_units.empty()) {
    cpu = fill(templates.at("header_cpu.h.in"),
               {{"upper", prefix}, {"library", library_file(artifact)}, {"units", cpu_units}}, "header_cpu.h.in");
  }
  if (kernels.empty()) kernels = "/* None for a GPU. */\n";
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
      {"layout", std::string(to_text(plan.layout))},
      {"launch_header", plan.layout == Layout::mma      ? "mma_launch.h"
                        : plan.layout == Layout::vector ? "vector_launch.h"
                                                        : "launch.h"},
      {"tensors",
       tensor_text(artifact, plan.layout, true, templates) + tensor_text(artifact, plan.layout, false, templates)},
      {"kernels", kernels},
      {"cpu", cpu},
      {"dynamic_shared", dynamic_shared.empty()
                             ? "as kernels.json states once kernels are compiled (--emit-only compiled none)"
                             : "ENTRY_DYNAMIC_SHARED_BYTES, a block"},
  };
  return fill(templates.at("header.h.in"), values, "header.h.in");
}

}  // namespace kvcc::codegen
