#include <fmt/format.h>

#include "codegen/emit/cpu_unit.h"
#include "codegen/emit/emit.h"
#include "codegen/emit/fill.h"
#include "codegen/emit/table_text.h"

namespace kvcc::codegen {
namespace {

std::string rope_text(RopeKind rope) { return rope == RopeKind::none ? "none" : std::string(to_text(rope)); }

/// One tensor's table and the struct that device text takes it from. `prefix` tells the tensors of attention apart.
std::string tensor_text(const KernelSpec& spec, bool keys, const std::string& prefix, const Templates& templates) {
  const Configuration& c = spec.configuration;
  const bool second = c.family == Family::attention && !keys;
  const TensorConfiguration& t = second ? c.value : c;
  const TensorSpec& tables = second ? spec.value : spec;
  const size_t codes = size_t{1} << t.bits;
  std::string widths, bits_of;
  if (t.mixed) {
    widths = fmt::format("// [layers, heads] bits of a code\nKVCC_TABLE unsigned char k{}Widths[{} * {}] = {{\n{}}};\n",
                         prefix, spec.layers, spec.heads, widths_text(spec, tables));
    bits_of = fmt::format("  static KVCC_HD int bits(int layer, int head) {{ return k{}Widths[layer * {} + head]; }}\n",
                          prefix, spec.heads);
  }
  const std::map<std::string, std::string> values = {
      {"layers", std::to_string(spec.layers)},
      {"heads", std::to_string(spec.heads)},
      {"codes", std::to_string(codes)},
      {"tensor", prefix},
      {"struct", prefix.empty() ? "Config" : prefix + "Tensor"},
      {"levels", levels_text(spec, tables, codes)},
      {"widths", widths},
      {"bits_of", bits_of},
      {"bits", std::to_string(t.bits)},
      {"head_dim", std::to_string(t.head_dim)},
      {"rotary_dim", std::to_string(second ? 0 : c.rotary_dim)},
      {"group_tile", std::to_string(c.group_tile)},
      {"axis", std::string(to_text(t.axis))},
      {"sparse", std::string(to_text(t.sparse))},
      {"rope", second ? "none" : rope_text(c.rope)},
      {"dtype", std::string(to_text(c.dtype))},
      {"mixed", t.mixed ? "true" : "false"},
      {"which", c.layout == Layout::mma ? fmt::format("  static constexpr kvcc::mma::Tensor kTensor = "
                                                      "kvcc::mma::Tensor::{};\n",
                                                      keys ? "key" : "value")
                                        : ""},
  };
  return fill(templates.at("kernel_tensor.cu.in"), values, "kernel_tensor.cu.in");
}

/// The Config of attention's two tensors.
std::string attention_text(const Configuration& c, const Templates& templates) {
  const std::map<std::string, std::string> values = {{"rotary_dim", std::to_string(c.rotary_dim)},
                                                     {"group_tile", std::to_string(c.group_tile)},
                                                     {"rope", rope_text(c.rope)},
                                                     {"dtype", std::string(to_text(c.dtype))}};
  return fill(templates.at("kernel_attention.cu.in"), values, "kernel_attention.cu.in");
}

std::string configs_text(const KernelSpec& spec, const Templates& templates) {
  const Configuration& c = spec.configuration;
  if (c.family != Family::attention) return tensor_text(spec, of_keys(c.family), "", templates);
  return tensor_text(spec, true, "Key", templates) + "\n" + tensor_text(spec, false, "Value", templates) +
         attention_text(c, templates);
}

/// Of vector codebooks.
std::string vector_tensor_text(const Configuration& c, bool keys, const std::string& name, const Templates& templates) {
  const bool second = c.family == Family::attention && !keys;
  const TensorConfiguration& t = second ? c.value : c;
  const std::map<std::string, std::string> values = {{"struct", name},
                                                     {"head_dim", std::to_string(t.head_dim)},
                                                     {"rotary_dim", std::to_string(second ? 0 : c.rotary_dim)},
                                                     {"group_tile", std::to_string(c.group_tile)},
                                                     {"steps", std::to_string(t.steps)},
                                                     {"token_bits", std::to_string(t.token_bits)},
                                                     {"table_bytes", std::to_string(t.table_kib * 1024)},
                                                     {"transform", t.transform ? "true" : "false"},
                                                     {"rope", second ? "none" : rope_text(c.rope)},
                                                     {"dtype", std::string(to_text(c.dtype))}};
  return fill(templates.at("kernel_vector_tensor.cu.in"), values, "kernel_vector_tensor.cu.in");
}
std::string vector_configs_text(const Configuration& c, const Templates& templates) {
  if (c.family != Family::attention) return vector_tensor_text(c, true, "Config", templates);
  return vector_tensor_text(c, true, "KeyTensor", templates) + "\n" +
         vector_tensor_text(c, false, "ValueTensor", templates) + attention_text(c, templates);
}

}  // namespace

const std::vector<std::string>& template_names() {
  static const std::vector<std::string> names = {"kernel.cu.in",
                                                 "kernel_tensor.cu.in",
                                                 "kernel_attention.cu.in",
                                                 "kernel_copy.cu.in",
                                                 "kernel_vector.cu.in",
                                                 "kernel_vector_tensor.cu.in",
                                                 "kernel_cpu.cc.in",
                                                 "kernel_cpu_config.cc.in",
                                                 "kernel_cpu_tensor.cc.in",
                                                 "kernel_cpu_library.cc.in",
                                                 "header.h.in",
                                                 "header_tensor.h.in",
                                                 "header_vectors.h.in",
                                                 "header_cpu.h.in"};
  return names;
}

std::string emit_unit(const Artifact& artifact, const KernelSpec& spec, const Templates& templates,
                      const std::string& tool_version) {
  if (spec.machine == Machine::cpu) return emit_cpu_unit(artifact, spec, templates, tool_version);
  if (spec.configuration.family == Family::copy_pages) {
    return fill(templates.at("kernel_copy.cu.in"), {{"tool_version", tool_version}, {"symbol", spec.symbol}},
                "kernel_copy.cu.in");
  }
  std::string entries;
  for (const Entry& entry : entries_of(spec)) {
    entries += fmt::format("{}KVCC_KERNEL({},\n            kvcc::device::{}<{}_unit::Config>)",
                           entries.empty() ? "" : "\n", entry.symbol, entry.body, spec.symbol);
  }
  if (spec.configuration.layout == Layout::vector) {
    return fill(templates.at("kernel_vector.cu.in"),
                {{"tool_version", tool_version},
                 {"header", header_of(spec)},
                 {"symbol", spec.symbol},
                 {"configs", vector_configs_text(spec.configuration, templates)},
                 {"entries", entries}},
                "kernel_vector.cu.in");
  }
  const std::map<std::string, std::string> values = {
      {"tool_version", tool_version},
      {"artifact", comment_text(artifact.name)},
      {"content_sha256", artifact.content_sha256},
      {"scheme", to_string(artifact.scheme)},
      {"model", comment_text(artifact.model)},
      {"header", header_of(spec)},
      {"symbol", spec.symbol},
      {"configs", configs_text(spec, templates)},
      {"entries", entries},
  };
  return fill(templates.at("kernel.cu.in"), values, "kernel.cu.in");
}

}  // namespace kvcc::codegen
