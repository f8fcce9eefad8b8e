#include "calib/report/codebook_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/core/error.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

std::string number(double value, const char* format) {
  return std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value);
}

std::string count(int64_t value) { return value < 0 ? "-" : std::to_string(value); }

}  // namespace

const std::vector<HeadColumn>& head_columns() {
  using R = HeadReport;
  static const std::vector<HeadColumn> all = {
      {"layer", "1", true, [](const R& r) { return double(r.layer); }, [](const R& r) { return count(r.layer); }},
      {"kind", "1", false, nullptr, [](const R& r) { return std::string(r.kind); }},
      {"head", "1", true, [](const R& r) { return double(r.head); }, [](const R& r) { return count(r.head); }},
      {"bits", "bit", true, [](const R& r) { return double(r.bits); }, [](const R& r) { return count(r.bits); }},
      {"range_min", "element", false, [](const R& r) { return r.range_min; },
       [](const R& r) { return number(r.range_min, "{:.4g}"); }},
      {"range_max", "element", false, [](const R& r) { return r.range_max; },
       [](const R& r) { return number(r.range_max, "{:.4g}"); }},
      {"outlier_fraction", "1", false, [](const R& r) { return r.outlier_fraction; },
       [](const R& r) { return number(r.outlier_fraction, "{:.5f}"); }},
      {"held_out_outliers", "1", false, [](const R& r) { return r.held_out_outliers; },
       [](const R& r) { return number(r.held_out_outliers, "{:.5f}"); }},
      {"fisher_mass", "(nat/element)^2", false, [](const R& r) { return r.fisher_mass; },
       [](const R& r) { return number(r.fisher_mass, "{:.4g}"); }},
      {"weighted_sse", "nat^2", false, [](const R& r) { return r.weighted_sse; },
       [](const R& r) { return number(r.weighted_sse, "{:.4g}"); }},
      {"sqnr_db", "dB", false, [](const R& r) { return r.sqnr_db; },
       [](const R& r) { return number(r.sqnr_db, "{:.2f}"); }},
      {"first_token_share", "1", false, [](const R& r) { return r.first_token_share; },
       [](const R& r) { return number(r.first_token_share, "{:.4f}"); }},
      {"sample_share", "1", false, [](const R& r) { return r.sample_share; },
       [](const R& r) { return number(r.sample_share, "{:.4f}"); }},
      {"heaviest_sample", "1", true, [](const R& r) { return double(r.heaviest_sample); },
       [](const R& r) { return count(r.heaviest_sample); }},
      {"token_share", "1", false, [](const R& r) { return r.token_share; },
       [](const R& r) { return number(r.token_share, "{:.4f}"); }},
      {"token_sample", "1", true, [](const R& r) { return double(r.token_sample); },
       [](const R& r) { return count(r.token_sample); }},
      {"token_position", "1", true, [](const R& r) { return double(r.token_position); },
       [](const R& r) { return count(r.token_position); }},
      {"drift", "1", false, [](const R& r) { return r.drift; }, [](const R& r) { return number(r.drift, "{:.3f}"); }},
      {"offset", "1", false, [](const R& r) { return r.offset; },
       [](const R& r) { return number(r.offset, "{:.2f}"); }},
      {"fit_gap_bound", "1", false, [](const R& r) { return r.fit_gap_bound; },
       [](const R& r) { return number(r.fit_gap_bound, "{:.1e}"); }},
      {"distinct", "1", true, [](const R& r) { return double(r.distinct); },
       [](const R& r) { return count(r.distinct); }},
      {"reached", "token", true, [](const R& r) { return double(r.reached); },
       [](const R& r) { return count(r.reached); }},
      {"unused_codes", "1", true, [](const R& r) { return double(r.unused_codes); },
       [](const R& r) { return count(r.unused_codes); }},
      {"constant_channels", "1", true, [](const R& r) { return double(r.constant_channels); },
       [](const R& r) { return count(r.constant_channels); }},
      {"flags", "1", false, nullptr, [](const R& r) { return fmt::format("{}", fmt::join(r.flags, ",")); }},
  };
  return all;
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
      const auto unknown = [&](double value) { return std::isnan(value) || (by->whole && value < 0); };
      if (unknown(x) || unknown(y)) return !unknown(x) && unknown(y);  // they come last
      return ascending ? x < y : x > y;
    });
  }
  if (filter.top > 0 && heads.size() > static_cast<size_t>(filter.top)) heads.resize(static_cast<size_t>(filter.top));
  return heads;
}

}  // namespace kvcc
