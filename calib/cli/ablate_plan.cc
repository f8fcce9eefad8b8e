#include "calib/cli/ablate_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace kvcc::cli {
namespace {

void check_values(const std::string& option, const std::vector<int64_t>& values) {
  if (values.empty()) throw Error(ErrorKind::usage, option, "no value", "one or more");
  if (std::set<int64_t>(values.begin(), values.end()).size() != values.size()) {
    throw Error(ErrorKind::usage, option, "a value is given twice", "each once");
  }
}

size_t add_point(AblatePlan& plan, const AblatePoint& point) {
  const auto found = std::find(plan.points.begin(), plan.points.end(), point);
  if (found != plan.points.end()) return static_cast<size_t>(found - plan.points.begin());
  plan.points.push_back(point);
  return plan.points.size() - 1;
}

}  // namespace

AblatePlan plan_ablation(const AblateOptions& options) {
  check_values("--samples", options.samples);
  check_values("--seqlen", options.seqlens);
  check_values("--seeds", options.seeds);
  AblatePlan plan;
  plan.base = {*std::max_element(options.samples.begin(), options.samples.end()),
               *std::max_element(options.seqlens.begin(), options.seqlens.end()), 0, options.seeds.front()};
  add_point(plan, plan.base);
  const auto axis = [&](const std::vector<int64_t>& values, int64_t AblatePoint::*field, std::vector<size_t>& to) {
    for (const int64_t value : values) {
      AblatePoint point = plan.base;
      point.*field = value;
      to.push_back(add_point(plan, point));
    }
  };
  std::vector<int64_t> samples = options.samples, seqlens = options.seqlens;
  std::sort(samples.begin(), samples.end());
  std::sort(seqlens.begin(), seqlens.end());
  axis(samples, &AblatePoint::samples, plan.by_samples);
  axis(seqlens, &AblatePoint::seqlen, plan.by_seqlen);
  axis(options.seeds, &AblatePoint::seed, plan.by_seed);
  for (size_t domain = 0; domain <= options.domains.size(); ++domain) {
    AblatePoint point = plan.base;
    point.domain = domain;
    plan.by_domain.push_back(add_point(plan, point));
  }
  for (size_t i = 0; i < plan.points.size(); ++i) {
    const AblatePoint& point = plan.points[i];
    auto found = std::find_if(plan.collections.begin(), plan.collections.end(),
                              [&](const AblateCollection& c) { return c.most.same_collection(point); });
    if (found == plan.collections.end()) found = plan.collections.insert(found, {point, {}});
    found->most.samples = std::max(found->most.samples, point.samples);
    found->points.push_back(i);
  }
  return plan;
}

std::string point_name(const AblatePoint& point) {
  return fmt::format("n{}_l{}_d{}_s{}", point.samples, point.seqlen, point.domain, point.seed);
}

}  // namespace kvcc::cli
