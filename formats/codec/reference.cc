// Encode and decode of one row: plain loops. round_trip.cc is the fast form of the same.
#include "formats/codec/reference.h"

#include <algorithm>

#include "formats/codec/checks.h"
#include "formats/codec/tails.h"
#include "formats/core/error.h"

namespace kvcc {

void encode(const ChannelQuantiser& q, std::span<const float> x, EncodedToken& out, const std::string& place) {
  check_quantiser(q, place);
  check_row(x.size(), q.heads, q.dim, place);
  check_finite(x, q.dim, place);
  const int n = q.heads * q.dim;
  const bool sparse = !q.threshold_lower.empty() && q.tail == 0;
  out.codes.resize(n);
  out.sparse.clear();
  out.range = {};
  if (q.tail > 0) {
    std::vector<float> normalised(n);
    for (int i = 0; i < n; ++i) normalised[i] = normalise(x[i], q.scale[i], q.zero[i]);
    RowTails tails;
    split_tails(normalised, q.tail, tails);
    for (const uint16_t i : tails.columns) out.sparse.push_back({i, checked_half(x[i], i, q.dim, place)});
  }
  for (int i = 0; i < n; ++i) {
    const int h = i / q.dim;
    float v = x[i];
    if (sparse && outside_thresholds(v, q.threshold_lower[i], q.threshold_upper[i])) {
      out.sparse.push_back({static_cast<uint16_t>(i), checked_half(v, i, q.dim, place)});
      v = std::clamp(v, q.threshold_lower[i], q.threshold_upper[i]);
    }
    out.codes[i] =
        static_cast<uint8_t>(nearest_level(q.table.head(h), q.table.count(h), normalise(v, q.scale[i], q.zero[i])));
  }
}

void encode(const TokenQuantiser& q, std::span<const float> x, EncodedToken& out, const std::string& place) {
  check_quantiser(q, place);
  check_row(x.size(), q.heads, q.dim, place);
  check_finite(x, q.dim, place);
  const int n = q.heads * q.dim;
  RowTails tails;
  split_tails(x, q.tail, tails);
  out.range = checked_range(tails.low, tails.high, place);
  const float scale = half_to_float(out.range.scale), zero = half_to_float(out.range.zero);
  out.codes.resize(n);
  out.sparse.clear();
  for (const uint16_t column : tails.columns) {
    out.sparse.push_back({column, checked_half(x[column], column, q.dim, place)});
  }
  for (int i = 0; i < n; ++i) {
    const int h = i / q.dim;
    const float v = std::clamp(x[i], tails.low, tails.high);  // changes outliers only
    out.codes[i] = static_cast<uint8_t>(nearest_level(q.table.head(h), q.table.count(h), normalise(v, scale, zero)));
  }
}

namespace {

/// out = decode of every code; `scale` and `zero` step by `step` (0: one for all).
void decode_row(const LevelTable& table, int heads, int dim, const EncodedToken& in, const float* scale,
                const float* zero, int step, std::span<float> out) {
  check_row(out.size(), heads, dim, "decoded");
  check_row(in.codes.size(), heads, dim, "encoded");
  const auto refuse = [](const char* what, int found, int most) {
    throw Error(ErrorKind::failed, "encoded token", what + std::to_string(found), "at most " + std::to_string(most));
  };
  for (int i = 0; i < heads * dim; ++i) {
    const int h = i / dim;
    if (in.codes[i] >= table.count(h)) refuse("code ", in.codes[i], table.count(h) - 1);
    out[i] = decode_element(table.decoded_head(h)[in.codes[i]], scale[i * step], zero[i * step]);
  }
  for (const SparseEntry& entry : in.sparse) {
    if (entry.column >= heads * dim) refuse("outlier at column ", entry.column, heads * dim - 1);
    out[entry.column] = half_to_float(entry.value);
  }
}

}  // namespace

void decode(const ChannelQuantiser& q, const EncodedToken& in, std::span<float> out) {
  check_quantiser(q, "decode");
  decode_row(q.table, q.heads, q.dim, in, q.scale.data(), q.zero.data(), 1, out);
}

void decode(const TokenQuantiser& q, const EncodedToken& in, std::span<float> out) {
  check_quantiser(q, "decode");
  const float scale = half_to_float(in.range.scale), zero = half_to_float(in.range.zero);
  decode_row(q.table, q.heads, q.dim, in, &scale, &zero, 0, out);
}

void round_to_record(std::span<const float> x, std::span<float> out, const std::string& place) {
  if (out.size() != x.size()) {
    throw Error(ErrorKind::failed, place, std::to_string(out.size()) + " outputs", std::to_string(x.size()));
  }
  const auto refuse = [&](size_t i, const std::string& wanted) {
    throw bad_input(place + ", element " + std::to_string(i), std::to_string(x[i]), wanted);
  };
  if (const int64_t i = first_non_finite(x); i >= 0) refuse(i, "a finite value");
  for (size_t i = 0; i < x.size(); ++i) {
    const uint16_t half = float_to_half(x[i]);
    if (half_is_infinite(half)) refuse(i, "a magnitude that fits fp16 (at most 65504), as it is stored exactly");
    out[i] = half_to_float(half);
  }
}

}  // namespace kvcc
