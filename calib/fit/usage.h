// How a tensor's elements fall on the normalised grid: a histogram for people, and how often each code is taken.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/codec/reference.h"

namespace kvcc {

/// Bins of the histogram, of equal width over [-2, 2]; the first and the last also hold what lies beyond.
constexpr int kUsageBins = 128;

/// Counts of one layer's tensor. Elements of constant channels and constant tokens, which take no place on the grid,
/// are left out.
class Usage {
 public:
  /// Whether elements beyond the range (by more than a rounding) are outliers without a code: channels with a sparse
  /// part. Otherwise they are clamped to the nearest code. `table` must outlive this.
  Usage(const LevelTable& table, int dim, bool sparse_channels);

  /// A row x [H * D] with its scale and zero [H * D]; `lower` and `upper` are thresholds [H * D] or empty.
  void add_channels(const float* x, std::span<const float> scale, std::span<const float> zero,
                    std::span<const float> lower, std::span<const float> upper);
  /// A row with one scale and zero; columns are those of outliers.
  void add_token(const float* x, float scale, float zero, std::span<const uint16_t> columns);

  /// [H, kUsageBins], [H, table.stride].
  std::vector<int64_t> bins() const;
  std::vector<int64_t> codes() const;

 private:
  static constexpr int kFine = 64;  ///< fine bins in a bin
  static constexpr int kAll = kUsageBins * kFine;
  static constexpr int16_t kLook = -1, kNone = -2;

  const LevelTable& table_;
  int dim_;
  std::vector<int16_t> code_of_;  ///< [H, kAll] code of all elements of a fine bin, or kLook, or kNone
  std::vector<uint32_t> fine_;    ///< [H, kAll]
  std::vector<int64_t> codes_;    ///< [H, stride] what fine bins do not tell
  std::vector<float> y_;          ///< [H * D]
  std::vector<int32_t> index_;    ///< [H * D]
  void count(std::span<const float> scale);
  uint32_t nearest(int head, float y) const;
};

}  // namespace kvcc
