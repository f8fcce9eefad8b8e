#include "calib/eval/attention_error.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace kvcc {
namespace {

void accumulate(std::vector<double>& sums, size_t size, size_t first, const at::Tensor& x, double factor = 1) {
  if (sums.empty()) sums.resize(size);
  const at::Tensor values = x.to(at::kDouble).contiguous();
  const double* numbers = values.const_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) sums[first + i] += numbers[i] * factor;
}

void add_up(std::vector<double>& to, double to_weight, const std::vector<double>& from, double from_weight) {
  if (from.empty()) return;
  if (to.empty()) to.resize(from.size());
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = (to[i] * to_weight + from[i] * from_weight) / (to_weight + from_weight);
  }
}

}  // namespace

std::vector<int64_t> query_positions(int64_t tokens, int64_t count) {
  const int64_t n = std::min(tokens, count);
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < n; ++i) positions.push_back((i + 1) * tokens / n - 1);
  return positions;
}

AttentionReference::AttentionReference(std::vector<int> of_layers, std::vector<int64_t> queries)
    : layers(std::move(of_layers)), positions(at::tensor(queries, at::kLong)), output(layers.size()) {}

int AttentionReference::row(int layer) const {
  return static_cast<int>(std::lower_bound(layers.begin(), layers.end(), layer) - layers.begin());
}

void AttentionErrors::add(const AttentionErrors& other) {
  const auto mine = static_cast<double>(windows), theirs = static_cast<double>(other.windows);
  add_up(still_kl, mine, other.still_kl, theirs);
  add_up(still_error, mine, other.still_error, theirs);
  add_up(grown_error, mine, other.grown_error, theirs);
  add_up(output_power, mine, other.output_power, theirs);
  add_up(still_power, mine, other.still_power, theirs);
  add_up(still_by_query, mine, other.still_by_query, theirs);
  add_up(grown_by_query, mine, other.grown_by_query, theirs);
  windows += other.windows;
}

void add_still(AttentionErrors& errors, int64_t rows, int row, const at::Tensor& exact_weights,
               const at::Tensor& weights, const at::Tensor& exact_output, const at::Tensor& output) {
  const auto heads = static_cast<size_t>(output.size(1));
  const size_t all = rows * heads, first = row * heads;
  // x log(x / y) with 0 log 0 = 0; a weight that the exact softmax has and the other has not is no more than 1e-38.
  const at::Tensor p = exact_weights.to(at::kDouble), q = weights.to(at::kDouble).clamp_min(1e-300);
  accumulate(errors.still_kl, all, first, (at::xlogy(p, p) - at::xlogy(p, q)).sum(2).mean(1));
  const at::Tensor difference = (output - exact_output).to(at::kDouble);
  accumulate(errors.still_error, all, first, difference.abs().mean({0, 2}));
  accumulate(errors.still_power, all, first, difference.square().mean({0, 2}));
  accumulate(errors.output_power, all, first, exact_output.to(at::kDouble).square().mean({0, 2}));
  accumulate(errors.still_by_query, output.size(0), 0, difference.abs().mean({1, 2}), 1 / static_cast<double>(rows));
}

void add_grown(AttentionErrors& errors, int64_t rows, int row, const at::Tensor& exact_output,
               const at::Tensor& output) {
  const auto heads = static_cast<size_t>(output.size(1));
  const at::Tensor difference = (output - exact_output).to(at::kDouble).abs();
  accumulate(errors.grown_error, rows * heads, row * heads, difference.mean({0, 2}));
  accumulate(errors.grown_by_query, output.size(0), 0, difference.mean({1, 2}), 1 / static_cast<double>(rows));
}

}  // namespace kvcc
