// Which configurations exist: kernels/list, read at compile time.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/plan/configuration.h"
#include "formats/core/error.h"
#include "formats/layout/launch.h"

namespace kvcc::codegen {
namespace {

struct Scale {
  Axis axis;
  Sparse sparse;
  bool operator==(const Scale&) const = default;
};

/// One family's list.
struct List {
  std::vector<int> bits, head_dims;
  std::vector<Scale> scales;
  std::vector<RopeKind> ropes;
  std::vector<Dtype> dtypes;
};

#define KVCC_BITS(n) list.bits.push_back(n);
#define KVCC_HEAD_DIM(n) list.head_dims.push_back(n);
#define KVCC_SCALE(axis, sparse) list.scales.push_back({Axis::axis, Sparse::sparse});
#define KVCC_ROPE(kind) list.ropes.push_back(RopeKind::kind);
#define KVCC_DTYPE(name) list.dtypes.push_back(Dtype::name);
List list_pack_key() {
  List list;
#include "kernels/list/pack_key.inc"
  return list;
}
List list_pack_value() {
  List list;
#include "kernels/list/pack_value.inc"
  return list;
}
List list_key_scores() {
  List list;
#include "kernels/list/key_scores.inc"
  return list;
}
List list_value_mix() {
  List list;
#include "kernels/list/value_mix.inc"
  return list;
}
List list_dequantise_key() {
  List list;
#include "kernels/list/dequantise_key.inc"
  return list;
}
List list_dequantise_value() {
  List list;
#include "kernels/list/dequantise_value.inc"
  return list;
}
#undef KVCC_BITS
#undef KVCC_HEAD_DIM
#undef KVCC_SCALE
#undef KVCC_ROPE
#undef KVCC_DTYPE

const List& list_of(Family family) {
  static const std::vector<std::pair<Family, List>> lists = {
      {Family::pack_key, list_pack_key()},
      {Family::pack_value, list_pack_value()},
      {Family::key_scores, list_key_scores()},
      {Family::value_mix, list_value_mix()},
      {Family::dequantise_key, list_dequantise_key()},
      {Family::dequantise_value, list_dequantise_value()},
  };
  for (const auto& [key, list] : lists) {
    if (key == family) return list;
  }
  throw Error(ErrorKind::failed, "kernels/list", "a family without a list");
}

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

}  // namespace

std::vector<std::string> missing(const Configuration& c) {
  const List& list = list_of(c.family);
  std::vector<std::string> reasons;
  if (c.layout != "linear-1") reasons.push_back(fmt::format("layout {} (known: linear-1)", c.layout));
  if (!has(list.bits, c.bits)) {
    reasons.push_back(fmt::format("{} bits (listed: {})", c.bits, fmt::join(list.bits, ", ")));
  }
  if (!has(list.head_dims, c.head_dim)) {
    reasons.push_back(fmt::format("head dimension {} (listed: {})", c.head_dim, fmt::join(list.head_dims, ", ")));
  }
  if (!has(list.scales, Scale{c.axis, c.sparse})) {
    reasons.push_back(fmt::format("scales per {} with sparse part {}", to_text(c.axis), to_text(c.sparse)));
  }
  if (!has(list.ropes, c.rope)) {
    reasons.push_back(fmt::format("RoPE kind {} (listed: {})", to_text(c.rope), names_of(list.ropes)));
  }
  if (!has(list.dtypes, c.dtype)) {
    reasons.push_back(fmt::format("dtype {} (listed: {})", to_text(c.dtype), names_of(list.dtypes)));
  }
  if (c.rotary_dim % 2 != 0 || c.rotary_dim > c.head_dim || (c.rope == RopeKind::none) != (c.rotary_dim == 0)) {
    reasons.push_back(fmt::format("{} rotary channels of {}", c.rotary_dim, c.head_dim));
  }
  if (c.group_tile < 1 || c.group_tile > KVCC_MAX_GROUP_TILE) {
    reasons.push_back(fmt::format("a tile of {} query heads (at most {})", c.group_tile, int{KVCC_MAX_GROUP_TILE}));
  }
  return reasons;
}

std::vector<Configuration> listed(Family family, const std::vector<int>& group_tiles) {
  const List& list = list_of(family);
  std::vector<Configuration> all;
  for (const int bits : list.bits) {
    for (const int head_dim : list.head_dims) {
      for (const Scale& scale : list.scales) {
        for (const RopeKind rope : list.ropes) {
          for (const Dtype dtype : list.dtypes) {
            for (const int group : takes_group(family) ? group_tiles : std::vector<int>{1}) {
              Configuration c;
              c.family = family;
              c.bits = bits;
              c.head_dim = head_dim;
              c.axis = scale.axis;
              c.sparse = scale.sparse;
              c.rope = rope;
              c.rotary_dim = rope == RopeKind::none ? 0 : head_dim;
              c.group_tile = group;
              c.dtype = dtype;
              all.push_back(c);
            }
          }
        }
      }
    }
  }
  return all;
}

}  // namespace kvcc::codegen
