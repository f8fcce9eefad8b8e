// The simulated cache with attention in double: what packed attention in double (kernels/cpu/attention_f64.cc) is
// judged against. Written apart from it, over libtorch.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "calib/eval/incremental_cache.h"
#include "kernels/host/rope_frequencies.h"
#include "kernels/host/rope_table.h"

namespace kvcc::test {

/// Rows are IncrementalCache's. Keys are turned by the angles that the packed cache's tables stand for, so that what is
/// left between the two is the order of sums in double.
class PreciseCache : public AttentionCache {
 public:
  /// For `tokens` tokens at most; `decoder` must outlive it.
  PreciseCache(const Codebook& codebook, const Decoder& decoder, int64_t tokens, int threads)
      : rope_(decoder.rope()),
        turns_(codebook.scheme.key.site == Site::pre_rope),
        one_by_one_(codebook.scheme.residual > 0),
        still_(turns_ ? without_turning(decoder.config().rope) : decoder.rope()),
        rows_(codebook, still_, decoder.layers(), threads) {
    if (!turns_) return;
    const RopeInfo& info = decoder.config().rope;
    const host::BlockRopeTables tables = host::block_rope_tables(host::rope_frequencies(info), tokens);
    const at::Tensor positions = at::arange(tokens, at::kLong);
    const auto rows = [&](const std::vector<float>& x, const at::Tensor& at) {
      return at::tensor(x).view({-1, info.rotary_dim / 2}).index_select(0, at).to(at::kDouble);
    };
    const at::Tensor block = positions.floor_divide(KVCC_ROPE_BLOCK), slot = positions.remainder(KVCC_ROPE_BLOCK);
    const at::Tensor bc = rows(tables.base_cosine, block), bs = rows(tables.base_sine, block);
    const at::Tensor rc = rows(tables.relative_cosine_f32, slot), rs = rows(tables.relative_sine_f32, slot);
    cosine_ = (bc * rc - bs * rs).unsqueeze(1);
    sine_ = (bs * rc + bc * rs).unsqueeze(1);
  }

  at::Tensor attend(int layer, int64_t first, const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value) override {
    const int64_t count = query.size(0), end = first + count, heads = key.size(1), group = query.size(1) / heads;
    if (one_by_one_ && count > 1) {  // the residual window is another one for each token
      std::vector<at::Tensor> mixed;
      for (int64_t t = 0; t < count; ++t) {
        const auto row = [&](const at::Tensor& x) { return x.narrow(0, t, 1); };
        mixed.push_back(attend(layer, first + t, row(query), row(key), row(value)));
      }
      return at::cat(mixed);
    }
    rows_.append(layer, first, key, value);
    const auto [k, v] = rows_.read(layer, end);
    const at::Tensor q = query.to(at::kDouble).view({count, heads, group, -1}).permute({1, 2, 0, 3});
    const at::Tensor seen = turned(k.to(at::kDouble)).permute({1, 2, 0}).unsqueeze(1);
    const double multiplier = 1.0f / std::sqrt(static_cast<float>(query.size(2)));  // as a launch has it
    const at::Tensor later = at::arange(end).unsqueeze(0) > at::arange(first, end).unsqueeze(1);
    const at::Tensor scores = (at::matmul(q, seen) * multiplier).masked_fill(later, -INFINITY);
    const at::Tensor mixed = at::matmul(at::softmax(scores, -1), v.to(at::kDouble).transpose(0, 1).unsqueeze(1));
    return mixed.permute({2, 0, 1, 3}).reshape({count, heads * group, -1}).to(at::kFloat);
  }
  void append(int layer, int64_t first, const at::Tensor& key, const at::Tensor& value) override {
    rows_.append(layer, first, key, value);
  }
  std::pair<at::Tensor, at::Tensor> read(int layer, int64_t count) const override {
    const auto [k, v] = rows_.read(layer, count);
    return {turns_ ? rope_.rotate(k.unsqueeze(0), rope_.angles(0, count))[0] : k, v};
  }

 private:
  /// All positions count as 0: rows stay as they were before RoPE.
  static Rope without_turning(RopeInfo info) {
    info.scaling = "linear";
    info.scaling_json = R"({"factor": 1e38})";
    return Rope(info);
  }
  /// Keys [T, H, D] in double, from position 0 on.
  at::Tensor turned(const at::Tensor& key) const {
    if (!turns_) return key;
    const int64_t half = cosine_.size(2);
    const at::Tensor c = cosine_.narrow(0, 0, key.size(0)), s = sine_.narrow(0, 0, key.size(0));
    const at::Tensor a = key.narrow(2, 0, half), b = key.narrow(2, half, half);
    return at::cat({a * c - b * s, b * c + a * s, key.narrow(2, 2 * half, key.size(2) - 2 * half)}, 2);
  }

  const Rope& rope_;
  bool turns_, one_by_one_;
  Rope still_;
  IncrementalCache rows_;
  at::Tensor cosine_, sine_;  ///< f64 [T, 1, rotary_dim / 2]
};

}  // namespace kvcc::test
