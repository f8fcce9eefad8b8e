// The levels that the script's kernels carry, as a generated unit carries its artifact's. Made by the compiler from
// integers, so that nvcc and g++ have the same bits.
#pragma once

#include <cstdint>

#include "formats/layout/half.h"

namespace kvcc::gpu {

constexpr int kLevelRows = 4;  ///< head h of layer l uses row (l + h) % kLevelRows

template <int bits>
struct LevelRows {
  float value[kLevelRows << bits];
};

/// Non-decreasing levels of about [-1, 1], multiples of 2^-12; row 1 has one twice, which is legal.
template <int bits>
constexpr LevelRows<bits> make_level_rows() {
  LevelRows<bits> rows{};
  uint32_t random = 12345u + bits;
  constexpr int count = 1 << bits, step = 8192 / count;
  for (int row = 0; row < kLevelRows; ++row) {
    for (int j = 0; j < count; ++j) {
      random = random * 1664525u + 1013904223u;
      const int jitter = static_cast<int>((random >> 16) % static_cast<uint32_t>(step - step / 8));
      rows.value[row * count + j] = static_cast<float>(-4096 + j * step + jitter) / 4096.0f;
    }
    if (row == 1) rows.value[row * count + 2] = rows.value[row * count + 1];
  }
  return rows;
}

/// Widths of a mixed artifact's heads.
KVCC_HD constexpr int mixed_bits(int head) { return head % 2 == 0 ? 2 : 4; }

}  // namespace kvcc::gpu
