// Plan, tasks and results; what the tasks do is in normalise.cc, cluster.cc and measure.cc.
#include "calib/fit/tensor_fit.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "formats/codec/tails.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {
bool needs_kmeans(const TensorPlan& plan) { return plan.tensor.grid == Grid::nuq; }

/// Whether both halves have a token that is not the first of its sample.
bool has_halves(const TensorInput& in) {
  if (in.samples == 1) return in.rows() > 2;
  const int64_t first = in.second_half(), samples = (in.samples + 1) / 2;
  return first > samples && in.rows() - first > in.samples - samples;
}

/// counts [parts, n] to shares of each part's sum.
std::vector<float> shares(const std::vector<int64_t>& counts, size_t parts) {
  const size_t n = counts.size() / parts;
  std::vector<float> out(counts.size());
  for (size_t p = 0; p < parts; ++p) {
    int64_t sum = 0;
    for (size_t i = p * n; i < (p + 1) * n; ++i) sum += counts[i];
    for (size_t i = p * n; i < (p + 1) * n && sum > 0; ++i) {
      out[i] = static_cast<float>(static_cast<double>(counts[i]) / static_cast<double>(sum));
    }
  }
  return out;
}
}  // namespace

TensorFitter::TensorFitter(TensorInput input, std::vector<TensorPlan> plans)
    : in_(std::move(input)), plans_(std::move(plans)), work_(plans_.size()) {
  const size_t channels = static_cast<size_t>(in_.row_size()), heads = static_cast<size_t>(in_.heads);
  for (auto* v : {&stats_.min, &stats_.max, &stats_.mean, &stats_.variance, &stats_.fisher}) v->resize(channels);
  stats_.first_token_share.resize(heads);
  if (has_halves(in_)) stats_.drift.resize(heads);
  const bool has_rest = in_.rows() > in_.samples;  // tokens that are not the first of their sample
  if (!in_.grad.empty() && has_rest) {
    for (auto* v : {&stats_.sample_share, &stats_.token_share}) v->resize(heads);
    for (auto* v : {&stats_.heaviest_sample, &stats_.token_sample, &stats_.token_position}) v->resize(heads);
  }
  stats_.reached.resize(heads);
  for (size_t p = 0; p < plans_.size(); ++p) {
    const TensorPlan& plan = plans_[p];
    const bool needs_rest = (plan.tensor.axis == Axis::channel && !plan.first_in_thresholds) ||
                            (needs_kmeans(plan) && !plan.first_in_kmeans);
    if (plan.tensor.grid != Grid::full && needs_rest && !has_rest) {
      throw bad_input(in_.name, "samples of 1 token", "2 or more, as the first of each sample is left out of the fit",
                      "collect with a larger --seqlen, or fit with first-thresholds=in,first-kmeans=in");
    }
    Work& work = work_[p];
    for (auto* v : {&work.weighted, &work.error, &work.energy}) v->resize(in_.samples * heads);
    work.outliers.resize(in_.samples * heads);
    work.bins.resize(in_.samples);
    work.codes.resize(in_.samples);
    if (plan.tensor.grid == Grid::full || !plan.measured) continue;
    work.normaliser = add_normaliser(plan);
    if (needs_kmeans(plan)) add_clustering(work, add_weighting(work.normaliser, plan), plan);
    if (plan.qnorm) {
      work.norm_scale.assign(heads, 1.0f);
      work.norm_offset.assign(heads, 0.0f);
    }
  }
}

