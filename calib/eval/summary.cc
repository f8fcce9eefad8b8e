#include "calib/eval/summary.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace kvcc {
namespace {

template <typename T>
double average(const std::vector<T>& x, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += static_cast<double>(x[i]);
  return sum / static_cast<double>(end - begin);
}

using Windows = std::vector<WindowRecord>;

std::vector<double> per_window(const Windows& windows, const std::function<double(const WindowRecord&)>& figure) {
  std::vector<double> figures;
  for (const WindowRecord& window : windows) figures.push_back(figure(window));
  return figures;
}

using Weights = std::vector<double>;

/// Predictions of each window where they differ: means are then over all predictions alike. Empty where all windows
/// have as many.
Weights weights_of(const Windows& windows) {
  Weights weights;
  for (const WindowRecord& window : windows) weights.push_back(static_cast<double>(window.predictions.nll.size()));
  const bool same = std::all_of(weights.begin(), weights.end(), [&](double w) { return w == weights[0]; });
  return same ? Weights() : weights;
}

Estimate estimate(const std::vector<double>& windows, const Weights& weights) {
  return {mean(windows, weights), standard_error(windows, weights)};
}

Estimate kl_quantile(const Windows& windows, const std::vector<float>& all, double p, const Weights& weights) {
  const auto own = per_window(windows, [&](const WindowRecord& w) { return quantile(w.predictions.kl, p); });
  return {quantile(all, p), standard_error(own, weights)};
}

template <typename Figure>
std::vector<double> binned(const Windows& windows, const std::vector<int64_t>& bins, const Figure& figure) {
  const bool same = weights_of(windows).empty();
  std::vector<double> result;
  for (size_t b = 0; b + 1 < bins.size(); ++b) {
    const size_t begin = bins[b] - 1, end = bins[b + 1] - 1;  // the first prediction is that of position 1
    double sum = 0, weight = 0;
    for (size_t w = 0; w < windows.size(); ++w) {
      const size_t there = std::min(end, windows[w].predictions.nll.size());
      if (there <= begin) continue;  // a window too short for this bin
      const double own = same ? 1.0 : static_cast<double>(there - begin);
      sum += own * figure(w, begin, there);
      weight += own;
    }
    result.push_back(sum / weight);
  }
  return result;
}

std::vector<RepairedKl> mean_repairs(const Windows& windows, const Weights& weights) {
  std::vector<RepairedKl> result = windows[0].repairs;
  for (size_t i = 0; i < result.size(); ++i) {
    result[i].worst_exact =
        mean(per_window(windows, [&](const WindowRecord& w) { return w.repairs[i].worst_exact; }), weights);
    result[i].rest_exact =
        mean(per_window(windows, [&](const WindowRecord& w) { return w.repairs[i].rest_exact; }), weights);
  }
  return result;
}

}  // namespace

std::vector<int64_t> position_bins(int64_t seqlen) {
  const int64_t count = std::min<int64_t>(16, seqlen - 1);
  std::vector<int64_t> bins;
  for (int64_t i = 0; i <= count; ++i) bins.push_back(1 + i * (seqlen - 1) / count);
  return bins;
}

EvalResult summarise(const Windows& run, const Windows& full, const std::vector<int64_t>& bins) {
  EvalResult result;
  const Weights weights = weights_of(run);
  result.window_nll =
      per_window(run, [](const WindowRecord& w) { return average(w.predictions.nll, 0, w.predictions.nll.size()); });
  result.nll = mean(result.window_nll, weights);
  result.perplexity = std::exp(result.nll);
  std::vector<double> difference = result.window_nll;
  for (size_t w = 0; w < run.size(); ++w)
    difference[w] -= average(full[w].predictions.nll, 0, full[w].predictions.nll.size());
  result.dnll = estimate(difference, weights);
  result.kl = estimate(
      per_window(run, [](const WindowRecord& w) { return average(w.predictions.kl, 0, w.predictions.kl.size()); }),
      weights);
  result.top1 = estimate(
      per_window(run,
                 [](const WindowRecord& w) { return average(w.predictions.agreed, 0, w.predictions.agreed.size()); }),
      weights);
  std::vector<float> all;
  for (const WindowRecord& w : run) all.insert(all.end(), w.predictions.kl.begin(), w.predictions.kl.end());
  result.kl_median = kl_quantile(run, all, 0.5, weights);
  result.kl_p90 = kl_quantile(run, all, 0.9, weights);
  result.kl_p99 = kl_quantile(run, all, 0.99, weights);
  result.kl_p999 = kl_quantile(run, all, 0.999, weights);
  result.bin_kl =
      binned(run, bins, [&](size_t w, size_t begin, size_t end) { return average(run[w].predictions.kl, begin, end); });
  result.bin_dnll = binned(run, bins, [&](size_t w, size_t begin, size_t end) {
    return average(run[w].predictions.nll, begin, end) - average(full[w].predictions.nll, begin, end);
  });
  int64_t outliers = 0, elements = 0;
  result.key_errors = run[0].key_errors;
  for (size_t w = 0; w < run.size(); ++w) {
    outliers += run[w].key_outliers;
    elements += run[w].key_elements;
    result.seconds += run[w].seconds;
    result.attention.add(run[w].attention);
    if (w > 0) result.key_errors.add(run[w].key_errors);
  }
  if (elements > 0) result.key_outlier_fraction = static_cast<double>(outliers) / static_cast<double>(elements);
  result.kept = mean(per_window(run, [](const WindowRecord& w) { return w.kept; }), weights);
  result.repairs = mean_repairs(run, weights);
  return result;
}

}  // namespace kvcc
