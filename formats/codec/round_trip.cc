// decode(encode(x)) without the codes between: cell boundaries are computed once, and a value's level is found by
// comparing it with all of them, sixteen values at a time. A search takes fewer steps, but up to 8 bits the gathers
// that it needs cost more than the comparisons that it saves.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/codec/checks.h"
#include "formats/codec/clones.h"
#include "formats/codec/reference.h"
#include "formats/codec/rows.h"
#include "formats/codec/tails.h"

namespace kvcc {
namespace {

constexpr int kLanes = 16;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

/// Cell boundaries of one head: boundary j lies between levels j and j + 1.
struct Cells {
  const float* levels;  ///< as decoded
  int count;
  std::vector<float> boundaries;  ///< [count - 1]
};

std::vector<Cells> cells_of(const LevelTable& table) {
  std::vector<Cells> cells(table.heads);
  for (int h = 0; h < table.heads; ++h) {
    cells[h].levels = table.decoded_head(h);
    cells[h].count = table.count(h);
    for (int j = 0; j + 1 < cells[h].count; ++j) cells[h].boundaries.push_back(upper_boundary(table.head(h), j));
  }
  return cells;
}

/// out[i] = decode of the level nearest to (x[i] - zero[i]) / scale[i]. `scale` and `zero` step by `step` (0: one for
/// all). In place allowed.
KVCC_CLONES void quantise(const float* x, const float* scale, const float* zero, int step, int n, const float* levels,
                          const float* boundaries, int count, float* out) {
  for (int begin = 0; begin < n; begin += kLanes) {
    const int width = std::min(kLanes, n - begin);
    float values[kLanes] = {}, s[kLanes], z[kLanes];
    if (width == kLanes && step == 1) {
      std::memcpy(values, x + begin, sizeof values);
      std::memcpy(s, scale + begin, sizeof s);
      std::memcpy(z, zero + begin, sizeof z);
    } else {
      for (int l = 0; l < kLanes; ++l) {
        const int i = begin + std::min(l, width - 1);
        values[l] = x[i];
        s[l] = scale[i * step];
        z[l] = zero[i * step];
      }
    }
    Lanes y, sv, zv;
    std::memcpy(&y, values, sizeof y);
    std::memcpy(&sv, s, sizeof sv);
    std::memcpy(&zv, z, sizeof zv);
    y = (y - zv) / sv;
    // Boundaries are non-decreasing, so those below y are a prefix and the last of them decides.
    Lanes level = Lanes{} + levels[0];
    for (int j = 0; j + 1 < count; ++j) {
      const Lanes next = Lanes{} + levels[j + 1];
      level = y > boundaries[j] ? next : level;
    }
    float nearest[kLanes], decoded[kLanes];
    std::memcpy(nearest, &level, sizeof level);
    for (int l = 0; l < kLanes; ++l) decoded[l] = fused_multiply_add(nearest[l], s[l], z[l]);
    if (width == kLanes) {
      std::memcpy(out + begin, decoded, sizeof decoded);
    } else {
      std::memcpy(out + begin, decoded, width * sizeof(float));
    }
  }
}

void quantise_head(const Cells& cells, const float* x, const float* scale, const float* zero, int step, int n,
                   float* out) {
  quantise(x, scale, zero, step, n, cells.levels, cells.boundaries.data(), cells.count, out);
}

/// Whether any of 64 or fewer elements lies outside its thresholds.
KVCC_CLONES bool any_outside(const float* x, const float* lower, const float* upper, int n) {
  int any = 0;
  for (int i = 0; i < n; ++i) any |= static_cast<int>(x[i] < lower[i]) | static_cast<int>(x[i] > upper[i]);
  return any != 0;
}

}  // namespace

int64_t round_trip(const ChannelQuantiser& q, std::span<const float> x, std::span<float> out, int threads,
                   const std::string& place, int64_t first_token) {
  check_quantiser(q, place);
  const int64_t rows = check_rows(x.size(), out.size(), int64_t{q.heads} * q.dim, place);
  const int n = q.heads * q.dim;
  const std::vector<Cells> cells = cells_of(q.table);
  const bool sparse = !q.threshold_lower.empty() && q.tail == 0;
  return over_rows(rows, threads, [&](int64_t begin, int64_t end) {
    constexpr int kBlock = 64;
    std::vector<float> row(n), normalised(n);
    RowTails tails;
    int64_t outliers = 0;
    for (int64_t t = begin; t < end; ++t) {
      std::copy_n(x.data() + t * n, n, row.data());
      if (first_non_finite(row) >= 0) check_finite(row, q.dim, token_place(place, first_token + t));
      float* to = out.data() + t * n;
      for (int h = 0; h < q.heads; ++h) {
        const int at = h * q.dim;
        quantise_head(cells[h], row.data() + at, q.scale.data() + at, q.zero.data() + at, 1, q.dim, to + at);
      }
      if (q.tail > 0) {
        for (int i = 0; i < n; ++i) normalised[i] = normalise(row[i], q.scale[i], q.zero[i]);
        split_tails(normalised, q.tail, tails);
        for (const uint16_t c : tails.columns) {
          const uint16_t half = float_to_half(row[c]);
          to[c] = half_to_float(
              half_is_infinite(half) ? checked_half(row[c], c, q.dim, token_place(place, first_token + t)) : half);
        }
        outliers += 2 * q.tail;
      }
      for (int i = 0; sparse && i < n; i += kBlock) {
        const int width = std::min(kBlock, n - i);
        if (!any_outside(row.data() + i, q.threshold_lower.data() + i, q.threshold_upper.data() + i, width)) continue;
        for (int c = i; c < i + width; ++c) {
          if (!outside_thresholds(row[c], q.threshold_lower[c], q.threshold_upper[c])) continue;
          const uint16_t half = float_to_half(row[c]);
          to[c] = half_to_float(
              half_is_infinite(half) ? checked_half(row[c], c, q.dim, token_place(place, first_token + t)) : half);
          ++outliers;
        }
      }
    }
    return outliers;
  });
}

int64_t round_trip(const TokenQuantiser& q, std::span<const float> x, std::span<float> out, int threads,
                   const std::string& place, int64_t first_token) {
  check_quantiser(q, place);
  const int64_t rows = check_rows(x.size(), out.size(), int64_t{q.heads} * q.dim, place);
  const int n = q.heads * q.dim;
  const std::vector<Cells> cells = cells_of(q.table);
  return over_rows(rows, threads, [&](int64_t begin, int64_t end) {
    std::vector<float> row(n);
    RowTails tails;
    for (int64_t t = begin; t < end; ++t) {
      std::copy_n(x.data() + t * n, n, row.data());
      if (first_non_finite(row) >= 0) check_finite(row, q.dim, token_place(place, first_token + t));
      split_tails(row, q.tail, tails);
      TokenRange range = token_range(tails.low, tails.high);
      if (half_is_infinite(range.scale) || half_is_infinite(range.zero)) {
        range = checked_range(tails.low, tails.high, token_place(place, first_token + t));
      }
      const float scale = half_to_float(range.scale), zero = half_to_float(range.zero);
      float* to = out.data() + t * n;
      for (int h = 0; h < q.heads; ++h) {
        quantise_head(cells[h], row.data() + h * q.dim, &scale, &zero, 0, q.dim, to + h * q.dim);
      }
      for (const uint16_t column : tails.columns) {
        const uint16_t half = float_to_half(row[column]);
        to[column] = half_to_float(half_is_infinite(half)
                                       ? checked_half(row[column], column, q.dim, token_place(place, first_token + t))
                                       : half);
      }
    }
    return (end - begin) * 2 * q.tail;
  });
}

}  // namespace kvcc
