#include "formats/codec/matrix.h"

#include <algorithm>
#include <cstring>

#include "formats/codec/clones.h"

namespace kvcc {
namespace {

constexpr int kLanes = 16, kRows = 4;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

/// kRows x 2 kLanes elements of the product, in registers while k runs.
KVCC_CLONES void multiply_tile(int k, const float* a, ptrdiff_t a_row, ptrdiff_t a_column, const float* b,
                               ptrdiff_t b_row, float* out, ptrdiff_t out_row) {
  Lanes sum[kRows][2] = {};
  for (int i = 0; i < k; ++i) {
    Lanes x, y;
    std::memcpy(&x, b + i * b_row, sizeof x);
    std::memcpy(&y, b + i * b_row + kLanes, sizeof y);
    for (int r = 0; r < kRows; ++r) {
      const float factor = a[r * a_row + i * a_column];
      sum[r][0] += factor * x;
      sum[r][1] += factor * y;
    }
  }
  for (int r = 0; r < kRows; ++r) std::memcpy(out + r * out_row, sum[r], sizeof sum[r]);
}

}  // namespace

void multiply(int m, int n, int k, MatrixView a, MatrixView b, float* out, ptrdiff_t out_step) {
  const int whole_rows = m / kRows * kRows, whole_columns = n / (2 * kLanes) * (2 * kLanes);
  for (int column = 0; column < whole_columns; column += 2 * kLanes) {
    for (int row = 0; row < whole_rows; row += kRows) {
      multiply_tile(k, a.data + row * a.row_step, a.row_step, a.column_step, b.data + column, b.row_step,
                    out + row * out_step + column, out_step);
    }
  }
  for (int row = 0; row < m; ++row) {
    const int first = row < whole_rows ? whole_columns : 0;
    float* to = out + row * out_step;
    std::fill(to + first, to + n, 0.0f);
    for (int i = 0; i < k; ++i) {
      const float factor = a.data[row * a.row_step + i * a.column_step];
      const float* from = b.data + i * b.row_step;
      for (int column = first; column < n; ++column) to[column] += factor * from[column];
    }
  }
}

}  // namespace kvcc