int TensorFitter::add_normaliser(const TensorPlan& plan) {
  const bool channel = plan.tensor.axis == Axis::channel;
  const int tail = channel ? 0 : outliers_per_tail(plan.sparse, in_.row_size());
  if (!channel) check_tails(in_.row_size(), tail, in_.name);
  for (size_t i = 0; i < normalisers_.size(); ++i) {
    const Normaliser& n = normalisers_[i];
    if (n.axis != plan.tensor.axis) continue;
    if (channel ? n.sparse == plan.sparse && n.first == plan.first_in_thresholds : n.tail == tail) {
      return static_cast<int>(i);
    }
  }
  Normaliser n;
  n.axis = plan.tensor.axis;
  n.sparse = plan.sparse;
  n.first = plan.first_in_thresholds;
  n.tail = tail;
  if (channel) {
    for (auto* v : {&n.scale, &n.zero, &n.lower, &n.upper}) v->resize(in_.row_size());
    if (n.sparse > 0 && has_halves(in_)) n.held_out.resize(in_.heads);
  } else {
    n.token_scale.resize(in_.rows());
    n.token_zero.resize(in_.rows());
    n.columns.resize(in_.rows() * 2 * tail);
  }
  normalisers_.push_back(std::move(n));
  return static_cast<int>(normalisers_.size()) - 1;
}

int TensorFitter::add_weighting(int normaliser, const TensorPlan& plan) {
  for (size_t i = 0; i < weightings_.size(); ++i) {
    const Weighting& w = weightings_[i];
    if (w.normaliser == normaliser && w.weight == plan.weight && w.first == plan.first_in_kmeans) {
      return static_cast<int>(i);
    }
  }
  weightings_.push_back({normaliser, plan.weight, plan.first_in_kmeans, {}});
  weightings_.back().heads.resize(in_.heads);
  return static_cast<int>(weightings_.size()) - 1;
}

void TensorFitter::add_clustering(Work& work, int weighting, const TensorPlan& plan) {
  const int codes = 1 << plan.tensor.bits, most = std::max(codes, 16);
  const auto same = [&](const Clustering& c) {
    return c.weighting == weighting && c.scope == plan.scope && c.most == most;
  };
  auto found = std::find_if(clusterings_.begin(), clusterings_.end(), same);
  if (found == clusterings_.end()) {
    clusterings_.push_back({weighting, plan.scope, most, {most}, {}});
    clusterings_.back().results.resize(plan.scope == CodebookScope::head ? in_.heads : 1);
    found = clusterings_.end() - 1;
  }
  work.clustering = static_cast<int>(found - clusterings_.begin());
  const auto count = std::find(found->counts.begin(), found->counts.end(), codes);
  work.count = static_cast<int>(count - found->counts.begin());
  if (count == found->counts.end()) found->counts.push_back(codes);
}

int TensorFitter::tasks(int stage) const {
  const int samples = static_cast<int>(in_.samples), heads = in_.heads;
  int count = 0;
  switch (stage) {
    case 0:
      return heads;
    case 1:
      for (const Normaliser& n : normalisers_) count += n.axis == Axis::channel ? heads : samples;
      return count;
    case 2:
      return static_cast<int>(weightings_.size()) * heads;
    case 3:
      for (const Clustering& c : clusterings_) count += static_cast<int>(c.results.size());
      return count;
    case 4:
      return static_cast<int>(plans_.size()) * heads;
    default:
      return static_cast<int>(plans_.size()) * samples;
  }
}

void TensorFitter::run(int stage, int task) {
  const int samples = static_cast<int>(in_.samples), heads = in_.heads;
  switch (stage) {
    case 0:
      return describe_head(task);
    case 1:
      for (Normaliser& n : normalisers_) {
        const int count = n.axis == Axis::channel ? heads : samples;
        if (task < count) return n.axis == Axis::channel ? normalise_channels(n, task) : normalise_tokens(n, task);
        task -= count;
      }
      return;
    case 2: {
      Weighting& weighting = weightings_[task / heads];
      weighting.heads[task % heads] = std::make_unique<Histogram>(histogram(weighting, task % heads, true));
      return;
    }
    case 3:
      for (Clustering& c : clusterings_) {
        if (task < static_cast<int>(c.results.size())) return cluster(c, task);
        task -= static_cast<int>(c.results.size());
      }
      return;
    case 4:
      return match_moments(task / heads, task % heads);
    default:
      return measure(task / samples, task % samples);
  }
}

