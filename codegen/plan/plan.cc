#include "codegen/plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "codegen/plan/configure.h"
#include "formats/core/error.h"

namespace kvcc::codegen {
namespace {

void check_tables(const Artifact& artifact, const TensorTables& tables, int head_dim, const char* tensor) {
  const size_t rows = static_cast<size_t>(artifact.shape.layers) * artifact.shape.kv_heads;
  const auto refuse = [&](std::string found, std::string wanted) {
    throw bad_input(fmt::format("{}, /{}", artifact.name, tensor), std::move(found), std::move(wanted));
  };
  if (tables.bits.size() != rows) refuse(fmt::format("{} widths", tables.bits.size()), fmt::format("{}", rows));
  if (tables.levels.size() != rows * tables.codes) {
    refuse(fmt::format("{} levels", tables.levels.size()), fmt::format("{} x {}", rows, tables.codes));
  }
  if (tables.scale.size() != tables.zero.size() || (!tables.scale.empty() && tables.scale.size() != rows * head_dim)) {
    refuse(fmt::format("{} scales, {} zeros", tables.scale.size(), tables.zero.size()),
           fmt::format("{} x {}", rows, head_dim));
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

/// The tables of one width.
TensorSpec tensor_spec(const Artifact& artifact, const TensorTables& tables, const TensorConfiguration& t) {
  TensorSpec spec;
  const int channels = artifact.shape.kv_heads * t.head_dim;
  if (t.sparse == Sparse::tail) {
    spec.tail = outliers_per_tail(artifact.scheme.sparse, channels);
    if (2 * spec.tail >= channels) {
      throw Error(ErrorKind::usage, artifact.name, fmt::format("{} outliers of each tail a token", spec.tail),
                  "at least one value between the tails", "use a smaller sparse fraction");
    }
  }
  const size_t rows = tables.bits.size(), codes = size_t{1} << t.bits;
  spec.levels.assign(rows * codes, 0.0f);
  for (size_t row = 0; row < rows; ++row) {
    if (tables.bits[row] != t.bits) continue;
    std::copy_n(tables.levels.begin() + row * tables.codes, codes, spec.levels.begin() + row * codes);
  }
  if (t.mixed) spec.bits = tables.bits;
  return spec;
}

KernelSpec specify(const Artifact& artifact, const Configuration& c, Machine machine) {
  if (const std::vector<std::string> reasons = missing(c, machine); !reasons.empty()) {
    throw Error(ErrorKind::usage, fmt::format("{}, {}", artifact.name, to_text(c.family)),
                fmt::format("layout {} {}", to_text(c.layout), fmt::join(reasons, "; ")),
                "a configuration of kernels/list");
  }
  KernelSpec spec;
  spec.configuration = c;
  spec.machine = machine;
  spec.name = name(c);
  spec.symbol = "kvcc_" + spec.name;
  if (c.family == Family::copy_pages) return spec;
  spec.layers = artifact.shape.layers;
  spec.heads = artifact.shape.kv_heads;
  if (c.layout == Layout::vector) return spec;
  static_cast<TensorSpec&>(spec) = tensor_spec(artifact, of_keys(c.family) ? artifact.key : artifact.value, c);
  if (c.family == Family::attention) spec.value = tensor_spec(artifact, artifact.value, c.value);
  spec.sparse = artifact.scheme.sparse;
  return spec;
}

/// Whether linear-1 has the families asked for, attention aside, and some are left.
bool linear_serves(const Artifact& artifact, const Targets& targets) {
  bool any = false;
  for (const Family family : wanted_families(targets, Layout::linear)) {
    if (family == Family::attention || !why_skipped(artifact, family).empty()) continue;
    for (const auto& widths : widths_of(artifact, family)) {
      if (!missing(configure(artifact, Layout::linear, family, targets.dtype, widths)).empty()) return false;
    }
    any = true;
  }
  return any;
}

/// Of vector codebooks, which have one layout.
void check_vector_targets(const Artifact& artifact, const Targets& targets) {
  if (artifact.scheme.value.predicted) {
    throw Error(ErrorKind::usage, artifact.name, "values that are predicted from keys", "values coded by themselves",
                "fit with v-predict=none");
  }
  if (targets.cpu) {
    throw Error(ErrorKind::usage, "--arch", "cpu for vector codebooks",
                "architectures of GPUs: the CPU's units of vector codebooks are built into the runtime",
                "leave cpu out of --arch");
  }
  if (targets.layout.value_or(Layout::vector) != Layout::vector) {
    throw Error(ErrorKind::usage, "--layout", fmt::format("{} for vector codebooks", to_text(*targets.layout)),
                "vector-1, the layout of their pages", "leave --layout out");
  }
  for (const VectorArrays* tensor : {&artifact.key_vectors, &artifact.value_vectors}) {
    if (tensor->places.size() == static_cast<size_t>(artifact.shape.layers)) continue;
    throw Error(ErrorKind::failed, artifact.name, fmt::format("vector codebooks of {} layers", tensor->places.size()),
                fmt::format("{}", artifact.shape.layers));
  }
}

/// Sets the plan's layout and why.
void choose_layout(const Artifact& artifact, const Targets& targets, Plan& plan) {
  if (artifact.scheme.is_vector()) {
    check_vector_targets(artifact, targets);
    plan.layout = Layout::vector;
    return;
  }
  if (targets.layout == Layout::vector) {
    throw Error(ErrorKind::usage, "--layout", "vector-1 for a scheme of scalar levels", "mma-1 or linear-1");
  }
  if (targets.cpu && targets.layout == Layout::linear) {
    throw Error(ErrorKind::usage, "--layout", "linear-1 for the CPU", "mma-1, the layout of its units",
                "leave cpu out of --arch, or --layout out");
  }
  plan.layout = targets.layout.value_or(Layout::mma);
  if (plan.layout != Layout::mma) return;
  const std::vector<std::string> reasons = obstacles_to_mma(artifact, targets);
  if (reasons.empty()) return;
  const std::string why = fmt::format("{}", fmt::join(reasons, "; "));
  const auto& wanted = targets.families;
  const bool linear_has_all = std::find(wanted.begin(), wanted.end(), Family::attention) == wanted.end();
  std::string hint;
  if (linear_serves(artifact, targets)) {
    hint = linear_has_all ? "use --layout linear-1" : "leave attention out and use --layout linear-1";
    if (targets.cpu) hint += ", which the CPU does not have, without cpu in --arch";
  }
  if (targets.layout.has_value() || !linear_has_all || targets.cpu) {
    throw Error(ErrorKind::usage, artifact.name + ", layout mma-1", why, "a configuration of kernels/list", hint);
  }
  plan.layout = Layout::linear;
  plan.layout_reason = "mma-1 " + why;
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
  if (artifact.scheme.is_full()) {
    throw Error(ErrorKind::usage, artifact.name,
                fmt::format("scheme {} leaves keys and values at full precision", short_name(artifact.scheme)),
                "a scheme with codes to compile kernels for");
  }
  if (artifact.scheme.capped || artifact.scheme.qnorm) {
    throw Error(ErrorKind::usage, artifact.name, fmt::format("scheme {}", short_name(artifact.scheme)),
                "a scheme without cap and qnorm, which no kernel knows");
  }
  const auto has_levels = [](const TensorScheme& t) { return t.grid != Grid::full && t.grid != Grid::vector; };
  if (has_levels(artifact.scheme.key)) check_tables(artifact, artifact.key, shape.head_dim, "key");
  if (has_levels(artifact.scheme.value)) check_tables(artifact, artifact.value, shape.value_head_dim, "value");
  Plan result;
  choose_layout(artifact, targets, result);
  for (const Family family : wanted_families(targets, result.layout)) {
    if (std::string reason = why_skipped(artifact, family); !reason.empty()) {
      result.skipped.push_back({family, std::move(reason)});
      continue;
    }
    bool tensor_cores = false;
    if (result.layout == Layout::vector && takes_rope(family)) {
      const std::string obstacle = obstacle_to_tensor_cores(artifact, targets, family);
      tensor_cores = obstacle.empty();
      if (!tensor_cores && family == Family::attention) {
        result.skipped.push_back({family, "it " + obstacle});
        continue;
      }
      if (!tensor_cores)
        result.layout_reason = fmt::format("{} is scalar: on tensor cores it {}", to_text(family), obstacle);
    }
    for (const Machine machine : targets.machines()) {
      for (const auto& widths : widths_of(artifact, family)) {
        const Configuration c =
            configure(artifact, result.layout, family, dtype_of(targets, machine), widths, tensor_cores);
        result.kernels.push_back(specify(artifact, c, machine));
      }
    }
  }
  std::stable_sort(result.kernels.begin(), result.kernels.end(),
                   [](const KernelSpec& a, const KernelSpec& b) { return a.machine < b.machine; });
  if (result.kernels.empty()) {
    throw Error(ErrorKind::usage, artifact.name, "nothing to compile of the families asked for",
                "a family of a tensor with codes");
  }
  return result;
}

}  // namespace kvcc::codegen
