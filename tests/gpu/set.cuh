// Configurations and the sets made of them.
#pragma once

#include "kernels/device/attention.cuh"
#include "kernels/device/dequantise.cuh"
#include "kernels/device/key_scores.cuh"
#include "kernels/device/mma_dequantise.cuh"
#include "kernels/device/mma_key_scores.cuh"
#include "kernels/device/mma_pack.cuh"
#include "kernels/device/mma_value_mix.cuh"
#include "kernels/device/pack_channel.cuh"
#include "kernels/device/pack_token.cuh"
#include "kernels/device/value_mix.cuh"
#include "tests/gpu/levels.h"
#include "tests/gpu/sets.h"

namespace kvcc::gpu {

using device::Axis;
using device::Dtype;
using device::Rope;
using linear::Sparse;

namespace {  // a unit's kernels are its own, even where another one has the same configuration

KVCC_TABLE LevelRows<2> kLevels2 = make_level_rows<2>();
KVCC_TABLE LevelRows<3> kLevels3 = make_level_rows<3>();
KVCC_TABLE LevelRows<4> kLevels4 = make_level_rows<4>();
KVCC_TABLE LevelRows<8> kLevels8 = make_level_rows<8>();

/// The members of a generated unit's Config (codegen/templates/kernel.cu.in).
template <mma::Tensor tensor, int bits_, int head_dim, Axis axis, Sparse sparse, Rope rope = Rope::none, int rotary = 0,
          int group_tile = 8, Dtype dtype = Dtype::f16, Dtype pack_dtype = dtype, bool mixed = false>
struct Config {
  static constexpr int kBits = bits_, kHeadDim = head_dim, kRotaryDim = rotary, kGroupTile = group_tile;
  static constexpr Axis kAxis = axis;
  static constexpr Sparse kSparse = sparse;
  static constexpr Rope kRope = rope;
  static constexpr Dtype kDtype = dtype;
  static constexpr bool kMixed = mixed;
  static constexpr mma::Tensor kTensor = tensor;
  static KVCC_HD const float* levels(int layer, int head) {
    const int row = (layer + head) % kLevelRows << bits_;
    if constexpr (bits_ == 2) {
      return kLevels2.value + row;
    } else if constexpr (bits_ == 3) {
      return kLevels3.value + row;
    } else if constexpr (bits_ == 4) {
      return kLevels4.value + row;
    } else {
      static_assert(bits_ == 8);
      return kLevels8.value + row;
    }
  }
  static KVCC_HD int bits(int, int head) { return mixed_bits(head); }

  /// The same for what packs, which has its own dtype.
  using Pack = Config<tensor, bits_, head_dim, axis, sparse, Rope::none, 0, group_tile, pack_dtype, pack_dtype, mixed>;
  static Spec spec() {
    return {tensor, bits_, head_dim, axis, sparse, rope, rotary, group_tile, dtype, pack_dtype, mixed};
  }
};

template <class Key_, class Value_>
struct AttentionConfig {
  struct Key : Key_ {};
  struct Value : Value_ {};
  static constexpr Rope kRope = Key_::kRope;
  static constexpr int kRotaryDim = Key_::kRotaryDim, kGroupTile = Key_::kGroupTile;
  static constexpr Dtype kDtype = Key_::kDtype;
};

template <class C>
TensorKernels linear_kernels() {
  TensorKernels kernels;
  if constexpr (C::kAxis == Axis::channel) {
    kernels.pack = kernel_of<device::PackChannel<typename C::Pack>>();
  } else {
    kernels.pack = kernel_of<device::PackToken<typename C::Pack>>();
  }
  kernels.dequantise = kernel_of<device::Dequantise<C>>();
  if constexpr (C::kTensor == mma::Tensor::key) {
    kernels.key_scores = kernel_of<device::KeyScores<C>>();
  } else {
    kernels.value_mix = kernel_of<device::ValueMix<C>>();
    kernels.value_merge = kernel_of<device::ValueMerge<C>>();
  }
  return kernels;
}

template <class C>
TensorKernels mma_kernels() {
  TensorKernels kernels;
  if constexpr (C::kAxis == Axis::token) kernels.select = kernel_of<device::MmaSelect<typename C::Pack>>();
  kernels.pack = kernel_of<device::MmaPack<typename C::Pack>>();
  kernels.dequantise = kernel_of<device::MmaDequantise<C>>();
  if constexpr (C::kTensor == mma::Tensor::key) {
    kernels.key_scores = kernel_of<device::MmaKeyScores<C>>();
  } else {
    kernels.value_mix = kernel_of<device::MmaValueMix<C>>();
    kernels.value_merge = kernel_of<device::MmaValueMerge<C>>();
  }
  return kernels;
}

template <class Key, class Value>
Part mma_part() {
  Part part{mma_kernels<Key>(), mma_kernels<Value>(), {}, {}};
  part.attention = kernel_of<device::Attention<AttentionConfig<Key, Value>>>();
  part.attention_merge = kernel_of<device::AttentionMerge<AttentionConfig<Key, Value>>>();
  return part;
}

template <class Key, class Value>
Set mma_set(const char* name) {
  return {name, Layout::mma, Key::spec(), Value::spec(), {mma_part<Key, Value>()}};
}
template <class Key, class Value>
Set linear_set(const char* name) {
  return {name, Layout::linear, Key::spec(), Value::spec(), {{linear_kernels<Key>(), linear_kernels<Value>(), {}, {}}}};
}

}  // namespace
}  // namespace kvcc::gpu
