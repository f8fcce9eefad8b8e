// What quantisation does to attention itself, layer by layer and head by head, at some queries of a window.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace kvcc {

/// Against full precision's attention at N queries. `still`: the cache is quantised from full precision's own keys and
/// values, which full precision's queries meet (KVarN Figure 5, static); `grown`: in the scheme's own pass, in which
/// the errors of the layers and tokens before have their effect (accumulated).
struct AttentionErrors {
  int64_t windows = 0;
  /// [L, Hq] of the layers that have a cache, means over queries and windows: KL(exact weights || quantised weights) in
  /// nats; |o - o'|_1 / Dv.
  std::vector<double> still_kl, still_error, grown_error;
  /// [L, Hq], mean square of exact outputs' channels and of still outputs' errors: their ratio is a relative error.
  std::vector<double> output_power, still_power;
  /// [N], means over layers, heads, channels and windows of |o - o'|, by query.
  std::vector<double> still_by_query, grown_by_query;

  void add(const AttentionErrors& other);
};

/// Positions of `count` queries spread over `tokens`, the last one included.
std::vector<int64_t> query_positions(int64_t tokens, int64_t count);

/// Full precision's queries, weights and outputs at the query positions, kept by its pass for the others.
struct AttentionReference {
  /// `layers`: the model's that have a cache, ascending; rows are theirs.
  AttentionReference(std::vector<int> layers, std::vector<int64_t> positions);
  int64_t rows() const { return static_cast<int64_t>(output.size()); }
  int row(int layer) const;
  std::vector<int> layers;
  at::Tensor positions;            ///< int64 [N]
  std::vector<at::Tensor> output;  ///< [N, Hq, Dv] by row
};

/// Adds up the errors of one window in the layer of row `row` of `rows`. weights [Hq, N, T], outputs [N, Hq, Dv].
void add_still(AttentionErrors& errors, int64_t rows, int row, const at::Tensor& exact_weights,
               const at::Tensor& weights, const at::Tensor& exact_output, const at::Tensor& output);
void add_grown(AttentionErrors& errors, int64_t rows, int row, const at::Tensor& exact_output,
               const at::Tensor& output);

}  // namespace kvcc
