// What each family's unit consists of: device header, bodies, launch structs and grids.
#include "codegen/emit/emit.h"
#include "formats/layout/launch.h"

namespace kvcc::codegen {
namespace {

/// A second entry, with what it does not share with the unit's own.
Entry beside(const Entry& own, const char* suffix, const char* body, const char* grid_rule, int tokens_per_block) {
  Entry entry = own;
  entry.family = (own.family == "value_mix" ? "value" : own.family) + suffix;
  entry.name = suffix;
  entry.body = body;
  entry.grid_rule = grid_rule;
  entry.tokens_per_block = tokens_per_block;
  return entry;
}

/// The entries of layout linear-1; the first is the unit's own.
std::vector<Entry> linear_entries(const Configuration& c, Entry entry) {
  switch (c.family) {
    case Family::pack_key:
    case Family::pack_value:
      entry.params = "KvccPackParams";
      entry.body = c.axis == Axis::channel ? "PackChannel" : "PackToken";
      entry.grid_rule = c.axis == Axis::channel ? "kvcc_grid_pack_channel" : "kvcc_grid_pack_token";
      entry.tokens_per_block = c.axis == Axis::channel ? KVCC_PAGE_TOKENS : 1;
      return {entry};
    case Family::key_scores:
      entry.params = "KvccKeyScoresParams";
      entry.body = "KeyScores";
      entry.grid_rule = "kvcc_grid_key_scores";
      return {entry};
    case Family::value_mix: {
      entry.params = "KvccValueMixParams";
      entry.body = "ValueMix";
      entry.grid_rule = "kvcc_grid_value_mix";
      entry.splits = "host";
      return {entry, beside(entry, "_merge", "ValueMerge", "kvcc_grid_value_merge", 0)};
    }
    default:
      entry.params = "KvccDequantiseParams";
      entry.body = "Dequantise";
      entry.grid_rule = "kvcc_grid_dequantise";
      return {entry};
  }
}

/// Likewise of mma-1; an entry that is launched before the unit's own comes first.
std::vector<Entry> mma_entries(const Configuration& c, Entry entry) {
  entry.tokens_per_block = KVCC_PAGE_TOKENS;
  switch (c.family) {
    case Family::pack_key:
    case Family::pack_value: {
      entry.params = "KvccPackParams";
      entry.body = "MmaPack";
      entry.grid_rule = "kvcc_grid_mma_pack";
      if (c.axis == Axis::channel) return {entry};
      return {beside(entry, "_select", "MmaSelect", "kvcc_grid_mma_pack_select", 1), entry};
    }
    case Family::attention:
      entry.params = "KvccAttentionParams";
      entry.body = "Attention";
      entry.grid_rule = "kvcc_grid_mma_attention";
      entry.splits = "host";
      return {entry, beside(entry, "_merge", "AttentionMerge", "kvcc_grid_mma_attention_merge", 0)};
    case Family::key_scores:
      entry.params = "KvccMmaKeyScoresParams";
      entry.body = "MmaKeyScores";
      entry.grid_rule = "kvcc_grid_mma_key_scores";
      entry.splits = "host";
      return {entry};
    case Family::value_mix:
      entry.params = "KvccValueMixParams";
      entry.body = "MmaValueMix";
      entry.grid_rule = "kvcc_grid_mma_value_mix";
      entry.splits = "host";
      return {entry, beside(entry, "_merge", "MmaValueMerge", "kvcc_grid_value_merge", 0)};
    case Family::copy_pages:
      entry.params = "KvccCopyPagesParams";
      entry.body = "CopyPages";
      entry.grid_rule = "kvcc_grid_copy_pages";
      return {entry};
    default:
      entry.params = "KvccDequantiseParams";
      entry.body = "MmaDequantise";
      entry.grid_rule = "kvcc_grid_mma_dequantise";
      return {entry};
  }
}

/// Likewise of vector-1.
std::vector<Entry> vector_entries(const Configuration& c, Entry entry) {
  switch (c.family) {
    case Family::pack_key:
    case Family::pack_value:
      entry.params = "KvccVectorPackParams";
      entry.body = "VectorPack";
      entry.grid_rule = "kvcc_grid_mma_pack";
      entry.tokens_per_block = KVCC_PAGE_TOKENS;
      return {entry};
    case Family::attention:
      entry.params = "KvccVectorAttentionParams";
      entry.body = "VectorAttention";
      entry.grid_rule = "kvcc_grid_mma_attention";
      entry.tokens_per_block = KVCC_PAGE_TOKENS;
      entry.splits = "host";
      return {entry, beside(entry, "_merge", "VectorAttentionMerge", "kvcc_grid_mma_attention_merge", 0)};
    case Family::key_scores:
      if (c.steps > 0) {
        entry.params = "KvccVectorMmaKeyScoresParams";
        entry.body = "VectorMmaKeyScores";
        entry.grid_rule = "kvcc_grid_mma_key_scores";
        entry.tokens_per_block = KVCC_PAGE_TOKENS;
        entry.splits = "host";
        return {entry};
      }
      entry.params = "KvccVectorKeyScoresParams";
      entry.body = "VectorKeyScores";
      entry.grid_rule = "kvcc_grid_key_scores";
      return {entry};
    case Family::value_mix:
      entry.params = "KvccVectorValueMixParams";
      entry.body = "VectorValueMix";
      entry.grid_rule = "kvcc_grid_value_mix";
      entry.splits = "host";
      return {entry, beside(entry, "_merge", "VectorValueMerge", "kvcc_grid_value_merge", 0)};
    default:
      entry.params = "KvccVectorDequantiseParams";
      entry.body = "VectorDequantise";
      entry.grid_rule = "kvcc_grid_dequantise";
      return {entry};
  }
}

/// Name of the text of kernels/cpu that has a family's bodies.
std::string cpu_text(Family family) {
  switch (family) {
    case Family::pack_key:
    case Family::pack_value:
      return "pack";
    case Family::dequantise_key:
    case Family::dequantise_value:
      return "dequantise";
    case Family::copy_pages:
      return "copy";
    default:
      return std::string(to_text(family));
  }
}

}  // namespace

std::string source_of(const KernelSpec& spec) { return spec.name + (spec.machine == Machine::cpu ? ".cc" : ".cu"); }

std::string header_of(const KernelSpec& spec) {
  const Configuration& c = spec.configuration;
  const auto device = [](const std::string& name) { return "kernels/device/" + name + ".cuh"; };
  if (spec.machine == Machine::cpu) return "kernels/cpu/" + cpu_text(c.family) + "-inl.h";
  const bool mma = c.layout == Layout::mma;
  if (c.layout == Layout::vector) {
    switch (c.family) {
      case Family::pack_key:
      case Family::pack_value:
        return device("vector_pack");
      case Family::key_scores:
        return device(c.steps > 0 ? "vector_mma_key_scores" : "vector_key_scores");
      case Family::attention:
      case Family::value_mix:
        return device("vector_" + std::string(to_text(c.family)));
      default:
        return device("vector_dequantise");
    }
  }
  switch (c.family) {
    case Family::pack_key:
    case Family::pack_value:
      return device(mma ? "mma_pack" : c.axis == Axis::channel ? "pack_channel" : "pack_token");
    case Family::attention:
      return device("attention");
    case Family::key_scores:
      return device(mma ? "mma_key_scores" : "key_scores");
    case Family::value_mix:
      return device(mma ? "mma_value_mix" : "value_mix");
    case Family::copy_pages:
      return device("copy_pages");
    default:
      return device(mma ? "mma_dequantise" : "dequantise");
  }
}

std::vector<Entry> entries_of(const KernelSpec& spec) {
  const Configuration& c = spec.configuration;
  Entry own;
  own.family = to_text(c.family);
  const bool by_page = c.layout == Layout::mma || c.layout == Layout::any;
  own.tokens_per_block = by_page ? KVCC_PAGE_TOKENS : kvcc_tile_tokens(c.head_dim);
  std::vector<Entry> entries = c.layout == Layout::linear   ? linear_entries(c, own)
                               : c.layout == Layout::vector ? vector_entries(c, own)
                                                            : mma_entries(c, own);
  for (size_t i = 0; i < entries.size(); ++i) {
    Entry& entry = entries[i];
    entry.symbol = spec.symbol + entry.name;
    entry.name = spec.name + entry.name;
    entry.stage = static_cast<int>(i);
    if (entry.family.ends_with("_merge")) entry.when = "splits > 1";
    // Texts of the CPU know one layout.
    if (spec.machine == Machine::cpu && entry.body.starts_with("Mma")) entry.body.erase(0, 3);
    if (entry.body == "Select") entry.body = "PackSelect";
  }
  return entries;
}

}  // namespace kvcc::codegen
