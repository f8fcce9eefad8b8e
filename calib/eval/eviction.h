// Which tokens of a cache are kept when there is room for some only (METHODS.md 8).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcc {

enum class EvictionKind : uint8_t {
  h2o,        ///< half of the budget for the tokens that got most attention so far, half for the last ones
  snapkv,     ///< those that the last `window` queries look at, pooled over neighbours, and the window
  pyramidkv,  ///< the same with more room in lower layers
};

struct Eviction {
  EvictionKind kind = EvictionKind::snapkv;
  int64_t budget = 1024;  ///< tokens a key/value head and layer; pyramidkv: mean over layers
  int64_t window = 32;    ///< last queries that snapkv and pyramidkv look at, kept themselves; less than the budget
  int64_t kernel = 5;     ///< of the mean over neighbours, odd
  int64_t beta = 20;      ///< of pyramidkv: the least room is (budget - window) / beta

  bool operator==(const Eviction&) const = default;
};

/// "h2o:BUDGET", "snapkv:BUDGET" or "pyramidkv:BUDGET". Throws Error(usage).
Eviction parse_eviction(std::string_view text);
std::string eviction_name(const Eviction& eviction);  ///< parses back

/// Tokens that layer `layer` of `layers` keeps of `tokens`: all of them when they fit.
int64_t kept_tokens(const Eviction& eviction, int64_t layer, int64_t layers, int64_t tokens);

/// One layer's attention so far, from which it is decided what stays. Scores of a key/value head are sums over the
/// query heads that read it. Positions are those of the cache's rows, evicted ones included.
class EvictionScores {
 public:
  EvictionScores(const Eviction& eviction, int64_t layer, int64_t layers, int64_t kv_heads)
      : eviction_(eviction), layer_(layer), layers_(layers), kv_heads_(kv_heads) {}
  /// Weights f32 [Hq, N, M] of the next N queries over the first M rows; 0 where one is evicted.
  void attended(const at::Tensor& weights);
  /// bool [H, length]: what stays of the first `length` rows, of which `kept` [H, length] are there. The lower position
  /// wins among equal scores.
  at::Tensor select(const at::Tensor& kept) const;
  /// From now on row i of head h is what row index[h][i] was; index int64 [H, n].
  void compact(const at::Tensor& index);
  /// Whether queries before the last `rest` ones matter.
  bool needs(int64_t rest) const { return eviction_.kind == EvictionKind::h2o || rest <= eviction_.window; }

 private:
  Eviction eviction_;
  int64_t layer_, layers_, kv_heads_;
  at::Tensor sums_;  ///< [H, M] of all queries (h2o), or [H, n, M] of the last n
};

}  // namespace kvcc
