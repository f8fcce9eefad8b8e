// Attention of a window over keys and values of which each token sees some as they were computed, some in half
// precision and some quantised.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "calib/model/attention.h"

namespace kvcc {

/// Three versions of a window's rows, each [1, T, H, D].
struct RowVersions {
  at::Tensor computed;  ///< as the layer made them
  at::Tensor half;      ///< rounded to fp16
  at::Tensor coded;     ///< as the cache gives them back; exact tokens are those of `half`
};

/// What token t sees, none of it falling as t grows: positions before `key_coded` (`value_coded`) coded, from `live` on
/// as computed, those between in half precision.
struct TokenView {
  int64_t key_coded = 0, value_coded = 0, live = 0;
};

/// query [1, T, Hq, D] after RoPE; keys after RoPE. Token t attends to positions up to t by view(t); `live` is the same
at::Tensor mixed_attention(const at::Tensor& query, const RowVersions& keys, const RowVersions& values,
                           const std::function<TokenView(int64_t t)>& view, int64_t chunk, int64_t split,
                           const AttentionRule& rule, int64_t first = 0);

/// The same for the queries `positions` [N] (int64) alone, query [1, N, Hq, D], with the weights: slower, and memory
/// for N rows of scores. `kept`, if defined, is bool [H, T]: false where none of them sees a row. `weights`
/// [1, Hq, N, T].
struct MixedRows {
  at::Tensor weights, output;  ///< output [1, N, Hq, Dv]
};
MixedRows mixed_attention_rows(const at::Tensor& query, const at::Tensor& positions, const RowVersions& keys,
                               const RowVersions& values, const std::function<TokenView(int64_t t)>& view,
                               const AttentionRule& rule, const at::Tensor& kept = {});

}  // namespace kvcc
