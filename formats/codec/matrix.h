// Products of matrices in binary32, the same bits on every processor and for every blocking. Host only.
#pragma once

#include <cstddef>

namespace kvcc {

/// A matrix whose element (row, column) is at data[row * row_step + column * column_step]. Not owned.
struct MatrixView {
  const float* data;
  ptrdiff_t row_step, column_step;
};

/// out [m, n], rows `out_step` apart, = a [m, k] b [k, n], whose columns lie side by side (column_step 1). Each element
/// is the sum over k ascending, every product and every sum rounded to binary32. out overlaps neither.
void multiply(int m, int n, int k, MatrixView a, MatrixView b, float* out, ptrdiff_t out_step);

}  // namespace kvcc
