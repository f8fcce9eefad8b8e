// The shipped rows of kernels/list as tests: define KVCC_ROW(name, Config) or KVCC_ATTENTION_ROW(name, Config), then
// include a list. Which choices are legal does not matter here.
#pragma once

#include "tests/kernels/mma_cases.h"

namespace kvcc::test {

using device::Axis;
using device::Dtype;
using device::Rope;
using linear::Sparse;
using mma::Tensor;

/// Mutations build a family for the rows of one head dimension: -DKVCC_ONLY_HEAD_DIM=64.
constexpr bool included(int head_dim) {
#if defined(KVCC_ONLY_HEAD_DIM)
  return head_dim == KVCC_ONLY_HEAD_DIM;
#else
  return head_dim > 0;
#endif
}

}  // namespace kvcc::test

#define KVCC_BITS(bits)
#define KVCC_HEAD_DIM(head_dim)
#define KVCC_SCALE(axis, sparse)
#define KVCC_ROPE(rope)
#define KVCC_DTYPE(dtype)

/// KVCC_TENSOR: key or value, of the list that is included.
#define KVCC_SHIP(bits, head_dim, axis, sparse, rope, rotary_dim, group_tile, dtype, registers, shared_bytes) \
  KVCC_ROW(q##bits##_##axis##_d##head_dim##_##sparse##_##rope##rotary_dim##_g##group_tile##_##dtype,          \
           MmaConfig<Tensor::KVCC_TENSOR, bits, head_dim, Axis::axis, Sparse::sparse, Rope::rope, rotary_dim, \
                     group_tile, Dtype::dtype>)
#define KVCC_SHIP_ATTENTION(key_bits, key_axis, key_sparse, value_bits, value_axis, value_sparse, head_dim, rope,                                             \
                            rotary_dim, group_tile, dtype, registers, shared_bytes)                                                                           \
  KVCC_ATTENTION_ROW(                                                                                                                                         \
      q##key_bits##_##key_axis##_d##head_dim##_##key_sparse##_##rope##rotary_dim##_v_q##value_bits##_##value_axis##_##value_sparse##_g##group_tile##_##dtype, \
      head_dim,                                                                                                                                               \
      AttentionConfig<MmaConfig<Tensor::key, key_bits, head_dim, Axis::key_axis, Sparse::key_sparse, Rope::rope,                                              \
                                rotary_dim, group_tile, Dtype::dtype>,                                                                                        \
                      MmaConfig<Tensor::value, value_bits, head_dim, Axis::value_axis, Sparse::value_sparse,                                                  \
                                Rope::none, 0, group_tile, Dtype::dtype>>)
