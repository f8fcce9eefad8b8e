#include "calib/collect/weight_fisher.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>

#include "calib/collect/plan.h"
#include "calib/collect/sample_pass.h"
#include "calib/model/errors.h"
#include "calib/model/memory.h"

namespace kvcc {
namespace {

uint64_t bytes_of(const ExpectedTensor& tensor) {
  return sizeof(float) * static_cast<uint64_t>(tensor.shape[0]) * static_cast<uint64_t>(tensor.shape[1]);
}

/// Adds up the squares of the sweep's gradients. A pass uses each projection in one product, so that a sample's
/// gradient comes in one piece.
class Squares : public ProductGradients {
 public:
  explicit Squares(std::vector<WeightFisher>& matrices) {
    for (WeightFisher& matrix : matrices) of_[matrix.weight.const_data_ptr()] = &matrix;
  }
  void add(const at::Tensor& weight, const at::Tensor& x, const at::Tensor& gradient) override {
    const auto found = of_.find(weight.const_data_ptr());
    if (found == of_.end()) return;  // of another sweep
    const c10::NoGradGuard no_gradient;
    const at::Tensor rows = x.detach().reshape({-1, x.size(-1)}), down = gradient.reshape({-1, gradient.size(-1)});
    // [out, tokens] times [tokens, in].
    const at::Tensor product = times_transposed(down.t(), rows.t());
    found->second->fisher.addcmul_(product, product);
  }

 private:
  std::map<const void*, WeightFisher*> of_;
};

double run(const ModelFiles& files, const std::vector<std::vector<int32_t>>& ids, const WeightFisherPlan& plan,
           const WeightFisherCallbacks& callbacks) {
  Decoder decoder(files);
  uint64_t done = 0, total = 0;
  for (const WeightSweep& sweep : plan.sweeps) total += ids.size() * (3ull * decoder.layers() - 2ull * sweep.begin);
  const std::vector<ExpectedTensor> tensors = projections(files);
  double loss = 0;
  for (const WeightSweep& sweep : plan.sweeps) {
    std::vector<WeightFisher> matrices;
    for (const ExpectedTensor& tensor : tensors) {
      if (tensor.layer < sweep.begin || tensor.layer >= sweep.end) continue;
      const at::Tensor& weight = decoder.weight(tensor);
      matrices.push_back({tensor, weight, at::zeros_like(weight)});
    }
    Squares squares(matrices);
    decoder.watch(&squares);
    loss = 0;
    for (size_t s = 0; s < ids.size(); ++s) {
      SamplePass pass;
      pass.sample = "sample " + std::to_string(s);
      pass.weights_from = sweep.begin;
      pass.progress = [&](int units) {
        done += static_cast<uint64_t>(units);
        if (callbacks.progress) callbacks.progress(done, total);
      };
      loss += run_sample(decoder, ids[s], pass);
    }
    decoder.watch(nullptr);
    files.tensors->check_unchanged(false);  // weights that were changed under the run give no fit
    callbacks.done(matrices);
  }
  return loss / static_cast<double>(ids.size() * (ids[0].size() - 1));
}

}  // namespace

WeightFisherPlan plan_weight_fisher(const ModelFiles& files, int64_t seqlen, uint64_t max_memory,
                                    uint64_t result_bytes) {
  const DecoderConfig& c = files.config;
  std::vector<uint64_t> sums(static_cast<size_t>(c.layers), 0);
  uint64_t largest = 0;
  for (const ExpectedTensor& tensor : projections(files)) {
    sums[static_cast<size_t>(tensor.layer)] += bytes_of(tensor);
    largest = std::max(largest, bytes_of(tensor));
  }
  // Inputs of products beside what a layer saves anyway; a matrix' gradient twice, as it is made.
  const uint64_t layer = saved_bytes_per_token(c, seqlen) * static_cast<uint64_t>(seqlen);
  const uint64_t fixed =
      pass_bytes(files, seqlen, 0, {.fisher = true, .recompute = true}) + layer + 2 * largest + result_bytes;
  WeightFisherPlan plan;
  plan.memory_limit = max_memory != 0 ? max_memory : available_memory();
  const uint64_t room = plan.memory_limit > fixed ? plan.memory_limit - fixed : 0;
  uint64_t most = 0;
  for (int end = static_cast<int>(c.layers); end > 0;) {
    int begin = end - 1;
    uint64_t held = sums[static_cast<size_t>(begin)];
    while (begin > 0 && held + sums[static_cast<size_t>(begin - 1)] <= room) held += sums[static_cast<size_t>(--begin)];
    plan.sweeps.push_back({begin, end});
    most = std::max(most, held);
    end = begin;
  }
  plan.peak_bytes = fixed + most;
  require_memory(files.path, plan.peak_bytes, plan.memory_limit, max_memory != 0 ? "--max-memory" : "",
                 "a smaller --seqlen makes it smaller");
  return plan;
}

double collect_weight_fisher(const ModelFiles& files, const std::vector<std::vector<int32_t>>& ids,
                             const WeightFisherPlan& plan, int threads, const WeightFisherCallbacks& callbacks) {
  return with_torch_errors([&] {
    at::set_num_threads(threads);
    return run(files, ids, plan, callbacks);
  });
}

}  // namespace kvcc
