#include "calib/report/codebook_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/core/error.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
/// A channel whose mean lies this many standard deviations from 0 spends its range on an offset (Qwen2's key biases).
constexpr double kOffset = 8;
constexpr double kFirstTokenShare = 0.5;

double at(const std::vector<float>& values, size_t i) { return values.empty() ? kUnknown : values[i]; }

/// Fills what comes from the [L, H, D] statistics.
void add_channel_statistics(const TensorStats& stats, size_t head, size_t dim, double tokens, HeadReport& report) {
  report.range_min = report.range_max = report.fisher_mass = kUnknown;
  const auto slice = [&](const std::vector<float>& values) { return values.begin() + static_cast<long>(head * dim); };
  const auto length = static_cast<long>(dim);
  if (!stats.min.empty()) report.range_min = *std::min_element(slice(stats.min), slice(stats.min) + length);
  if (!stats.max.empty()) report.range_max = *std::max_element(slice(stats.max), slice(stats.max) + length);
  if (!stats.fisher.empty()) {
    double sum = 0;
    for (size_t c = 0; c < dim; ++c) sum += stats.fisher[head * dim + c];
    report.fisher_mass = sum * tokens;
    if (sum == 0) report.flags.emplace_back("no-fisher");
  }
  if (!stats.min.empty() && !stats.max.empty()) {
    for (size_t c = head * dim; c < (head + 1) * dim; ++c) report.constant_channels += stats.min[c] == stats.max[c];
    if (report.constant_channels > 0) report.flags.emplace_back("constant-channels");
  }
  if (!stats.mean.empty() && !stats.variance.empty()) {
    for (size_t c = head * dim; c < (head + 1) * dim; ++c) {
      if (stats.variance[c] > 0 && std::fabs(stats.mean[c]) > kOffset * std::sqrt(stats.variance[c])) {
        report.flags.emplace_back("offset");
        break;
      }
    }
  }
}

void append_tensor(const Codebook& codebook, size_t layer, bool key, std::vector<HeadReport>& out) {
  const TensorCodebooks& tensor = key ? codebook.key : codebook.value;
  const CacheShape& shape = codebook.model.shape;
  const auto dim = static_cast<size_t>(key ? shape.head_dim : shape.value_head_dim);
  for (int h = 0; h < shape.kv_heads; ++h) {
    const size_t head = layer * static_cast<size_t>(shape.kv_heads) + static_cast<size_t>(h);
    HeadReport report;
    report.layer = codebook.layer_index[layer];
    report.kind = key ? "key" : "value";
    report.head = h;
    report.bits = tensor.bits[head];
    const auto levels = tensor.codebook.begin() + static_cast<long>(head * static_cast<size_t>(tensor.codes));
    report.codebook.assign(levels, levels + (1L << report.bits));
    report.outlier_fraction = at(tensor.outlier_fraction, head);
    report.weighted_sse = at(tensor.stats.weighted_sse, head);
    report.sqnr_db = at(tensor.stats.sqnr_db, head);
    report.first_token_share = at(tensor.stats.first_token_share, head);
    report.fit_gap_bound = at(tensor.stats.fit_gap_bound, head);
    if (!tensor.stats.distinct.empty()) report.distinct = tensor.stats.distinct[head];
    if (!tensor.stats.reached.empty()) report.reached = tensor.stats.reached[head];
    add_channel_statistics(tensor.stats, head, dim, static_cast<double>(codebook.provenance.tokens), report);
    if (report.reached > 0 && is_thin(tensor.stats.reached[head], codebook.provenance.tokens)) {
      report.flags.emplace_back("thin");
    }
    if (report.first_token_share > kFirstTokenShare) report.flags.emplace_back("first-token");
    if (report.distinct >= 0 && report.distinct < 1L << report.bits) report.flags.emplace_back("few-levels");
    out.push_back(std::move(report));
  }
}

struct Flag {
  const char *name, *meaning;
};
constexpr Flag kFlags[] = {
    {"constant-channels", "channels that never change on the calibration text; they decode exactly"},
    {"no-fisher", "no gradient reached the head: its k-means is unweighted. Calibrate on more text"},
    {"thin", "gradients reached the head at fewer than 1 % of the tokens: calibrate on more or other text"},
    {"first-token",
     "over half of the Fisher mass is on the first token of the samples: keep it exact (-sink1) and out of "
     "the fit, as the kvcc presets do"},
    {"offset",
     "a channel whose mean is over 8 standard deviations from 0, such as a key bias: only a per-channel zero "
     "point, which channel schemes have, keeps it from wasting the range"},
    {"few-levels", "fewer different levels than codes: too few different values, or more bits than they need"},
};

std::string number(double value, const char* format) {
  return std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value);
}

}  // namespace

