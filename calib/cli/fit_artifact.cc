#include "calib/cli/fit_artifact.h"

#include "calib/fit/usage.h"

namespace kvcc::cli {
namespace {

static_assert(kUsageBins == kNormalisedBins, "the fit's histograms are the artifact's");

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void append_statistics(TensorCodebooks& to, const TensorFit& fit) {
  append(to.stats.min, fit.min);
  append(to.stats.max, fit.max);
  append(to.stats.mean, fit.mean);
  append(to.stats.variance, fit.variance);
  append(to.stats.fisher, fit.fisher);
  append(to.stats.first_token_share, fit.first_token_share);
  append(to.stats.drift, fit.drift);
  append(to.stats.sample_share, fit.sample_share);
  append(to.stats.token_share, fit.token_share);
  append(to.stats.heaviest_sample, fit.heaviest_sample);
  append(to.stats.token_sample, fit.token_sample);
  append(to.stats.token_position, fit.token_position);
  append(to.stats.reached, fit.reached);
}

void append_layer(TensorCodebooks& to, const TensorFit& fit) {
  to.codes = fit.table.stride;
  append(to.codebook, fit.table.levels);
  append(to.bits, fit.table.bits);
  append(to.scale, fit.scale);
  append(to.zero, fit.zero);
  append(to.threshold_lower, fit.threshold_lower);
  append(to.threshold_upper, fit.threshold_upper);
  append(to.norm_scale, fit.norm_scale);
  append(to.norm_offset, fit.norm_offset);
  append(to.outlier_fraction, fit.outlier_fraction);
  append(to.stats.weighted_sse, fit.weighted_sse);
  append(to.stats.sqnr_db, fit.sqnr_db);
  append(to.stats.fit_gap_bound, fit.fit_gap_bound);
  append(to.stats.distinct, fit.distinct);
  append(to.stats.histogram, fit.histogram);
  append(to.stats.code_use, fit.code_use);
  append(to.stats.held_out_outliers, fit.held_out_outliers);
  append_statistics(to, fit);
}

}  // namespace kvcc::cli
