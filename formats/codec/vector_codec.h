// The codec of vector codebooks: a unit's vector is transformed, its coordinates are taken in groups of unequal widths,
// and each group's nearest vector is stored in as many bits as the group has (CODEBOOKS.md). Host only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "formats/codec/tensor_codec.h"

namespace kvcc {

constexpr int kMostGroupBits = 12;  ///< of a group's code

/// Groups of one layer's tensor. A unit is a head (units = heads) or all heads side by side (units = 1); it has N =
/// heads * dim / units coordinates.
struct VectorQuantiser {
  int heads = 0, dim = 0, units = 0;
  std::vector<float> mean;              ///< [U, N]
  std::vector<float> forward, inverse;  ///< [U, N, N] z = forward (x - mean), x = inverse z + mean
  std::vector<uint8_t> width;           ///< [U, N] of the group that begins at the coordinate; 0: it began before
  std::vector<uint8_t> bits;            ///< [U, N] of its code, 0 to kMostGroupBits; 0 where no group begins
  std::vector<float> vectors;           ///< the groups' [2^bits, width] in order
  int size() const { return units > 0 ? heads * dim / units : 0; }
};

struct CodeGroup {
  int unit, first;  ///< coordinate within the unit
  int width, bits;
  int64_t vectors;  ///< where its vectors begin
  int entries() const { return 1 << bits; }
};
/// The groups in order. Throws Error(failed) unless they tile every unit, with widths and bits in their bounds, and
/// the vectors are as many as they need.
std::vector<CodeGroup> groups_of(const VectorQuantiser& quantiser);

/// Parts "codes" for each width of codes that occurs, ascending: [T, groups of that width]; groups of 0 bits have none.
/// Coordinates are binary32 sums over channels ascending (formats/codec/matrix.h), the nearest vector is that of
/// formats/codec/nearest_vector.h, and a value decodes as the sum over coordinates ascending of inverse * z, plus mean.
std::shared_ptr<const TensorCodec> make_codec(VectorQuantiser quantiser);

}  // namespace kvcc
