#include <fmt/format.h>

#include "codegen/emit/emit.h"
#include "codegen/emit/fill.h"
#include "formats/layout/launch.h"

namespace kvcc::codegen {
namespace {

/// Where a family's algorithm lives.
struct Body {
  std::string header, name;
};
Body body_of(const Configuration& c) {
  switch (c.family) {
    case Family::pack_key:
    case Family::pack_value:
      return c.axis == Axis::channel ? Body{"pack_channel.cuh", "PackChannel"} : Body{"pack_token.cuh", "PackToken"};
    case Family::key_scores:
      return {"key_scores.cuh", "KeyScores"};
    case Family::value_mix:
      return {"value_mix.cuh", "ValueMix"};
    default:
      return {"dequantise.cuh", "Dequantise"};
  }
}

/// Rows of `per_line` values, each row of the table after a comment that says whose it is.
template <class T, class Format>
std::string table_text(const KernelSpec& spec, const std::vector<T>& values, size_t per_row, size_t per_line,
                       const Format& format) {
  std::string out;
  for (size_t row = 0; row * per_row < values.size(); ++row) {
    out += per_row == static_cast<size_t>(spec.heads)
               ? fmt::format("    // layer {}\n", row)
               : fmt::format("    // layer {}, head {}\n", row / spec.heads, row % spec.heads);
    for (size_t i = 0; i < per_row; ++i) {
      if (i % per_line == 0) out += "    ";
      out += format(values[row * per_row + i]);
      out += (i + 1) % per_line == 0 || i + 1 == per_row ? ",\n" : ", ";
    }
  }
  return out;
}

}  // namespace

const std::vector<std::string>& template_names() {
  static const std::vector<std::string> names = {"kernel.cu.in", "header.h.in", "header_tensor.h.in"};
  return names;
}

std::vector<Entry> entries_of(const KernelSpec& spec) {
  const Configuration& c = spec.configuration;
  const int tile = kvcc_tile_tokens(c.head_dim);
  Entry entry;
  entry.family = to_text(c.family);
  entry.name = spec.name;
  entry.symbol = spec.symbol;
  entry.body = body_of(c).name;
  entry.tokens_per_block = tile;
  switch (c.family) {
    case Family::pack_key:
    case Family::pack_value:
      entry.params = "KvccPackParams";
      entry.grid_rule = c.axis == Axis::channel ? "kvcc_grid_pack_channel" : "kvcc_grid_pack_token";
      entry.tokens_per_block = c.axis == Axis::channel ? KVCC_PAGE_TOKENS : 1;
      return {entry};
    case Family::key_scores:
      entry.params = "KvccKeyScoresParams";
      entry.grid_rule = "kvcc_grid_key_scores";
      return {entry};
    case Family::value_mix: {
      entry.params = "KvccValueMixParams";
      entry.grid_rule = "kvcc_grid_value_mix";
      entry.splits = "host";
      Entry merge = entry;
      merge.family = "value_merge";
      merge.name += "_merge";
      merge.symbol += "_merge";
      merge.body = "ValueMerge";
      merge.grid_rule = "kvcc_grid_value_merge";
      merge.tokens_per_block = 0;
      return {entry, merge};
    }
    default:
      entry.params = "KvccDequantiseParams";
      entry.grid_rule = "kvcc_grid_dequantise";
      return {entry};
  }
}

std::string emit_unit(const Artifact& artifact, const KernelSpec& spec, const Templates& templates,
                      const std::string& tool_version) {
  const Configuration& c = spec.configuration;
  const size_t codes = size_t{1} << c.bits;
  std::string widths, bits_of, entries;
  if (c.mixed) {
    widths = fmt::format("// [layers, heads] bits of a code\nKVCC_TABLE unsigned char kWidths[{} * {}] = {{\n{}}};\n",
                         spec.layers, spec.heads,
                         table_text(spec, spec.bits, spec.heads, 32, [](uint8_t b) { return fmt::format("{}", b); }));
    bits_of = fmt::format("  static KVCC_HD int bits(int layer, int head) {{ return kWidths[layer * {} + head]; }}\n",
                          spec.heads);
  }
  for (const Entry& entry : entries_of(spec)) {
    entries += fmt::format("{}KVCC_KERNEL({},\n            kvcc::device::{}<{}_unit::Config>)",
                           entries.empty() ? "" : "\n", entry.symbol, entry.body, spec.symbol);
  }
  const auto hex = [](float level) { return fmt::format("{:a}f", level); };
  const std::map<std::string, std::string> values = {
      {"tool_version", tool_version},
      {"artifact", comment_text(artifact.name)},
      {"content_sha256", artifact.content_sha256},
      {"scheme", to_string(artifact.scheme)},
      {"model", comment_text(artifact.model)},
      {"header", body_of(c).header},
      {"symbol", spec.symbol},
      {"layers", std::to_string(spec.layers)},
      {"heads", std::to_string(spec.heads)},
      {"codes", std::to_string(codes)},
      {"levels", table_text(spec, spec.levels, codes, 8, hex)},
      {"widths", widths},
      {"bits_of", bits_of},
      {"bits", std::to_string(c.bits)},
      {"head_dim", std::to_string(c.head_dim)},
      {"rotary_dim", std::to_string(c.rotary_dim)},
      {"group_tile", std::to_string(c.group_tile)},
      {"axis", std::string(to_text(c.axis))},
      {"sparse", std::string(to_text(c.sparse))},
      {"rope", c.rope == RopeKind::none ? "none" : std::string(to_text(c.rope))},
      {"dtype", std::string(to_text(c.dtype))},
      {"mixed", c.mixed ? "true" : "false"},
      {"entries", entries},
  };
  return fill(templates.at("kernel.cu.in"), values, "kernel.cu.in");
}

}  // namespace kvcc::codegen
