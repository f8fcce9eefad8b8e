#include "kernels/emulator/tensor_core.h"

#include <cmath>

#include "kernels/emulator/half_arithmetic.h"

namespace kvcc::emulator::internal {

void multiply_fragments(Thread* lanes) {
  alignas(64) double a[16][16], b[16][8], sum[16][8];
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    const Operand& o = lanes[lane].operand;
    const uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t second = 0; second < 2; ++second) {
      const uint32_t shift = 16 * second, k = 2 * t + second;
      a[g][k] = half_value(o.a[0] >> shift);
      a[g + 8][k] = half_value(o.a[1] >> shift);
      a[g][k + 8] = half_value(o.a[2] >> shift);
      a[g + 8][k + 8] = half_value(o.a[3] >> shift);
      b[k][g] = half_value(o.b0 >> shift);
      b[k + 8][g] = half_value(o.b1 >> shift);
    }
  }
  for (int i = 0; i < 16; ++i) {
    double row[8] = {};
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 8; ++j) row[j] += a[i][k] * b[k][j];
    }
    for (int j = 0; j < 8; ++j) sum[i][j] = row[j];
  }
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    float* const c = lanes[lane].operand.c;
    const uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t i = 0; i < 4; ++i) {
      const double exact = sum[g + i / 2 * 8][2 * t + i % 2] + c[i];
      c[i] = std::isnan(exact) ? bits_float(0x7fffffffu) : static_cast<float>(exact);
    }
  }
}

void transpose_fragments(Thread* lanes) {
  uint32_t matrix[8][8];
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    matrix[lane / 4][lane % 4 * 2] = lanes[lane].operand.value & 0xffffu;
    matrix[lane / 4][lane % 4 * 2 + 1] = lanes[lane].operand.value >> 16;
  }
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    lanes[lane].operand.result = matrix[lane % 4 * 2][lane / 4] | matrix[lane % 4 * 2 + 1][lane / 4] << 16;
  }
}

}  // namespace kvcc::emulator::internal
