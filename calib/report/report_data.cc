#include "calib/report/report_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "calib/report/warnings.h"
#include "formats/core/error.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double at(const std::vector<float>& values, size_t i) { return values.empty() ? kUnknown : values[i]; }
int64_t at(const std::vector<uint32_t>& values, size_t i) { return values.empty() ? -1 : int64_t{values[i]}; }

/// Row `head` of an array [L * H, width].
std::vector<float> row(const std::vector<float>& values, size_t head, size_t width) {
  if (values.empty()) return {};
  const auto begin = values.begin() + static_cast<long>(head * width);
  return {begin, begin + static_cast<long>(width)};
}

void add_channels(const TensorCodebooks& tensor, size_t head, size_t dim, HeadReport& report) {
  const TensorStats& stats = tensor.stats;
  ChannelReport& channels = report.channels;
  channels.min = row(stats.min, head, dim);
  channels.max = row(stats.max, head, dim);
  channels.mean = row(stats.mean, head, dim);
  channels.deviation = row(stats.variance, head, dim);
  for (float& value : channels.deviation) value = std::sqrt(value);
  channels.fisher = row(stats.fisher, head, dim);
  channels.scale = row(tensor.scale, head, dim);
  channels.zero = row(tensor.zero, head, dim);
  channels.threshold_lower = row(tensor.threshold_lower, head, dim);
  channels.threshold_upper = row(tensor.threshold_upper, head, dim);
}

/// Numbers of the head that its channels give.
void sum_channels(double tokens, HeadReport& report) {
  const ChannelReport& channels = report.channels;
  report.range_min = report.range_max = report.fisher_mass = report.offset = kUnknown;
  if (!channels.min.empty()) report.range_min = *std::min_element(channels.min.begin(), channels.min.end());
  if (!channels.max.empty()) report.range_max = *std::max_element(channels.max.begin(), channels.max.end());
  if (!channels.fisher.empty()) {
    double sum = 0;
    for (const float f : channels.fisher) sum += f;
    report.fisher_mass = sum * tokens;
  }
  if (!channels.min.empty() && !channels.max.empty()) {
    report.constant_channels = 0;
    for (size_t c = 0; c < channels.min.size(); ++c) report.constant_channels += channels.min[c] == channels.max[c];
  }
  if (channels.mean.empty() || channels.deviation.empty()) return;
  report.offset = 0;
  for (size_t c = 0; c < channels.mean.size(); ++c) {
    if (!(channels.deviation[c] > 0)) continue;
    report.offset = std::max(report.offset, std::fabs(double{channels.mean[c]}) / channels.deviation[c]);
  }
}

HeadReport head_report(const Codebook& codebook, size_t layer, bool key, int number) {
  const TensorCodebooks& tensor = key ? codebook.key : codebook.value;
  const CacheShape& shape = codebook.model.shape;
  const auto dim = static_cast<size_t>(key ? shape.head_dim : shape.value_head_dim);
  const size_t head = layer * static_cast<size_t>(shape.kv_heads) + static_cast<size_t>(number);
  const auto codes = static_cast<size_t>(tensor.codes);
  HeadReport report;
  report.layer = codebook.layer_index[layer];
  report.kind = key ? "key" : "value";
  report.head = number;
  report.bits = tensor.bits.empty() ? -1 : tensor.bits[head];
  const size_t used = tensor.bits.empty() ? 0 : size_t{1} << report.bits;
  report.codebook = row(tensor.codebook, head, codes);
  report.codebook.resize(std::min(used, codes));
  const TensorStats& stats = tensor.stats;
  report.outlier_fraction = at(tensor.outlier_fraction, head);
  report.held_out_outliers = at(stats.held_out_outliers, head);
  report.weighted_sse = at(stats.weighted_sse, head);
  report.sqnr_db = at(stats.sqnr_db, head);
  report.first_token_share = at(stats.first_token_share, head);
  report.sample_share = at(stats.sample_share, head);
  report.token_share = at(stats.token_share, head);
  report.drift = at(stats.drift, head);
  report.fit_gap_bound = at(stats.fit_gap_bound, head);
  report.distinct = at(stats.distinct, head);
  report.reached = at(stats.reached, head);
  report.heaviest_sample = at(stats.heaviest_sample, head);
  report.token_sample = at(stats.token_sample, head);
  report.token_position = at(stats.token_position, head);
  report.histogram = row(stats.histogram, head, kNormalisedBins);
  report.code_use = row(stats.code_use, head, codes);
  if (!report.code_use.empty()) {
    report.code_use.resize(report.codebook.size());
    // Of equal levels a code is always the first one.
    report.unused_codes = 0;
    for (size_t c = 0; c < report.codebook.size(); ++c) {
      const bool repeated = c > 0 && report.codebook[c] == report.codebook[c - 1];
      report.unused_codes += !repeated && report.code_use[c] == 0;
    }
  }
  add_channels(tensor, head, dim, report);
  sum_channels(static_cast<double>(codebook.provenance.tokens), report);
  return report;
}

void add_ranges(const Codebook& codebook, const ActivationRanges& ranges, const std::string& place, ReportData& data) {
  const CacheShape& shape = codebook.model.shape;
  const bool same = ranges.heads == shape.kv_heads && ranges.dim == shape.head_dim &&
                    ranges.value_dim == shape.value_head_dim &&
                    std::equal(ranges.layer_index.begin(), ranges.layer_index.end(), codebook.layer_index.begin(),
                               codebook.layer_index.end());
  if (!same) {
    throw bad_input(place,
                    fmt::format("activations of {} layers, {} heads, head dims {} and {}", ranges.layer_index.size(),
                                ranges.heads, ranges.dim, ranges.value_dim),
                    fmt::format("{} layers, {} heads, head dims {} and {}, as the artifact has", shape.layers,
                                shape.kv_heads, shape.head_dim, shape.value_head_dim));
  }
  data.has_rotated = ranges.rotated_problem.empty();
  data.rotated_problem = ranges.rotated_problem;
  for (size_t i = 0; i < data.heads.size(); ++i) {
    const auto heads = static_cast<size_t>(shape.kv_heads);
    const size_t layer = i / (2 * heads), head = layer * heads + i % heads;
    const bool key = i % (2 * heads) < heads;
    const auto dim = static_cast<size_t>(key ? ranges.dim : ranges.value_dim);
    ChannelReport& channels = data.heads[i].channels;
    channels.range_min = row(key ? ranges.key_min : ranges.value_min, head, dim);
    channels.range_max = row(key ? ranges.key_max : ranges.value_max, head, dim);
    if (!key) continue;
    channels.rotated_min = row(ranges.rotated_min, head, dim);
    channels.rotated_max = row(ranges.rotated_max, head, dim);
  }
}

}  // namespace

ReportData report_data(Codebook codebook, const ActivationRanges* ranges, const std::string& ranges_place) {
  ReportData data;
  for (size_t layer = 0; layer < codebook.layer_index.size(); ++layer) {
    for (const bool key : {true, false}) {
      for (int head = 0; head < codebook.model.shape.kv_heads; ++head) {
        data.heads.push_back(head_report(codebook, layer, key, head));
      }
    }
  }
  if (ranges != nullptr) add_ranges(codebook, *ranges, ranges_place, data);
  data.warnings = find_warnings(codebook, data.heads);
  data.codebook = std::move(codebook);
  return data;
}

}  // namespace kvcc