LevelTable TensorFitter::table(int plan) const {
  const TensorScheme& tensor = plans_[plan].tensor;
  LevelTable table;
  table.heads = in_.heads;
  table.bits.assign(in_.heads, static_cast<uint8_t>(tensor.bits));
  if (tensor.grid == Grid::full) return table;
  table.stride = 1 << tensor.bits;
  std::vector<float> levels;
  if (tensor.grid == Grid::integer) levels = integer_levels(tensor.bits);
  if (tensor.grid == Grid::normal_float) levels = normal_float_levels(tensor.bits);
  for (int h = 0; h < in_.heads; ++h) {
    if (tensor.grid == Grid::nuq) {
      const Clustering& c = clusterings_[work_[plan].clustering];
      const std::vector<double>& centres = c.results[c.results.size() == 1 ? 0 : h][work_[plan].count].centres;
      levels.assign(centres.begin(), centres.end());
    }
    table.levels.insert(table.levels.end(), levels.begin(), levels.end());
  }
  if (!work_[plan].norm_scale.empty()) apply_qnorm(table, work_[plan].norm_scale, work_[plan].norm_offset);
  return table;
}

TensorFit TensorFitter::result(int plan) const {
  constexpr double kNoError = 200;  // decibels
  const Work& work = work_[plan];
  TensorFit fit = stats_;
  fit.table = table(plan);
  fit.norm_scale = work.norm_scale;
  fit.norm_offset = work.norm_offset;
  if (work.normaliser >= 0 && normalisers_[work.normaliser].axis == Axis::channel) {
    const Normaliser& n = normalisers_[work.normaliser];
    fit.scale = n.scale;
    fit.zero = n.zero;
    if (plans_[plan].sparse > 0) {
      fit.threshold_lower = n.lower;
      fit.threshold_upper = n.upper;
      fit.held_out_outliers = n.held_out;
    }
  }
  int64_t quantised = 0;
  for (int64_t s = 0; s < in_.samples; ++s) {
    quantised += std::max<int64_t>(in_.length(s) - plans_[plan].sink, 0) * in_.dim;
  }
  for (int h = 0; h < in_.heads; ++h) {
    double weighted = 0, error = 0, energy = 0;
    int64_t outliers = 0;
    for (int64_t s = 0; s < in_.samples; ++s) {
      const size_t at = s * in_.heads + h;
      weighted += work.weighted[at];
      error += work.error[at];
      energy += work.energy[at];
      outliers += work.outliers[at];
    }
    fit.weighted_sse.push_back(static_cast<float>(weighted));
    const double ratio = error > 0 ? 10 * std::log10(energy / error) : kNoError;
    fit.sqnr_db.push_back(static_cast<float>(std::clamp(ratio, -kNoError, kNoError)));
    fit.outlier_fraction.push_back(
        quantised > 0 ? static_cast<float>(static_cast<double>(outliers) / static_cast<double>(quantised)) : 0.0f);
    const float* levels = fit.table.stride > 0 ? fit.table.head(h) : nullptr;
    fit.distinct.push_back(static_cast<uint32_t>(std::set<float>(levels, levels + fit.table.stride).size()));
    double bound = 0;
    if (work.clustering >= 0) {
      const Clustering& c = clusterings_[work.clustering];
      bound = c.results[c.results.size() == 1 ? 0 : h][work.count].relative_bound();
    }
    fit.fit_gap_bound.push_back(static_cast<float>(std::min(bound, 1e30)));
  }
  if (work.normaliser >= 0) add_usage(work, fit);
  return fit;
}

void TensorFitter::add_usage(const Work& work, TensorFit& fit) const {
  const auto heads = static_cast<size_t>(in_.heads);
  const auto sum = [&](const std::vector<std::vector<int64_t>>& counts) {
    std::vector<int64_t> total = counts.front();
    for (size_t s = 1; s < counts.size(); ++s) {
      for (size_t i = 0; i < total.size(); ++i) total[i] += counts[s][i];
    }
    return shares(total, heads);
  };
  fit.histogram = sum(work.bins);
  fit.code_use = sum(work.codes);
}

}  // namespace kvcc
