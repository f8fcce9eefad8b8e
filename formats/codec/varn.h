// KVarN's variance normalisation of a tile (METHODS.md 3.2; arXiv 2606.03458, algorithm 1). Host only.
#pragma once

#include <span>
#include <vector>

namespace kvcc {

/// Scales of the best iterate: the tile divided by them is what gets coded.
struct VarnScales {
  std::vector<float> column;  ///< Sc [C]
  std::vector<float> row;     ///< Sr [R]
  float imbalance = 0;        ///< of that iterate
};

/// tile [R, C] row-major, R and C at least 2, finite. Columns before rows in each of `iterations` rounds; standard
/// deviations are unbiased; log-scales stay in [-0.3, 10]; of equal imbalances the later iterate is kept.
VarnScales varn(std::span<const float> tile, int rows, int columns, int iterations);

/// Greatest over least standard deviation of the columns, plus that of the rows: 2 when balanced.
float varn_imbalance(std::span<const float> tile, int rows, int columns);

}  // namespace kvcc
