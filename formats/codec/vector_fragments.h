// A layer's vector codebooks as kernels on tensor cores take them (kernels/device/vector_mma.cuh): tables and transform
// in fp16, in the order of fragments. Host only.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "formats/layout/vector_launch.h"

namespace kvcc {

/// Of values, steps of one kind come in twos, and the transform is applied to sums (KvccVectorTensor::back).
enum class FragmentsOf { keys, values };

/// Coordinates are scaled by powers of two, so that a table's largest is in [1, 2) and the transform takes them back.
struct VectorFragments {
  std::vector<KvccVectorHead> heads;  ///< [H]
  std::vector<KvccVectorSlot> slots;  ///< [H, steps, 4]
  std::vector<uint8_t> rows;          ///< of all heads, see KvccVectorHead
  std::vector<uint32_t> fragments;    ///< [H, steps, D / 8, lane, 2]
  std::vector<float> mean;            ///< [H, D] of channels, what constant coordinates add to it included
  std::vector<float> back;            ///< of values: [H, 16 steps, D] by place in fragments, then channel
  double greatest = 0;                ///< magnitude that a decoded channel, or a number of the transform, can have
  int table_bytes = 0;                ///< of the head with most

  /// As VectorTables::append_to(): its arrays, and where they begin into `places`.
  void append_to(std::string& bytes, std::array<int64_t, KVCC_VECTOR_ARRAYS>& places) const;
};

/// Steps of 16 coordinates of the head with most.
int fragment_steps(const KvccVectorTensor& tensor, int heads, FragmentsOf of);

/// `steps`: those that slots and fragments have room for, at least fragment_steps().
VectorFragments make_fragments(const KvccVectorTensor& tensor, int heads, FragmentsOf of, int steps);

}  // namespace kvcc
