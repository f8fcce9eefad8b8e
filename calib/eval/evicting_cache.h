// A scheme's cache over one window from which tokens are evicted.
#pragma once

#include <cstdint>

#include "calib/eval/eviction.h"
#include "calib/eval/mixed_attention.h"
#include "calib/eval/mode.h"
#include "calib/eval/simulated_cache.h"
#include "calib/model/rope.h"

namespace kvcc {

/// The tap of one window's pass; `cache`, which does the quantising, and `rope` outlive it. Each key/value head keeps
/// its own tokens, at their own positions. prefill_exact: the prompt's exact attention says what stays of it; row i of
/// the cache is the i-th survivor of every head, and so quantised; h2o then evicts after every token, snapkv and
/// pyramidkv no more. pseudo_decode: it is decided after each block, from the block's attention, in the cache's rows as
/// they are (quantised rows are never quantised anew). Not for full, and not for layers with a sliding window.
class EvictingCache : public KvTap {
 public:
  EvictingCache(SimulatedCache& cache, const ModeOptions& mode, const Eviction& eviction, const Rope& rope,
                int64_t layers)
      : cache_(cache), mode_(mode), eviction_(eviction), rope_(rope), layers_(layers) {}
  void before_rope(int layer, at::Tensor& key, at::Tensor& value) override;
  void after_rope(int layer, at::Tensor& key) override;
  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionRule& rule) override;
  /// Mean share of the cache's tokens that were there, over layers and the tokens that see a cache.
  double kept() const { return total_ > 0 ? there_ / total_ : 1; }

 private:
  at::Tensor after_prompt(int layer, const at::Tensor& query, const AttentionRule& rule);
  at::Tensor block_by_block(int layer, const at::Tensor& query, const AttentionRule& rule);
  /// One token after another over compacted rows, the last of which are the queries'.
  at::Tensor token_by_token(int layer, const at::Tensor& query, const RowVersions& keys, const RowVersions& values,
                            EvictionScores& scores, const AttentionRule& rule);
  void count(double there, double all) {
    there_ += there;
    total_ += all;
  }

  SimulatedCache& cache_;
  const ModeOptions mode_;
  const Eviction eviction_;
  const Rope& rope_;
  const int64_t layers_;
  at::Tensor before_, key_, value_;  ///< of the layer that is running, exact: before RoPE, after it
  double there_ = 0, total_ = 0;
};

}  // namespace kvcc