const std::vector<HeadColumn>& head_columns() {
  using R = HeadReport;
  static const std::vector<HeadColumn> all = {
      {"layer", [](const R& r) { return double(r.layer); }, [](const R& r) { return std::to_string(r.layer); }},
      {"kind", nullptr, [](const R& r) { return std::string(r.kind); }},
      {"head", [](const R& r) { return double(r.head); }, [](const R& r) { return std::to_string(r.head); }},
      {"bits", [](const R& r) { return double(r.bits); }, [](const R& r) { return std::to_string(r.bits); }},
      {"range_min", [](const R& r) { return r.range_min; }, [](const R& r) { return number(r.range_min, "{:.4g}"); }},
      {"range_max", [](const R& r) { return r.range_max; }, [](const R& r) { return number(r.range_max, "{:.4g}"); }},
      {"outlier_fraction", [](const R& r) { return r.outlier_fraction; },
       [](const R& r) { return number(r.outlier_fraction, "{:.5f}"); }},
      {"fisher_mass", [](const R& r) { return r.fisher_mass; },
       [](const R& r) { return number(r.fisher_mass, "{:.4g}"); }},
      {"weighted_sse", [](const R& r) { return r.weighted_sse; },
       [](const R& r) { return number(r.weighted_sse, "{:.4g}"); }},
      {"sqnr_db", [](const R& r) { return r.sqnr_db; }, [](const R& r) { return number(r.sqnr_db, "{:.2f}"); }},
      {"first_token_share", [](const R& r) { return r.first_token_share; },
       [](const R& r) { return number(r.first_token_share, "{:.4f}"); }},
      {"fit_gap_bound", [](const R& r) { return r.fit_gap_bound; },
       [](const R& r) { return number(r.fit_gap_bound, "{:.1e}"); }},
      {"distinct", [](const R& r) { return double(r.distinct); },
       [](const R& r) { return r.distinct < 0 ? "-" : std::to_string(r.distinct); }},
      {"reached", [](const R& r) { return double(r.reached); },
       [](const R& r) { return r.reached < 0 ? "-" : std::to_string(r.reached); }},
      {"constant_channels", [](const R& r) { return double(r.constant_channels); },
       [](const R& r) { return std::to_string(r.constant_channels); }},
      {"flags", nullptr, [](const R& r) { return fmt::format("{}", fmt::join(r.flags, ",")); }},
  };
  return all;
}

std::string flag_meaning(const std::string& flag) {
  for (const Flag& known : kFlags) {
    if (flag == known.name) return known.meaning;
  }
  return "";
}

std::vector<HeadReport> head_reports(const Codebook& codebook) {
  std::vector<HeadReport> heads;
  for (size_t layer = 0; layer < codebook.layer_index.size(); ++layer) {
    append_tensor(codebook, layer, true, heads);
    append_tensor(codebook, layer, false, heads);
  }
  return heads;
}

std::vector<HeadReport> select_heads(std::vector<HeadReport> heads, const HeadFilter& filter) {
  const auto keep = [&heads](const std::string& what, auto matches) {
    const bool any = std::any_of(heads.begin(), heads.end(), matches);
    if (!any) throw Error(ErrorKind::usage, what, "not in the artifact");
    std::erase_if(heads, [&](const HeadReport& head) { return !matches(head); });
  };
  if (filter.layer) {
    keep(fmt::format("--layer {}", *filter.layer), [&](const HeadReport& head) { return head.layer == *filter.layer; });
  }
  if (filter.head) {
    keep(fmt::format("--head {}", *filter.head), [&](const HeadReport& head) { return head.head == *filter.head; });
  }
  if (!filter.kind.empty()) {
    keep(fmt::format("--kind {}", filter.kind), [&](const HeadReport& head) { return filter.kind == head.kind; });
  }
  if (!filter.sort.empty()) {
    const bool ascending = filter.sort.front() == '-';
    const std::string name = filter.sort.substr(ascending ? 1 : 0);
    std::vector<std::string> names;
    const HeadColumn* by = nullptr;
    for (const HeadColumn& column : head_columns()) {
      if (column.value == nullptr) continue;
      names.emplace_back(column.name);
      if (name == column.name) by = &column;
    }
    if (by == nullptr) {
      const std::string near = nearest(name, names);
      throw Error(ErrorKind::usage, "--sort", fmt::format("no column '{}'", name),
                  fmt::format("one of {}", fmt::join(names, ", ")),
                  near.empty() ? "" : fmt::format("did you mean '{}'?", near));
    }
    std::stable_sort(heads.begin(), heads.end(), [&](const HeadReport& a, const HeadReport& b) {
      const double x = by->value(a), y = by->value(b);
      if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);  // unknown comes last
      return ascending ? x < y : x > y;
    });
  }
  if (filter.top > 0 && heads.size() > static_cast<size_t>(filter.top)) heads.resize(static_cast<size_t>(filter.top));
  return heads;
}

}  // namespace kvcc
