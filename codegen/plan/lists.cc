// Which configurations exist: kernels/list, read at compile time.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "codegen/plan/configuration.h"
#include "formats/core/error.h"

namespace kvcc::codegen {
namespace {

#define KVCC_BITS(n) list.bits.push_back(n);
#define KVCC_HEAD_DIM(n) list.head_dims.push_back(n);
#define KVCC_SCALE(axis, sparse) list.scales.push_back({Axis::axis, Sparse::sparse});
#define KVCC_ROPE(kind) list.ropes.push_back(RopeKind::kind);
#define KVCC_DTYPE(name) list.dtypes.push_back(Dtype::name);
#define KVCC_SHIP(...)
#define KVCC_SHIP_ATTENTION(...)
#define KVCC_FORM(name) list.transforms.push_back(std::string_view(#name) == "head");
#define KVCC_SHIP_VECTOR(...)
#define KVCC_SHIP_VECTOR_MMA(...)
#define KVCC_SHIP_VECTOR_ATTENTION(...)
Choices linear_pack_key() {
  Choices list;
#include "kernels/list/pack_key.inc"
  return list;
}
Choices linear_pack_value() {
  Choices list;
#include "kernels/list/pack_value.inc"
  return list;
}
Choices linear_key_scores() {
  Choices list;
#include "kernels/list/key_scores.inc"
  return list;
}
Choices linear_value_mix() {
  Choices list;
#include "kernels/list/value_mix.inc"
  return list;
}
Choices linear_dequantise_key() {
  Choices list;
#include "kernels/list/dequantise_key.inc"
  return list;
}
Choices linear_dequantise_value() {
  Choices list;
#include "kernels/list/dequantise_value.inc"
  return list;
}
Choices mma_pack_key() {
  Choices list;
#include "kernels/list/mma_pack_key.inc"
  return list;
}
Choices mma_pack_value() {
  Choices list;
#include "kernels/list/mma_pack_value.inc"
  return list;
}
Choices mma_attention() {
  Choices list;
#include "kernels/list/attention.inc"
  return list;
}
Choices mma_key_scores() {
  Choices list;
#include "kernels/list/mma_key_scores.inc"
  return list;
}
Choices mma_value_mix() {
  Choices list;
#include "kernels/list/mma_value_mix.inc"
  return list;
}
Choices mma_dequantise_key() {
  Choices list;
#include "kernels/list/mma_dequantise_key.inc"
  return list;
}
Choices mma_dequantise_value() {
  Choices list;
#include "kernels/list/mma_dequantise_value.inc"
  return list;
}
Choices vector_pack_key() {
  Choices list;
#include "kernels/list/vector_pack_key.inc"
  return list;
}
Choices vector_pack_value() {
  Choices list;
#include "kernels/list/vector_pack_value.inc"
  return list;
}
Choices vector_key_scores() {
  Choices list;
#include "kernels/list/vector_key_scores.inc"
  return list;
}
Choices vector_value_mix() {
  Choices list;
#include "kernels/list/vector_value_mix.inc"
  return list;
}
Choices vector_dequantise_key() {
  Choices list;
#include "kernels/list/vector_dequantise_key.inc"
  return list;
}
Choices vector_dequantise_value() {
  Choices list;
#include "kernels/list/vector_dequantise_value.inc"
  return list;
}
Choices vector_mma_key_scores() {
  Choices list;
#include "kernels/list/vector_mma_key_scores.inc"
  return list;
}
Choices vector_attention() {
  Choices list;
#include "kernels/list/vector_attention.inc"
  return list;
}
#undef KVCC_BITS
#undef KVCC_HEAD_DIM
#undef KVCC_SCALE
#undef KVCC_ROPE
#undef KVCC_DTYPE
#undef KVCC_SHIP
#undef KVCC_SHIP_ATTENTION
#undef KVCC_FORM
#undef KVCC_SHIP_VECTOR
#undef KVCC_SHIP_VECTOR_MMA
#undef KVCC_SHIP_VECTOR_ATTENTION

/// The rows, as the lists have them.
Shipped row(Family family, TensorConfiguration tensor, TensorConfiguration value, RopeKind rope, int rotary_dim,
            int group_tile, Dtype dtype, int registers, int shared_bytes) {
  Shipped made;
  static_cast<TensorConfiguration&>(made.configuration) = tensor;
  made.configuration.family = family;
  made.configuration.value = value;
  made.configuration.rope = rope;
  made.configuration.rotary_dim = rotary_dim;
  made.configuration.group_tile = group_tile;
  made.configuration.dtype = dtype;
  made.configuration.layout = Layout::mma;
  made.registers = registers;
  made.shared_bytes = shared_bytes;
  return made;
}

std::vector<Shipped> read_shipped() {
  std::vector<Shipped> rows;
  Family family = Family::pack_key;
#define KVCC_BITS(n)
#define KVCC_HEAD_DIM(n)
#define KVCC_SCALE(axis, sparse)
#define KVCC_ROPE(kind)
#define KVCC_DTYPE(name)
#define KVCC_SHIP(bits, head_dim, axis, sparse, rope, rotary_dim, group_tile, dtype, registers, shared_bytes) \
  rows.push_back(row(family, {Grid::nuq, bits, false, Axis::axis, head_dim, Sparse::sparse, false}, {},       \
                     RopeKind::rope, rotary_dim, group_tile, Dtype::dtype, registers, shared_bytes));
#define KVCC_SHIP_ATTENTION(key_bits, key_axis, key_sparse, value_bits, value_axis, value_sparse, head_dim, rope, \
                            rotary_dim, group_tile, dtype, registers, shared_bytes)                               \
  rows.push_back(row(family, {Grid::nuq, key_bits, false, Axis::key_axis, head_dim, Sparse::key_sparse, false},   \
                     {Grid::nuq, value_bits, false, Axis::value_axis, head_dim, Sparse::value_sparse, false},     \
                     RopeKind::rope, rotary_dim, group_tile, Dtype::dtype, registers, shared_bytes));
#define KVCC_FORM(name)
#define KVCC_SHIP_VECTOR(form, head_dim, rope, rotary_dim, group_tile, dtype, registers, shared_bytes)                \
  rows.push_back(                                                                                                     \
      row(family, {Grid::vector, 0, false, Axis::channel, head_dim, Sparse::none, std::string_view(#form) == "head"}, \
          {}, RopeKind::rope, rotary_dim, group_tile, Dtype::dtype, registers, shared_bytes));                        \
  rows.back().configuration.layout = Layout::vector;
#define KVCC_SHIP_VECTOR_MMA(form, head_dim, steps, token_bits, table_kib, rope, rotary_dim, group_tile, dtype, \
                             registers, shared_bytes)                                                           \
  rows.push_back(row(family,                                                                                    \
                     {Grid::vector, 0, false, Axis::channel, head_dim, Sparse::none,                            \
                      std::string_view(#form) == "head", steps, token_bits, table_kib},                         \
                     {}, RopeKind::rope, rotary_dim, group_tile, Dtype::dtype, registers, shared_bytes));       \
  rows.back().configuration.layout = Layout::vector;
#define KVCC_SHIP_VECTOR_ATTENTION(key_form, key_steps, key_bits, key_kib, value_form, value_steps, value_bits,       \
                                   value_kib, head_dim, rope, rotary_dim, group_tile, dtype, registers, shared_bytes) \
  rows.push_back(row(family,                                                                                          \
                     {Grid::vector, 0, false, Axis::channel, head_dim, Sparse::none,                                  \
                      std::string_view(#key_form) == "head", key_steps, key_bits, key_kib},                           \
                     {Grid::vector, 0, false, Axis::channel, head_dim, Sparse::none,                                  \
                      std::string_view(#value_form) == "head", value_steps, value_bits, value_kib},                   \
                     RopeKind::rope, rotary_dim, group_tile, Dtype::dtype, registers, shared_bytes));                 \
  rows.back().configuration.layout = Layout::vector;
#define KVCC_SHIP_COPY(registers)                                                      \
  rows.push_back(row(family, {}, {}, RopeKind::none, 0, 1, Dtype::f16, registers, 0)); \
  rows.back().configuration.layout = Layout::any;
#include "kernels/list/mma_pack_key.inc"
  family = Family::pack_value;
#include "kernels/list/mma_pack_value.inc"
  family = Family::attention;
#include "kernels/list/attention.inc"
  family = Family::key_scores;
#include "kernels/list/mma_key_scores.inc"
  family = Family::value_mix;
#include "kernels/list/mma_value_mix.inc"
  family = Family::dequantise_key;
#include "kernels/list/mma_dequantise_key.inc"
  family = Family::dequantise_value;
#include "kernels/list/mma_dequantise_value.inc"
  family = Family::copy_pages;
#include "kernels/list/copy_pages.inc"
  family = Family::pack_key;
#include "kernels/list/vector_pack_key.inc"
  family = Family::pack_value;
#include "kernels/list/vector_pack_value.inc"
  family = Family::key_scores;
#include "kernels/list/vector_key_scores.inc"
#include "kernels/list/vector_mma_key_scores.inc"
  family = Family::attention;
#include "kernels/list/vector_attention.inc"
  family = Family::value_mix;
#include "kernels/list/vector_value_mix.inc"
  family = Family::dequantise_key;
#include "kernels/list/vector_dequantise_key.inc"
  family = Family::dequantise_value;
#include "kernels/list/vector_dequantise_value.inc"
#undef KVCC_BITS
#undef KVCC_HEAD_DIM
#undef KVCC_SCALE
#undef KVCC_ROPE
#undef KVCC_DTYPE
#undef KVCC_SHIP
#undef KVCC_SHIP_ATTENTION
#undef KVCC_SHIP_COPY
#undef KVCC_FORM
#undef KVCC_SHIP_VECTOR
#undef KVCC_SHIP_VECTOR_MMA
#undef KVCC_SHIP_VECTOR_ATTENTION
  return rows;
}

}  // namespace

const Choices& choices(Layout layout, Family family) {
  static const std::vector<std::pair<std::pair<Layout, Family>, Choices>> lists = {
      {{Layout::linear, Family::pack_key}, linear_pack_key()},
      {{Layout::linear, Family::pack_value}, linear_pack_value()},
      {{Layout::linear, Family::key_scores}, linear_key_scores()},
      {{Layout::linear, Family::value_mix}, linear_value_mix()},
      {{Layout::linear, Family::dequantise_key}, linear_dequantise_key()},
      {{Layout::linear, Family::dequantise_value}, linear_dequantise_value()},
      {{Layout::mma, Family::pack_key}, mma_pack_key()},
      {{Layout::mma, Family::pack_value}, mma_pack_value()},
      {{Layout::mma, Family::attention}, mma_attention()},
      {{Layout::mma, Family::key_scores}, mma_key_scores()},
      {{Layout::mma, Family::value_mix}, mma_value_mix()},
      {{Layout::mma, Family::dequantise_key}, mma_dequantise_key()},
      {{Layout::mma, Family::dequantise_value}, mma_dequantise_value()},
      {{Layout::vector, Family::pack_key}, vector_pack_key()},
      {{Layout::vector, Family::pack_value}, vector_pack_value()},
      {{Layout::vector, Family::key_scores}, vector_key_scores()},
      {{Layout::vector, Family::value_mix}, vector_value_mix()},
      {{Layout::vector, Family::dequantise_key}, vector_dequantise_key()},
      {{Layout::vector, Family::dequantise_value}, vector_dequantise_value()},
      {{Layout::any, Family::copy_pages}, {}},
  };
  for (const auto& [key, list] : lists) {
    if (key == std::pair{layout, family}) return list;
  }
  throw Error(ErrorKind::usage, fmt::format("layout {}", to_text(layout)), fmt::format("no family {}", to_text(family)),
              "a family of the layout");
}

const Choices& tensor_core_choices(Family family) {
  static const Choices key_scores = vector_mma_key_scores(), attention = vector_attention();
  return family == Family::attention ? attention : key_scores;
}

const std::vector<Shipped>& shipped() {
  static const std::vector<Shipped> rows = read_shipped();
  return rows;
}

bool is_shipped(const Configuration& configuration) {
  return std::any_of(shipped().begin(), shipped().end(),
                     [&](const Shipped& row) { return row.configuration == configuration; });
}

std::vector<Configuration> listed(Family family, const std::vector<int>& group_tiles, Layout layout) {
  const Choices& list = choices(layout, family);
  std::vector<TensorConfiguration> tensors;
  for (const int head_dim : list.head_dims) {
    for (const int bits : list.bits) {
      for (const Scale& scale : list.scales) {
        tensors.push_back({Grid::nuq, bits, false, scale.axis, head_dim, scale.sparse, false});
      }
    }
    for (const bool transform : list.transforms) {
      tensors.push_back({Grid::vector, 0, false, Axis::channel, head_dim, Sparse::none, transform});
    }
  }
  std::vector<Configuration> all;
  for (const TensorConfiguration& tensor : tensors) {
    for (const RopeKind rope : list.ropes) {
      for (const Dtype dtype : list.dtypes) {
        for (const int group : takes_group(family) ? group_tiles : std::vector<int>{1}) {
          Configuration c;
          static_cast<TensorConfiguration&>(c) = tensor;
          c.family = family;
          c.layout = layout;
          c.rope = rope;
          c.rotary_dim = rope == RopeKind::none ? 0 : c.head_dim;
          c.group_tile = group;
          c.dtype = dtype;
          all.push_back(c);
        }
      }
    }
  }
  return all;
}

}  // namespace kvcc::codegen
