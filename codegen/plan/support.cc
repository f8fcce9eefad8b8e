// What a configuration would need that the lists do not have.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/plan/configuration.h"
#include "formats/layout/launch.h"

namespace kvcc::codegen {
namespace {

template <class T>
bool has(const std::vector<T>& values, const T& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

template <class E>
std::string names_of(const std::vector<E>& values) {
  std::vector<std::string_view> names;
  for (const E value : values) names.push_back(to_text(value));
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Of vector codebooks, whose lists have neither bits nor scales.
void add_missing_vector(const Choices& list, const TensorConfiguration& t, const std::string& whose,
                        std::vector<std::string>& reasons) {
  if (t.steps > kMostSteps) {
    reasons.push_back(
        fmt::format("has no {}{} steps of 16 coordinates (it has at most {})", whose, t.steps, kMostSteps));
  }
  if (!has(list.transforms, t.transform)) {
    reasons.push_back(fmt::format("has no units {} a transform", t.transform ? "with" : "without"));
  }
  if (!has(list.head_dims, t.head_dim)) {
    reasons.push_back(fmt::format("has no head dimension {} (it has {})", t.head_dim, fmt::join(list.head_dims, ", ")));
  }
}

void add_missing(const Choices& list, const TensorConfiguration& t, const std::string& whose,
                 std::vector<std::string>& reasons) {
  if (!has(list.bits, t.bits)) {
    reasons.push_back(fmt::format("has no {}{} bits (it has {})", whose, t.bits, fmt::join(list.bits, ", ")));
  }
  if (!has(list.head_dims, t.head_dim)) {
    reasons.push_back(
        fmt::format("has no {}head dimension {} (it has {})", whose, t.head_dim, fmt::join(list.head_dims, ", ")));
  }
  if (!has(list.scales, Scale{t.axis, t.sparse})) {
    reasons.push_back(
        fmt::format("has no {}scales per {} with sparse part {}", whose, to_text(t.axis), to_text(t.sparse)));
  }
}

}  // namespace

std::vector<std::string> missing(const Configuration& c, Machine machine) {
  if (c.family == Family::copy_pages) return {};
  if (c.layout == Layout::linear && c.family == Family::attention) return {"has no attention (layout mma-1 has it)"};
  const bool tensor_cores = c.layout == Layout::vector && (c.steps > 0 || c.family == Family::attention);
  const Choices& list = tensor_cores ? tensor_core_choices(c.family) : choices(c.layout, c.family);
  std::vector<std::string> reasons;
  if (c.layout == Layout::vector) {
    add_missing_vector(list, c, "", reasons);
  } else {
    add_missing(list, c, "", reasons);
  }
  if (c.family == Family::attention) {
    if (tensor_cores) {
      add_missing_vector(list, c.value, "values of ", reasons);
    } else {
      add_missing(list, c.value, "values of ", reasons);
    }
    if (c.value.head_dim != c.head_dim) {
      reasons.push_back(
          fmt::format("has no values of head dimension {} beside keys of {}", c.value.head_dim, c.head_dim));
    }
  }
  if (!has(list.ropes, c.rope)) {
    reasons.push_back(fmt::format("has no RoPE kind {} (it has {})", to_text(c.rope), names_of(list.ropes)));
  }
  if (machine == Machine::gpu && !has(list.dtypes, c.dtype)) {
    reasons.push_back(fmt::format("has no dtype {} (it has {})", to_text(c.dtype), names_of(list.dtypes)));
  }
  const int step = c.layout == Layout::mma || tensor_cores ? 16 : 2;
  if (c.rotary_dim % step != 0 || c.rotary_dim > c.head_dim || (c.rope == RopeKind::none) != (c.rotary_dim == 0)) {
    reasons.push_back(fmt::format("has no rotation of {} channels of {} (it takes a multiple of {})", c.rotary_dim,
                                  c.head_dim, step));
  }
  if (c.layout != Layout::mma && !tensor_cores) {
    if (c.group_tile < 1 || c.group_tile > KVCC_MAX_GROUP_TILE) {
      reasons.push_back(
          fmt::format("has no tile of {} query heads (it takes at most {})", c.group_tile, int{KVCC_MAX_GROUP_TILE}));
    }
  } else if (takes_group(c.family) ? c.group_tile != 8 && c.group_tile != 16 : c.group_tile != 1) {
    reasons.push_back(fmt::format("has no tile of {} query heads (it has 8 and 16)", c.group_tile));
  }
  return reasons;
}

}  // namespace kvcc::codegen
