#include "codegen/plan/configure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/core/error.h"
#include "formats/layout/mma_launch.h"

namespace kvcc::codegen {
namespace {

bool is_mixed(const TensorTables& tables) {
  return std::any_of(tables.bits.begin(), tables.bits.end(), [&](uint8_t b) { return b != tables.bits.front(); });
}

TensorConfiguration tensor_of(const Artifact& artifact, bool keys, int bits) {
  const TensorScheme& scheme = keys ? artifact.scheme.key : artifact.scheme.value;
  TensorConfiguration t;
  t.grid = scheme.grid;
  if (t.grid == Grid::vector) {
    t.head_dim = keys ? artifact.shape.head_dim : artifact.shape.value_head_dim;
    t.transform = (keys ? artifact.key_vectors : artifact.value_vectors).transform;
    return t;
  }
  t.bits = bits;
  t.mixed = is_mixed(keys ? artifact.key : artifact.value);
  t.axis = scheme.axis;
  t.head_dim = keys ? artifact.shape.head_dim : artifact.shape.value_head_dim;
  if (artifact.scheme.sparse > 0 && scheme.axis == Axis::channel) {
    t.sparse = Sparse::csr;
  } else if (outliers_per_tail(artifact.scheme.sparse, artifact.shape.kv_heads * t.head_dim) > 0) {
    t.sparse = Sparse::tail;
  }
  return t;
}

/// What a unit for tensor cores has room for, in steps, so that few codebooks ask for units of their own.
void add_room(const VectorArrays& vectors, TensorConfiguration& t) {
  constexpr int kBits = 16, kKib = 4;
  t.steps = std::max(vectors.steps, 1);
  t.token_bits = std::max(1, (vectors.token_bits + kBits - 1) / kBits) * kBits;
  t.table_kib = std::max(1, (vectors.table_bytes + kKib * 1024 - 1) / (kKib * 1024)) * kKib;
}

/// The first number of a tensor of static scales that fp16 can't hold when it is decoded, or empty.
std::string overflow(const Artifact& artifact, bool keys, double limit) {
  const TensorTables& tables = keys ? artifact.key : artifact.value;
  const size_t head_dim = keys ? artifact.shape.head_dim : artifact.shape.value_head_dim;
  if (tables.scale.empty()) return "";
  for (size_t row = 0; row < tables.bits.size(); ++row) {
    const auto first = tables.levels.begin() + row * tables.codes;
    const auto [least, most] = std::minmax_element(first, first + (1 << tables.bits[row]));
    for (size_t c = 0; c < head_dim; ++c) {
      const double scale = tables.scale[row * head_dim + c], zero = tables.zero[row * head_dim + c];
      const double reached =
          std::max({std::abs(*least * scale + zero), std::abs(*most * scale + zero), std::abs(scale), std::abs(zero)});
      if (reached <= limit) continue;
      return fmt::format("needs {} within {} in fp16 (layer {}, head {}, channel {} reaches {:.6g})",
                         keys ? "keys" : "values", limit, row / artifact.shape.kv_heads, row % artifact.shape.kv_heads,
                         c, reached);
    }
  }
  return "";
}

}  // namespace

std::set<std::pair<int, int>> widths_of(const Artifact& artifact, Family family) {
  std::set<std::pair<int, int>> widths;
  if (family == Family::copy_pages || artifact.scheme.is_vector()) return {{0, 0}};
  const TensorTables& tables = of_keys(family) ? artifact.key : artifact.value;
  for (size_t row = 0; row < tables.bits.size(); ++row) {
    widths.emplace(tables.bits[row], family == Family::attention ? artifact.value.bits[row] : 0);
  }
  return widths;
}

Configuration configure(const Artifact& artifact, Layout layout, Family family, Dtype dtype, std::pair<int, int> widths,
                        bool on_tensor_cores) {
  Configuration c;
  c.family = family;
  c.layout = family == Family::copy_pages ? Layout::any : layout;
  if (family == Family::copy_pages) return c;
  static_cast<TensorConfiguration&>(c) = tensor_of(artifact, of_keys(family), widths.first);
  if (family == Family::attention) c.value = tensor_of(artifact, false, widths.second);
  if (takes_rope(family) && artifact.scheme.key.site == Site::pre_rope && artifact.rope.rotary_dim > 0) {
    if (artifact.rope.kind != "half-split" && artifact.rope.kind != "interleaved") {
      throw Error(ErrorKind::usage, artifact.name, fmt::format("RoPE kind \"{}\"", artifact.rope.kind),
                  "half-split or interleaved");
    }
    c.rope = artifact.rope.kind == "interleaved" ? RopeKind::interleaved : RopeKind::half;
    c.rotary_dim = artifact.rope.rotary_dim;
  }
  const int group = artifact.shape.group();
  if (layout == Layout::vector && on_tensor_cores) {
    add_room(artifact.key_vectors, c);
    if (family == Family::attention) add_room(artifact.value_vectors, c.value);
  }
  if (takes_group(family)) {
    const bool mma = layout == Layout::mma || (layout == Layout::vector && on_tensor_cores);
    c.group_tile = mma ? kvcc_mma_group_tile(group) : kvcc_group_tile(group);
  }
  c.dtype = family == Family::dequantise_key || family == Family::dequantise_value ? Dtype::f32 : dtype;
  return c;
}

std::string obstacle_to_tensor_cores(const Artifact& artifact, const Targets& targets, Family family) {
  const bool values = family == Family::attention;
  for (const std::string& arch : targets.archs) {
    if (arch.size() > 3 && std::stoi(arch.substr(3)) < kOldestMmaArch) {
      return fmt::format("needs the tensor cores of sm_{} and later ({})", kOldestMmaArch, arch);
    }
  }
  const auto reasons = missing(configure(artifact, Layout::vector, family, targets.dtype, {0, 0}, true));
  if (!reasons.empty()) return reasons.front();
  if (artifact.key_vectors.greatest > kLargestTurned) {
    return fmt::format("needs keys within {} in fp16 (one can reach {:.6g})", kLargestTurned,
                       artifact.key_vectors.greatest);
  }
  return values && artifact.value_vectors.greatest > kLargestHalf
             ? fmt::format("needs values within {} in fp16 (one can reach {:.6g})", kLargestHalf,
                           artifact.value_vectors.greatest)
             : "";
}

Dtype dtype_of(const Targets& targets, Machine machine) {
  return machine == Machine::cpu ? targets.cpu_dtype : targets.dtype;
}

std::string why_skipped(const Artifact& artifact, Family family) {
  const bool keys = artifact.scheme.key.grid == Grid::full, values = artifact.scheme.value.grid == Grid::full;
  if (family == Family::copy_pages) return keys && values ? "there are no pages" : "";
  if (keys && of_keys(family)) return "keys stay at full precision";
  if (values && (!of_keys(family) || family == Family::attention)) return "values stay at full precision";
  if (family == Family::attention && artifact.shape.head_dim != artifact.shape.value_head_dim) {
    return fmt::format("head dimensions of keys and values differ ({} and {}): key_scores and value_mix serve them",
                       artifact.shape.head_dim, artifact.shape.value_head_dim);
  }
  return "";
}

std::vector<Family> wanted_families(const Targets& targets, Layout layout) {
  return targets.families.empty() ? families_of(layout) : targets.families;
}

std::vector<std::string> obstacles_to_mma(const Artifact& artifact, const Targets& targets) {
  std::vector<std::string> reasons;
  const auto add = [&](const std::string& reason) {
    if (!reason.empty() && std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) {
      reasons.push_back(reason);
    }
  };
  bool reads_keys = false, reads_values = false, turns = false;
  for (const Machine machine : targets.machines()) {
    for (const Family family : wanted_families(targets, Layout::mma)) {
      if (!why_skipped(artifact, family).empty()) continue;
      for (const auto& widths : widths_of(artifact, family)) {
        const Configuration c = configure(artifact, Layout::mma, family, dtype_of(targets, machine), widths);
        for (const std::string& reason : missing(c, machine)) add(reason);
        const bool reads = takes_group(family) && machine == Machine::gpu;  // those of the CPU do not work in fp16
        reads_keys |= reads && of_keys(family);
        reads_values |= reads && (!of_keys(family) || family == Family::attention);
        turns |= c.rope != RopeKind::none;
      }
    }
  }
  if (reads_keys) add(overflow(artifact, true, turns ? kLargestTurned : kLargestHalf));
  if (reads_values) add(overflow(artifact, false, kLargestHalf));
  for (const std::string& arch : targets.archs) {
    if (arch.size() > 3 && std::stoi(arch.substr(3)) < kOldestMmaArch) {
      add(fmt::format("needs the tensor cores of sm_{} and later ({})", kOldestMmaArch, arch));
    }
  }
  return reasons;
}

}  // namespace kvcc::codegen
