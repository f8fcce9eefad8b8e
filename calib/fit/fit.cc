#include "calib/fit/fit.h"

#include <algorithm>
#include <functional>
#include <string>

#include "calib/fit/parallel.h"
#include "calib/fit/tensor_fit.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

void check_size(size_t found, int64_t rows, int heads, int dim, const std::string& name) {
  if (found == static_cast<size_t>(rows * heads * dim)) return;
  throw Error(ErrorKind::failed, name, std::to_string(found) + " values",
              std::to_string(rows) + " tokens of " + std::to_string(heads) + " heads of " + std::to_string(dim));
}

TensorInput input_of(const LayerActivations& a, bool key) {
  TensorInput in;
  in.name = "layer " + std::to_string(a.layer) + (key ? " key" : " value");
  in.samples = static_cast<int64_t>(a.starts.size()) - 1;
  in.starts = a.starts;
  in.heads = a.heads;
  in.dim = key ? a.dim : a.value_dim;
  in.x = key ? a.key : a.value;
  in.grad = key ? a.key_grad : a.value_grad;
  const bool some = in.samples > 0 && a.starts.front() == 0 &&
                    std::adjacent_find(a.starts.begin(), a.starts.end(), std::greater_equal<>()) == a.starts.end();
  if (!some || in.heads < 1 || in.dim < 1) {
    throw bad_input(in.name, "no activations", "at least one token, head and channel");
  }
  check_size(in.x.size(), in.rows(), in.heads, in.dim, in.name);
  if (!in.grad.empty()) check_size(in.grad.size(), in.rows(), in.heads, in.dim, in.name + " gradient");
  return in;
}

TensorPlan plan_of(const Scheme& scheme, bool key) {
  TensorPlan plan;
  plan.tensor = key ? scheme.key : scheme.value;
  plan.sparse = scheme.sparse;
  plan.sink = scheme.sink;
  plan.scope = scheme.codebook;
  plan.weight = scheme.weight;
  plan.first_in_thresholds = scheme.first_in_thresholds;
  plan.first_in_kmeans = scheme.first_in_kmeans;
  plan.capped = key && scheme.capped;
  plan.qnorm = scheme.qnorm && plan.tensor.grid == Grid::nuq;
  if (key && plan.tensor.grid != Grid::full && plan.tensor.site == Site::post_rope) {
    if (plan.tensor.grid == Grid::nuq || plan.tensor.axis == Axis::channel) {
      throw Error(ErrorKind::usage, "scheme '" + to_string(scheme) + "'", "keys fitted after RoPE",
                  "k=…@prerope/…, or int or nf with @postrope/token", "activations hold keys before RoPE");
    }
    plan.measured = false;
  }
  return plan;
}

}  // namespace

std::vector<LayerFit> fit_layer(const LayerActivations& activations, std::span<const Scheme> schemes, int threads) {
  std::vector<TensorPlan> key_plans, value_plans;
  for (const Scheme& scheme : schemes) {
    key_plans.push_back(plan_of(scheme, true));
    value_plans.push_back(plan_of(scheme, false));
  }
  TensorFitter key(input_of(activations, true), std::move(key_plans));
  TensorFitter value(input_of(activations, false), std::move(value_plans));
  for (int stage = 0; stage < TensorFitter::kStages; ++stage) {
    const int keys = key.tasks(stage);
    parallel_for(keys + value.tasks(stage), threads,
                 [&](int task) { task < keys ? key.run(stage, task) : value.run(stage, task - keys); });
  }
  std::vector<LayerFit> fits;
  for (size_t i = 0; i < schemes.size(); ++i) {
    fits.push_back({key.result(static_cast<int>(i)), value.result(static_cast<int>(i))});
  }
  return fits;
}

}  // namespace kvcc
