#include "formats/codec/tails.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/codec/clones.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr int kLanes = 16;

KVCC_CLONES bool all_finite(const float* x, int64_t n) {
  int bad = 0;
  for (int64_t i = 0; i < n; ++i) bad |= !(std::fabs(x[i]) <= std::numeric_limits<float>::max());
  return bad == 0;
}

/// A whole number whose order is tail_less(): the value's bits made monotone (zeros of either sign equal), then index.
uint64_t order_key(float x, int index) {
  const uint32_t bits = float_bits(x + 0.0f);  // -0 becomes +0
  const uint32_t ordered = (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | static_cast<uint32_t>(index);
}

void split_one(std::span<const float> x, RowTails& out) {
  const int n = static_cast<int>(x.size());
  float least, greatest;
  extremes(x.data(), n, least, greatest);
  int first = 0, last = n - 1;
  while (x[first] != least) ++first;
  while (x[last] != greatest) --last;
  out.columns.assign({static_cast<uint16_t>(std::min(first, last)), static_cast<uint16_t>(std::max(first, last))});
  // The inliers are what lies before, between and after the two; n >= 3, so one of the pieces is not empty.
  const int ends[4] = {-1, out.columns[0], out.columns[1], n};
  bool any = false;
  for (int piece = 0; piece < 3; ++piece) {
    const int begin = ends[piece] + 1, count = ends[piece + 1] - begin;
    if (count <= 0) continue;
    extremes(x.data() + begin, count, least, greatest);
    out.low = any ? std::min(out.low, least) : least;
    out.high = any ? std::max(out.high, greatest) : greatest;
    any = true;
  }
}

}  // namespace

// Lane-wise, so that it becomes vector code.
KVCC_CLONES void extremes(const float* x, int n, float& least, float& greatest) {
  float low[kLanes], high[kLanes];
  for (int l = 0; l < kLanes; ++l) low[l] = high[l] = x[0];
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float v = x[i + l];
      low[l] = v < low[l] ? v : low[l];
      high[l] = v > high[l] ? v : high[l];
    }
  }
  for (; i < n; ++i) {
    low[0] = x[i] < low[0] ? x[i] : low[0];
    high[0] = x[i] > high[0] ? x[i] : high[0];
  }
  for (int l = 1; l < kLanes; ++l) {
    low[0] = low[l] < low[0] ? low[l] : low[0];
    high[0] = high[l] > high[0] ? high[l] : high[0];
  }
  least = low[0];
  greatest = high[0];
}

void check_tails(int columns, int tail, const std::string& place) {
  if (columns < 1 || columns > 65536) {
    throw Error(ErrorKind::usage, place, std::to_string(columns) + " channels in a token's row", "1 to 65536");
  }
  if (tail < 0 || 2 * static_cast<int64_t>(tail) >= columns) {
    throw Error(ErrorKind::usage, place,
                std::to_string(tail) + " outliers of each tail in a row of " + std::to_string(columns),
                "at least one value between the tails", "use a smaller sparse fraction");
  }
}

void split_tails(std::span<const float> x, int tail, RowTails& out) {
  const int n = static_cast<int>(x.size());
  if (tail == 0) {
    out.columns.clear();
    extremes(x.data(), n, out.low, out.high);
    return;
  }
  if (tail == 1) return split_one(x, out);
  out.scratch.resize(n);
  for (int i = 0; i < n; ++i) out.scratch[i] = order_key(x[i], i);
  const auto begin = out.scratch.begin(), end = out.scratch.end();
  std::nth_element(begin, begin + tail, end);           // begin[tail] is the least inlier
  std::nth_element(begin + tail, end - tail - 1, end);  // end[-tail - 1] is the greatest
  const auto column = [](uint64_t key) { return static_cast<uint16_t>(key & 0xffffu); };
  out.low = x[column(*std::min_element(begin + tail, end - tail))];
  out.high = x[column(*(end - tail - 1))];
  out.columns.clear();
  for (auto i = begin; i != begin + tail; ++i) out.columns.push_back(column(*i));
  for (auto i = end - tail; i != end; ++i) out.columns.push_back(column(*i));
  std::sort(out.columns.begin(), out.columns.end());
}

int64_t first_non_finite(std::span<const float> x) {
  if (all_finite(x.data(), static_cast<int64_t>(x.size()))) return -1;
  return std::find_if(x.begin(), x.end(), [](float v) { return !std::isfinite(v); }) - x.begin();
}

namespace {
std::string element_place(const std::string& place, int64_t column, int dim) {
  return place + ", head " + std::to_string(column / dim) + ", channel " + std::to_string(column % dim);
}
}  // namespace

void check_finite(std::span<const float> x, int dim, const std::string& place) {
  const int64_t i = first_non_finite(x);
  if (i < 0) return;
  throw bad_input(element_place(place, i, dim), std::isnan(x[i]) ? "NaN" : (x[i] > 0 ? "infinity" : "-infinity"),
                  "a finite value");
}

TokenRange checked_range(float low, float high, const std::string& place) {
  const TokenRange range = token_range(low, high);
  if (half_is_infinite(range.scale) || half_is_infinite(range.zero)) {
    throw bad_input(place, "values from " + std::to_string(low) + " to " + std::to_string(high),
                    "a range whose half width and centre fit fp16 (at most 65504)");
  }
  return range;
}

uint16_t checked_half(float x, int column, int dim, const std::string& place) {
  const uint16_t half = float_to_half(x);
  if (half_is_infinite(half)) {
    throw bad_input(element_place(place, column, dim), std::to_string(x),
                    "a magnitude that fits fp16 (at most 65504), as it is stored exactly");
  }
  return half;
}

}  // namespace kvcc
