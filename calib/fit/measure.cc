// Stage 4: what the reference codec makes of the activations.
#include <algorithm>

#include "calib/fit/tensor_fit.h"
#include "calib/fit/usage.h"
#include "formats/codec/clones.h"
#include "formats/codec/tails.h"

namespace kvcc {
namespace {

/// Adds F (x - x^)^2, (x - x^)^2 and x^2 of a row to sums [n] each. `g` may be null: F is 1.
KVCC_CLONES void add_errors(const float* x, const float* decoded, const float* g, int n, double* weighted,
                            double* error, double* energy) {
  for (int i = 0; i < n; ++i) {
    const double v = x[i], e = v - decoded[i], gradient = g != nullptr ? g[i] : 1.0f;
    error[i] += e * e;
    weighted[i] += (gradient * gradient) * (e * e);
    energy[i] += v * v;
  }
}

KVCC_CLONES void add_outside(const float* x, const float* lower, const float* upper, int n, int32_t* counts) {
  for (int i = 0; i < n; ++i) {
    counts[i] += static_cast<int32_t>(x[i] < lower[i]) | static_cast<int32_t>(x[i] > upper[i]);
  }
}

}  // namespace

void TensorFitter::measure(int plan, int64_t sample) {
  const TensorPlan& asked = plans_[plan];
  Work& work = work_[plan];
  if (work.normaliser < 0) return;
  const Normaliser& norm = normalisers_[work.normaliser];
  const int n = in_.row_size();
  const int64_t tokens = in_.length(sample);
  const std::span<const float> x = in_.x.subspan(in_.begin(sample) * n, tokens * n);
  const std::string place = in_.name + ", sample " + std::to_string(sample);
  const bool sparse = asked.sparse > 0;
  std::vector<float> decoded(x.size());
  const int capped_tail = asked.capped ? outliers_per_tail(asked.sparse, n) : 0;
  const LevelTable levels = table(plan);
  Usage usage(levels, in_.dim, norm.axis == Axis::channel && sparse && capped_tail == 0);
  if (norm.axis == Axis::channel) {
    ChannelQuantiser q{in_.heads, in_.dim, levels, norm.scale, norm.zero, {}, {}};
    if (sparse) {
      q.threshold_lower = norm.lower;
      q.threshold_upper = norm.upper;
      q.tail = capped_tail;
    }
    round_trip(q, x, decoded, 1, place);
  } else {
    round_trip(TokenQuantiser{in_.heads, in_.dim, levels, norm.tail}, x, decoded, 1, place);
  }
  std::vector<double> weighted(n), error(n), energy(n);
  std::vector<int32_t> outliers(n);
  std::vector<float> normalised(n);
  RowTails tails;
  for (int64_t t = std::min<int64_t>(asked.sink, tokens); t < tokens; ++t) {
    const int64_t row = in_.begin(sample) + t;
    const float* g = in_.grad.empty() ? nullptr : in_.grad.data() + row * n;
    add_errors(x.data() + t * n, decoded.data() + t * n, g, n, weighted.data(), error.data(), energy.data());
    if (norm.axis == Axis::token) {
      const auto columns = std::span(norm.columns).subspan(row * 2 * norm.tail, 2 * norm.tail);
      for (const uint16_t column : columns) ++outliers[column];
      if (norm.token_scale[row] != 0) {
        usage.add_token(x.data() + t * n, norm.token_scale[row], norm.token_zero[row], columns);
      }
    } else {
      const bool thresholds = sparse && capped_tail == 0;
      if (capped_tail > 0) {
        for (int i = 0; i < n; ++i) normalised[i] = kvcc::normalise(x[t * n + i], norm.scale[i], norm.zero[i]);
        split_tails(normalised, capped_tail, tails);
        for (const uint16_t column : tails.columns) ++outliers[column];
      } else if (sparse) {
        add_outside(x.data() + t * n, norm.lower.data(), norm.upper.data(), n, outliers.data());
      }
      const std::span<const float> none;
      usage.add_channels(x.data() + t * n, norm.scale, norm.zero, thresholds ? norm.lower : none,
                         thresholds ? norm.upper : none);
    }
  }
  work.bins[sample] = usage.bins();
  work.codes[sample] = usage.codes();
  for (int i = 0; i < n; ++i) {
    const size_t at = sample * in_.heads + i / in_.dim;
    work.weighted[at] += weighted[i];
    work.error[at] += error[i];
    work.energy[at] += energy[i];
    work.outliers[at] += outliers[i];
  }
}

}  // namespace kvcc
