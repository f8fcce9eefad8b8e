// Units of the CPU, and the table of a library of them.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/emit/cpu_unit.h"
#include "codegen/emit/fill.h"
#include "codegen/emit/table_text.h"

namespace kvcc::codegen {
namespace {

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  return text;
}

/// The lines of the banner that name the artifact, from the end of the first line on.
std::string origin(const Artifact& artifact) {
  return fmt::format("\n// Codebook: {}, sha256:{}\n// Scheme:   {}\n// Model:    {}", comment_text(artifact.name),
                     artifact.content_sha256, to_string(artifact.scheme), comment_text(artifact.model));
}

/// Inside a string literal. Bytes beyond ASCII stay.
std::string literal(const std::string& text) {
  std::string out;
  for (const char c : comment_text(text)) {
    if (c == '"') out += '\\';
    out += c;
  }
  return out;
}

std::string tensor_text(const KernelSpec& spec, bool keys, const Templates& templates) {
  const bool second = spec.configuration.family == Family::attention && !keys;
  const TensorConfiguration& t = second ? spec.configuration.value : spec.configuration;
  const TensorSpec& tables = second ? spec.value : spec;
  const std::string tensor = keys ? "Key" : "Value";
  const size_t codes = size_t{1} << t.bits;
  std::string widths, bits_of = fmt::format("int32_t, int32_t) {{ return {}; }}", t.bits);
  if (t.mixed) {
    widths = fmt::format("// [layers, heads] bits of a code\nconstexpr uint8_t k{}Widths[{} * {}] = {{\n{}}};\n",
                         tensor, spec.layers, spec.heads, widths_text(spec, tables));
    bits_of = fmt::format(
        "int32_t layer, int32_t head) {{\n"
        "    return k{}Widths[layer * {} + head] == {} ? {} : 0;  // another unit serves the other heads\n  }}",
        tensor, spec.heads, t.bits, t.bits);
  }
  const std::map<std::string, std::string> values = {
      {"tensor", tensor},
      {"layers", std::to_string(spec.layers)},
      {"heads", std::to_string(spec.heads)},
      {"codes", std::to_string(codes)},
      {"levels", levels_text(spec, tables, codes)},
      {"widths", widths},
      {"bits_of", bits_of},
      {"head_dim", std::to_string(t.head_dim)},
      {"axis", upper(std::string(to_text(t.axis)))},
      {"sparse", t.sparse == Sparse::none ? "NONE" : "LISTED"},
  };
  return fill(templates.at("kernel_cpu_tensor.cc.in"), values, "kernel_cpu_tensor.cc.in");
}

/// Tables, tensors and Config.
std::string config_text(const KernelSpec& spec, const Templates& templates) {
  const Configuration& c = spec.configuration;
  if (c.family == Family::copy_pages) return "";
  std::string tensors, members;
  for (const bool keys : {true, false}) {
    if (c.family != Family::attention && of_keys(c.family) != keys) continue;
    tensors += tensor_text(spec, keys, templates);
    members += fmt::format("  static constexpr const {0}Tensor& {1}() {{ return k{0}; }}\n", keys ? "Key" : "Value",
                           keys ? "key" : "value");
  }
  const std::map<std::string, std::string> values = {
      {"symbol", spec.symbol},
      {"tensors", tensors},
      {"members", members},
      {"rope", c.rope == RopeKind::none ? "NONE" : upper(std::string(to_text(c.rope)))},
      {"rotary_dim", std::to_string(c.rotary_dim)},
      {"dtype", upper(std::string(to_text(c.dtype)))},
  };
  return fill(templates.at("kernel_cpu_config.cc.in"), values, "kernel_cpu_config.cc.in");
}

/// Does the text of kernels/cpu serve either tensor, by a template argument?
bool serves_either(Family family) {
  return family == Family::pack_key || family == Family::pack_value || family == Family::dequantise_key ||
         family == Family::dequantise_value;
}

constexpr const char* kArguments = "const void* params, const KvccCpuTables* tables, uint32_t first, uint32_t last";

}  // namespace

std::string emit_cpu_unit(const Artifact& artifact, const KernelSpec& spec, const Templates& templates,
                          const std::string& tool_version) {
  const Family family = spec.configuration.family;
  std::string bodies, entries, exports;
  for (const Entry& entry : entries_of(spec)) {
    const std::string which =
        serves_either(family) ? fmt::format("<mma::Tensor::{}>", of_keys(family) ? "key" : "value") : "";
    bodies += fmt::format(
        "void {0}({1}) {{\n  using namespace kvcc;\n  cpu::HWY_NAMESPACE::{0}{2}({3}*static_cast<const {4}*>(params), "
        "*tables, first, last);\n}}\n",
        entry.body, kArguments, which, family == Family::copy_pages ? "" : "Config(), ", entry.params);
    exports += fmt::format("HWY_EXPORT({});\n", entry.body);
    entries += fmt::format(
        "extern \"C\" __attribute__((visibility(\"default\"))) void {}(\n    {}) {{\n"
        "  HWY_DYNAMIC_DISPATCH({})(params, tables, first, last);\n}}\n",
        entry.symbol, kArguments, entry.body);
  }
  const std::map<std::string, std::string> values = {
      {"tool_version", tool_version},
      {"origin", family == Family::copy_pages ? " The same for every codebook." : origin(artifact)},
      {"source", source_of(spec)},
      {"header", header_of(spec)},
      {"symbol", spec.symbol},
      {"configs", config_text(spec, templates)},
      {"bodies", bodies},
      {"entries", exports + entries},
  };
  return fill(templates.at("kernel_cpu.cc.in"), values, "kernel_cpu.cc.in");
}

std::string emit_library(const Artifact& artifact, const Plan& plan, const Templates& templates,
                         const std::string& tool_version) {
  std::string declarations, units;
  int count = 0;
  for (const KernelSpec& spec : plan.kernels) {
    if (spec.machine != Machine::cpu) continue;
    const Configuration& c = spec.configuration;
    const bool keys = of_keys(c.family), both = c.family == Family::attention;
    for (const Entry& entry : entries_of(spec)) {
      declarations += fmt::format("void {}({});\n", entry.symbol, kArguments);
      units += fmt::format("    {{KVCC_CPU_{}, {}, {}, KVCC_DTYPE_{}, \"{}\",\n     {}}},\n", upper(entry.family),
                           keys ? c.bits : 0,
                           both   ? c.value.bits
                           : keys ? 0
                                  : c.bits,
                           upper(std::string(to_text(c.dtype))), entry.name, entry.symbol);
      ++count;
    }
  }
  const std::map<std::string, std::string> values = {
      {"tool_version", tool_version},
      {"origin", origin(artifact)},
      {"source", library_unit(artifact) + ".cc"},
      {"declarations", declarations},
      {"units", units},
      {"content_sha256", artifact.content_sha256},
      {"artifact", literal(artifact.name)},
      {"scheme", literal(to_string(artifact.scheme))},
      {"count", std::to_string(count)},
      {"layers", std::to_string(artifact.shape.layers)},
      {"heads", std::to_string(artifact.shape.kv_heads)},
  };
  return fill(templates.at("kernel_cpu_library.cc.in"), values, "kernel_cpu_library.cc.in");
}

std::string library_unit(const Artifact& artifact) { return fmt::format("kvcc_{}_cpu", identifier(artifact.name)); }
std::string library_file(const Artifact& artifact) { return library_unit(artifact) + ".so"; }

}  // namespace kvcc::codegen
