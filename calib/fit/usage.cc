#include "calib/fit/usage.h"

#include <algorithm>

#include "formats/codec/clones.h"

namespace kvcc {
namespace {

constexpr float kMargin = 1e-5f;  // more than y and its bin are off by rounding

/// Position on the grid and fine bin of each element.
KVCC_CLONES void place_channels(const float* x, const float* scale, const float* zero, int n, int bins, float* y,
                                int32_t* index) {
  for (int i = 0; i < n; ++i) {
    const float v = normalise(x[i], scale[i], zero[i]);
    y[i] = v < -1.9999f ? -1.9999f : (v > 1.9999f ? 1.9999f : v);
    index[i] = static_cast<int32_t>((y[i] + 2.0f) * (static_cast<float>(bins) / 4));
  }
}

KVCC_CLONES void place_token(const float* x, float scale, float zero, int n, int bins, float* y, int32_t* index) {
  for (int i = 0; i < n; ++i) {
    const float v = normalise(x[i], scale, zero);
    y[i] = v < -1.9999f ? -1.9999f : (v > 1.9999f ? 1.9999f : v);
    index[i] = static_cast<int32_t>((y[i] + 2.0f) * (static_cast<float>(bins) / 4));
  }
}

}  // namespace

Usage::Usage(const LevelTable& table, int dim, bool sparse_channels)
    : table_(table),
      dim_(dim),
      code_of_(static_cast<size_t>(table.heads) * kAll),
      fine_(static_cast<size_t>(table.heads) * kAll),
      codes_(static_cast<size_t>(table.heads) * table.stride),
      y_(static_cast<size_t>(table.heads) * dim),
      index_(y_.size()) {
  for (int h = 0; h < table.heads; ++h) {
    // Codes of both ends of a bin; they only grow from bin to bin.
    const auto advance = [&](int code, float y) {
      while (code + 1 < table.count(h) && std::clamp(y, -1.0f, 1.0f) > upper_boundary(table.head(h), code)) ++code;
      return code;
    };
    int first = 0;
    for (int b = 0; b < kAll; ++b) {
      const float low = 4.0f * b / kAll - 2.0f - kMargin, high = 4.0f * (b + 1) / kAll - 2.0f + kMargin;
      int16_t& code = code_of_[static_cast<size_t>(h) * kAll + b];
      const bool beyond = low > 1.0f || high < -1.0f;
      const bool edge = !beyond && (high > 1.0f || low < -1.0f);
      first = advance(first, low);
      if (sparse_channels && (beyond || edge)) {
        code = beyond ? kNone : kLook;
      } else {
        code = advance(first, high) == first ? static_cast<int16_t>(first) : kLook;
      }
    }
  }
}

uint32_t Usage::nearest(int head, float y) const {
  return nearest_level(table_.head(head), table_.count(head), std::clamp(y, -1.0f, 1.0f));
}

/// Counts every element by its fine bin; channels of the least scale are left out.
void Usage::count(std::span<const float> scale) {
  for (int h = 0; h < table_.heads; ++h) {
    uint32_t* fine = fine_.data() + static_cast<size_t>(h) * kAll;
    const int32_t* index = index_.data() + static_cast<size_t>(h) * dim_;
    for (int c = 0; c < dim_; ++c) fine[index[c]] += scale.empty() || scale[h * dim_ + c] != kLeastScale ? 1 : 0;
  }
}

void Usage::add_channels(const float* x, std::span<const float> scale, std::span<const float> zero,
                         std::span<const float> lower, std::span<const float> upper) {
  const int n = static_cast<int>(y_.size());
  place_channels(x, scale.data(), zero.data(), n, kAll, y_.data(), index_.data());
  count(scale);
  for (int i = 0; i < n; ++i) {
    const int h = i / dim_;
    if (code_of_[static_cast<size_t>(h) * kAll + index_[i]] != kLook || scale[i] == kLeastScale) continue;
    if (!lower.empty() && outside_thresholds(x[i], lower[i], upper[i])) continue;
    ++codes_[static_cast<size_t>(h) * table_.stride + nearest(h, y_[i])];
  }
}

void Usage::add_token(const float* x, float scale, float zero, std::span<const uint16_t> columns) {
  const int n = static_cast<int>(y_.size());
  place_token(x, scale, zero, n, kAll, y_.data(), index_.data());
  count({});
  for (int i = 0; i < n; ++i) {
    const int h = i / dim_;
    if (code_of_[static_cast<size_t>(h) * kAll + index_[i]] != kLook) continue;
    ++codes_[static_cast<size_t>(h) * table_.stride + nearest(h, y_[i])];
  }
  for (const uint16_t column : columns) {  // they were counted with the rest, and have no code
    const int h = column / dim_;
    --codes_[static_cast<size_t>(h) * table_.stride + nearest(h, y_[column])];
  }
}

std::vector<int64_t> Usage::bins() const {
  std::vector<int64_t> out(static_cast<size_t>(table_.heads) * kUsageBins);
  for (size_t i = 0; i < fine_.size(); ++i) out[i / kFine] += fine_[i];
  return out;
}

std::vector<int64_t> Usage::codes() const {
  std::vector<int64_t> out = codes_;
  for (size_t i = 0; i < fine_.size(); ++i) {
    if (code_of_[i] >= 0) out[i / kAll * table_.stride + code_of_[i]] += fine_[i];
  }
  return out;
}

}  // namespace kvcc
