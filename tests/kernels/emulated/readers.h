// What the families that read a cache on tensor cores are compared with, and how far they may be off: the bounds that
// the device files state (mma_keys.cuh, mma_values.cuh, attention.cuh).
#pragma once

#include "kernels/reference/attention.h"
#include "tests/kernels/emulated/batches.h"

namespace kvcc::test {

constexpr double kRounding = 0x1p-8;  ///< of the bounds
/// Below it fp16 is subnormal, and rounding no longer relative: a token of zeros has scale 2^-24.
constexpr double kLeastNormal = 0x1p-14;

/// Sizes of query groups that a tile serves, the last not a multiple of it.
inline std::vector<int> groups_of(int group_tile) {
  return group_tile == 8 ? std::vector<int>{8, 3} : std::vector<int>{16, 19};
}

/// Sequence s of a tensor: |scale| + |zero| of what the element was decoded with, or its own magnitude where that is
/// greater or it is exact, or fp16's least normal number. [T, H, D].
template <class C>
std::vector<double> spread_of(const Packed<C>& p, size_t s) {
  const reference::MmaCache& cache = p.caches[s];
  const std::vector<float>& values = p.unpacked[s];
  const size_t columns = static_cast<size_t>(cache.heads) * C::kHeadDim;
  std::vector<double> spread(values.size());
  for (int64_t t = 0; t < cache.tokens; ++t) {
    const bool exact = cache.exact_row(t) >= 0;
    double scale = 0, zero = 0;
    if constexpr (C::kAxis == Axis::token) {
      if (!exact) {
        const TokenRange range = reference::read_token(p.quantiser.table, cache, t).range;
        scale = half_to_float(range.scale);
        zero = half_to_float(range.zero);
      }
    }
    for (size_t c = 0; c < columns; ++c) {
      if constexpr (C::kAxis == Axis::channel) {
        scale = exact ? 0 : p.quantiser.scale[c];
        zero = exact ? 0 : p.quantiser.zero[c];
      }
      const double own = std::fabs(values[t * columns + c]);
      spread[t * columns + c] = std::max({own, std::fabs(scale) + std::fabs(zero), kLeastNormal});
    }
  }
  return spread;
}

/// Bound of each score of a sequence, [H * group, T], as mma_keys.cuh states it. factor: of the rotary tables.
template <class C>
std::vector<double> score_bounds(const Packed<C>& keys, size_t s, const std::vector<float>& query, int group,
                                 double multiplier, double factor) {
  constexpr int D = C::kHeadDim, R = C::kRotaryDim;
  const int heads = keys.caches[s].heads;
  const int64_t tokens = keys.caches[s].tokens;
  const std::vector<double> spread = spread_of(keys, s);
  std::vector<double> bounds(static_cast<size_t>(heads) * group * tokens);
  for (int row = 0; row < heads * group; ++row) {
    const float* const q = query.data() + static_cast<size_t>(row) * D;
    for (int64_t t = 0; t < tokens; ++t) {
      const double* const k = spread.data() + (t * heads + row / group) * D;
      double sum = 0;
      for (int i = 0; i < R / 2; ++i) {
        const int a = C::kRope == Rope::interleaved ? 2 * i : i,
                  b = C::kRope == Rope::interleaved ? 2 * i + 1 : i + R / 2;
        sum += factor * std::hypot(q[a], q[b]) * std::hypot(k[a], k[b]);
      }
      for (int c = R; c < D; ++c) sum += std::fabs(q[c]) * k[c];
      bounds[row * tokens + t] = kRounding * multiplier * sum;
    }
  }
  return bounds;
}

/// Errors against their bounds: none above, and on the whole far below, as a wrong element shows less than a wrong sum.
class Errors {
 public:
  void add(double found, double wanted, double bound, const std::string& what) {
    const double error = std::fabs(found - wanted);
    if (!(error <= bound + 1e-30) && failures_++ < 3) {
      ADD_FAILURE() << what << ": found " << found << ", wanted " << wanted << " within " << bound;
    }
    if (bound > 1e-30) {
      squares_ += error * error;
      bounds_ += bound * bound;
    }
  }
  /// `most`: root mean square of the errors in units of the bounds'.
  void expect_small(double most) const {
    if (bounds_ > 0) {
      EXPECT_LE(std::sqrt(squares_ / bounds_), most) << "of the bound, in the mean";
    }
  }

 private:
  double squares_ = 0, bounds_ = 0;
  int failures_ = 0;
};

/// The sequences of a batch, one query row after another: [S, H * group, D].
inline std::vector<float> make_queries(const Shape& shape, int head_dim, std::mt19937& random) {
  return make_rows(static_cast<int64_t>(shape.lengths.size()) * shape.heads * shape.group, head_dim, random);
}
/// As a kernel takes them, at an address from which it may load 16 bytes at once.
class AlignedBytes {
 public:
  explicit AlignedBytes(const std::vector<uint8_t>& bytes) : lines_(bytes.size() / sizeof(Line) + 1) {
    std::memcpy(static_cast<void*>(lines_.data()), bytes.data(), bytes.size());
  }
  const void* data() const { return lines_.data(); }

 private:
  struct alignas(16) Line {
    uint8_t byte[16];
  };
  std::vector<Line> lines_;
};
inline std::vector<float> rows_of_sequence(const std::vector<float>& all, size_t s, size_t sequences) {
  const size_t each = all.size() / sequences;
  return {all.begin() + s * each, all.begin() + (s + 1) * each};
}
inline int first_visible(const Shape& shape, size_t s) {
  return shape.window > 0 ? std::max(shape.lengths[s] - shape.window, 0) : 0;
}
/// Queries [rows, D] turned back by `positions`: their scores of RoPE_p(key) are those of RoPE_(p + positions)(key) of
/// the queries as they were.
inline std::vector<float> turned_back(std::vector<float> query, int head_dim, const MmaRope& rope, int64_t positions) {
  const int pairs = static_cast<int>(rope.frequencies.size());
  for (size_t row = 0; row < query.size(); row += head_dim) {
    for (int i = 0; i < pairs; ++i) {
      float& x = query[row + (rope.interleaved ? 2 * i : i)];
      float& y = query[row + (rope.interleaved ? 2 * i + 1 : i + pairs)];
      const double angle = static_cast<double>(positions) * rope.frequencies[i];
      const double was_x = x, was_y = y;
      x = static_cast<float>(was_x * std::cos(angle) + was_y * std::sin(angle));
      y = static_cast<float>(was_y * std::cos(angle) - was_x * std::sin(angle));
    }
  }
  return query;
}
/// A sequence that readers see at the end of a context of kLongContext tokens, and by how many pages it is moved there:
/// offsets of base rows do not fit 16 bits.
constexpr int kLongContext = 131072;
inline Shape end_of_long_context() {
  return {"end of a long context", {4 * 64 + 32}, 5, 32, 100, 3, kSmall ? 1 : 2, Outliers::few, 1};
}
constexpr int32_t kPagesBefore = (kLongContext - 4 * 64) / 64;

inline int longest(const Shape& shape) { return *std::max_element(shape.lengths.begin(), shape.lengths.end()); }

}  // namespace kvcc::test
