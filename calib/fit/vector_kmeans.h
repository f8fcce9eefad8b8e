// Weighted k-means of vectors: codebooks of every width from 0 bits on, grown by splitting cells and improved by
// Lloyd's rounds. No random numbers and no threads inside, so equal points give equal codebooks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/codec/nearest_vector.h"

namespace kvcc {

/// Points of one group and their weights (0 or more, finite), [count]. Not owned.
struct WeightedPoints {
  GroupPoints points;
  const float* weight = nullptr;
};

struct VectorCodebook {
  std::vector<float> vectors;  ///< [2^bits, width]
  double error = 0;            ///< sum over points of weight times squared distance to the nearest vector
};

/// Codebooks of 2^0, 2^1, … 2^max_bits vectors. Cells are split across their widest direction, at their mean, the one
/// of the greatest error first; at each power of two their means start `rounds` rounds of Lloyd. Points of fewer
/// different values than vectors repeat the last.
std::vector<VectorCodebook> grow_codebooks(const WeightedPoints& points, int max_bits, int rounds);

/// Lloyd's rounds until nothing moves, at most `rounds`. A vector that no point is nearest to takes the place of the
/// point that is worst off; one whose points all weigh nothing stays.
void improve(const WeightedPoints& points, VectorCodebook& codebook, int rounds);

/// The error of the points under the vectors [entries, width].
double coding_error(const WeightedPoints& points, std::span<const float> vectors);

}  // namespace kvcc
