// The tails of a token's row: which elements the per-token quantiser keeps exactly, and the range of the rest. Used by
// the reference codec and by fit, so that calibration and inference cannot differ. Host only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/codec/element.h"

namespace kvcc {

/// Outliers and inlier range of one row.
struct RowTails {
  std::vector<uint16_t> columns;    ///< ascending; 2 * tail of them, whatever the ties
  float low = 0, high = 0;          ///< least and greatest inlier
  std::vector<uint64_t> scratch{};  ///< kept between calls
};

/// Throws Error when a row of `columns` values can't keep `tail` values of each end exactly: 2 * tail < columns <=
/// 65536.
void check_tails(int columns, int tail, const std::string& place);

/// Splits x by tail_less(): the `tail` first and the `tail` last are outliers. x must be finite and pass check_tails().
void split_tails(std::span<const float> x, int tail, RowTails& out);

/// Least and greatest of x[0..n), n >= 1; zeros of either sign are equal.
void extremes(const float* x, int n, float& least, float& greatest);

/// Index of the first value that is NaN or infinite, or -1.
int64_t first_non_finite(std::span<const float> x);

/// Throws Error(bad_input) "PLACE, head H, channel C: NaN; wanted a finite value" for the first such value of a row of
/// heads of `dim` channels.
void check_finite(std::span<const float> x, int dim, const std::string& place);

/// token_range() that throws Error(bad_input) when the range overflows fp16.
TokenRange checked_range(float low, float high, const std::string& place);

/// float_to_half() that throws Error(bad_input) when a finite x overflows fp16; `column` of a row of heads of `dim`.
uint16_t checked_half(float x, int column, int dim, const std::string& place);

}  // namespace kvcc
