// The reference codec of the channel and token quantisers: plain loops over formats/codec/element.h. Eval simulates
// with it, the kernels' oracle compares with it, fit normalises with it. Host only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/codec/element.h"

namespace kvcc {

/// Levels of one layer's tensor: head h uses levels[h * stride .. h * stride + (1 << bits[h])).
struct LevelTable {
  int heads = 0;
  int stride = 0;             ///< C
  std::vector<float> levels;  ///< [H, C], non-decreasing within a head
  std::vector<uint8_t> bits;  ///< [H]
  /// [H, C] What codes decode to, as KVQuant's Q-Norm has it; empty: the levels.
  std::vector<float> decoded{};
  const float* decoded_head(int h) const {
    return (decoded.empty() ? levels : decoded).data() + static_cast<size_t>(h) * stride;
  }
  const float* head(int h) const { return levels.data() + static_cast<size_t>(h) * stride; }
  int count(int h) const { return 1 << bits[h]; }
};

/// Gives the table its decoded levels, fmaf(level, scale[h], offset[h]); scale and offset [H]. Levels that are NaN
/// stay.
void apply_qnorm(LevelTable& table, std::span<const float> scale, std::span<const float> offset);

/// Static per-channel quantiser of one layer (pre-RoPE keys). All vectors [H, D].
struct ChannelQuantiser {
  int heads = 0, dim = 0;
  LevelTable table;
  std::vector<float> scale, zero;                       ///< unit: of the keys
  std::vector<float> threshold_lower, threshold_upper;  ///< empty: no sparse part
  /// Above 0, the thresholds are not asked: outliers are this many of each end of the token's normalised row (KVQuant's
  /// capped outliers), by tail_less(), and values beyond the outermost levels take those.
  int tail = 0;
};

/// Online per-token quantiser of one layer, one range over all heads (values; keys of the int baselines).
struct TokenQuantiser {
  int heads = 0, dim = 0;
  LevelTable table;
  int tail = 0;  ///< outliers of each tail kept exactly, see outliers_per_tail()
};

/// One outlier: position in the token's row and the fp16 that is stored.
struct SparseEntry {
  uint16_t column;  ///< head * dim + channel
  uint16_t value;   ///< fp16
};

/// One token, encoded. codes[head * dim + channel]; an outlier's code is the nearest level of its clamped value.
struct EncodedToken {
  std::vector<uint8_t> codes;       ///< [H * D]
  std::vector<SparseEntry> sparse;  ///< ascending columns
  TokenRange range{};               ///< token quantiser only
};

/// Encode and decode of one row x [H * D]. `place` names layer and token in the error for values that are not finite or
/// overflow fp16 where they must be stored exactly.
void encode(const ChannelQuantiser& q, std::span<const float> x, EncodedToken& out, const std::string& place = "key");
void encode(const TokenQuantiser& q, std::span<const float> x, EncodedToken& out, const std::string& place = "value");
void decode(const ChannelQuantiser& q, const EncodedToken& in, std::span<float> out);
void decode(const TokenQuantiser& q, const EncodedToken& in, std::span<float> out);

/// decode(encode(x)) for x [T, H, D], in place allowed; bit-equal to the two calls above, and faster. Returns the
/// number of outliers. Threads over tokens with `threads` > 1; the result does not depend on it. Errors count tokens
/// from `first_token`.
int64_t round_trip(const ChannelQuantiser& q, std::span<const float> x, std::span<float> out, int threads = 1,
                   const std::string& place = "key", int64_t first_token = 0);
int64_t round_trip(const TokenQuantiser& q, std::span<const float> x, std::span<float> out, int threads = 1,
                   const std::string& place = "value", int64_t first_token = 0);

/// Full-precision exceptions (sinks, tail): rounds to fp16. Throws Error(bad_input) on overflow, naming place.
void round_to_record(std::span<const float> x, std::span<float> out, const std::string& place);

/// Levels of the grids that need no data, in [-1, 1]: int (uniform, ends included) and nf (METHODS.md 5.4). bits 1 to 8
/// (nf: 2 to 4... as defined there).
std::vector<float> integer_levels(int bits);
std::vector<float> normal_float_levels(int bits);

}  // namespace kvcc
