#include "codegen/plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "formats/core/error.h"
#include "formats/layout/launch.h"

namespace kvcc::codegen {
namespace {

void check_tables(const Artifact& artifact, const TensorTables& tables, const char* tensor) {
  const size_t rows = static_cast<size_t>(artifact.shape.layers) * artifact.shape.kv_heads;
  const auto refuse = [&](std::string found, std::string wanted) {
    throw bad_input(fmt::format("{}, /{}", artifact.name, tensor), std::move(found), std::move(wanted));
  };
  if (tables.bits.size() != rows) refuse(fmt::format("{} widths", tables.bits.size()), fmt::format("{}", rows));
  if (tables.levels.size() != rows * tables.codes) {
    refuse(fmt::format("{} levels", tables.levels.size()), fmt::format("{} x {}", rows, tables.codes));
  }
  for (size_t row = 0; row < rows; ++row) {
    const int bits = tables.bits[row];
    if (bits < 1 || bits > 8 || (1 << bits) > tables.codes) {
      refuse(fmt::format("{} bits with {} codes a head", bits, tables.codes), "1 to 8 bits and 2^bits codes");
    }
    for (int j = 0; j < 1 << bits; ++j) {
      if (!std::isfinite(tables.levels[row * tables.codes + j])) {
        refuse(fmt::format("layer {}, head {}, level {} is not finite", row / artifact.shape.kv_heads,
                           row % artifact.shape.kv_heads, j),
               "finite levels");
      }
    }
  }
}

/// Choices that the family does not depend on keep their neutral value, so that equal kernels have equal names.
Configuration configure(const Artifact& artifact, Family family, const TensorScheme& scheme, Dtype dtype) {
  Configuration c;
  c.family = family;
  c.grid = scheme.grid;
  c.axis = scheme.axis;
  c.head_dim = of_keys(family) ? artifact.shape.head_dim : artifact.shape.value_head_dim;
  if (artifact.scheme.sparse > 0 && scheme.axis == Axis::channel) {
    c.sparse = Sparse::csr;
  } else if (outliers_per_tail(artifact.scheme.sparse, artifact.shape.kv_heads * c.head_dim) > 0) {
    c.sparse = Sparse::tail;
  }
  if (takes_rope(family) && scheme.site == Site::pre_rope && artifact.rope.rotary_dim > 0) {
    if (artifact.rope.kind != "half-split" && artifact.rope.kind != "interleaved") {
      throw Error(ErrorKind::usage, artifact.name, fmt::format("RoPE kind \"{}\"", artifact.rope.kind),
                  "half-split or interleaved");
    }
    c.rope = artifact.rope.kind == "interleaved" ? RopeKind::interleaved : RopeKind::half;
    c.rotary_dim = artifact.rope.rotary_dim;
  }
  if (takes_group(family)) c.group_tile = kvcc_group_tile(artifact.shape.group());
  c.dtype = family == Family::dequantise_key || family == Family::dequantise_value ? Dtype::f32 : dtype;
  return c;
}

KernelSpec specify(const Artifact& artifact, Configuration c, const TensorTables& tables, bool mixed, int bits) {
  c.bits = bits;
  c.mixed = mixed;
  const std::vector<std::string> reasons = missing(c);
  if (!reasons.empty()) {
    throw Error(ErrorKind::usage, fmt::format("{}, {}", artifact.name, to_text(c.family)),
                fmt::format("needs {}", fmt::join(reasons, "; ")), "a configuration of kernels/list");
  }
  KernelSpec spec;
  spec.name = name(c);
  spec.symbol = "kvcc_" + spec.name;
  spec.layers = artifact.shape.layers;
  spec.heads = artifact.shape.kv_heads;
  spec.sparse = artifact.scheme.sparse;
  if (c.sparse == Sparse::tail) {
    spec.tail = outliers_per_tail(artifact.scheme.sparse, artifact.shape.kv_heads * c.head_dim);
    if (2 * spec.tail >= artifact.shape.kv_heads * c.head_dim) {
      throw Error(ErrorKind::usage, artifact.name, fmt::format("{} outliers of each tail a token", spec.tail),
                  "at least one value between the tails", "use a smaller sparse fraction");
    }
  }
  const size_t rows = tables.bits.size(), codes = size_t{1} << bits;
  spec.levels.assign(rows * codes, 0.0f);
  for (size_t row = 0; row < rows; ++row) {
    if (tables.bits[row] != bits) continue;
    std::copy_n(tables.levels.begin() + row * tables.codes, codes, spec.levels.begin() + row * codes);
  }
  if (mixed) spec.bits = tables.bits;
  spec.configuration = std::move(c);
  return spec;
}

}  // namespace

Plan plan(const Artifact& artifact, const Targets& targets) {
  const CacheShape& shape = artifact.shape;
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.query_heads % shape.kv_heads != 0) {
    throw bad_input(
        artifact.name,
        fmt::format("{} layers, {} query heads, {} key/value heads", shape.layers, shape.query_heads, shape.kv_heads),
        "at least one, query heads a multiple of key/value heads");
  }
  if (shape.kv_heads * std::max(shape.head_dim, shape.value_head_dim) > 65536) {
    throw Error(ErrorKind::usage, artifact.name, fmt::format("{} channels a token", shape.kv_heads * shape.head_dim),
                "at most 65536, which the layout's columns can number");
  }
  Plan result;
  for (const Family family : families()) {
    const bool keys = of_keys(family);
    const TensorScheme& scheme = keys ? artifact.scheme.key : artifact.scheme.value;
    if (scheme.grid == Grid::full) {
      result.skipped.push_back({family, fmt::format("{} stay at full precision", keys ? "keys" : "values")});
      continue;
    }
    const TensorTables& tables = keys ? artifact.key : artifact.value;
    check_tables(artifact, tables, keys ? "key" : "value");
    const Configuration c = configure(artifact, family, scheme, targets.dtype);
    const std::set<uint8_t> widths(tables.bits.begin(), tables.bits.end());
    for (const int bits : widths) {
      result.kernels.push_back(specify(artifact, c, tables, widths.size() > 1, bits));
    }
  }
  if (result.kernels.empty()) {
    throw Error(ErrorKind::usage, artifact.name,
                fmt::format("scheme {} leaves keys and values at full precision", short_name(artifact.scheme)),
                "a scheme with codes to compile kernels for");
  }
  return result;
}

}  // namespace kvcc::codegen
