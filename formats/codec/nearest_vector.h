// The nearest of a codebook's vectors: one rule for the fit, the reference codec and eval. Host only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcc {

constexpr int kMostGroupWidth = 8;  ///< coordinates of a group

/// Points of a group, coordinate by coordinate: z[i * step + t] is coordinate i of point t.
struct GroupPoints {
  int width = 0;      ///< coordinates, 1 to kMostGroupWidth
  int64_t count = 0;  ///< points
  const float* z = nullptr;
  ptrdiff_t step = 0;
};

/// code[t]: of the `entries` vectors [entries, width] the one of the least squared distance to point t, the sum over
/// coordinates in their order of (z - c)^2, each operation rounded to binary32; of equal ones the first. distance[t]:
/// that sum, where `distance` is not null.
void nearest_vectors(const GroupPoints& points, const float* vectors, int entries, uint16_t* code, float* distance);

}  // namespace kvcc
