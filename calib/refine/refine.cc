#include "calib/refine/refine.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "calib/collect/plan.h"
#include "calib/collect/sample_pass.h"
#include "calib/eval/simulated_cache.h"
#include "calib/eval/vector_quantiser.h"
#include "calib/model/errors.h"
#include "calib/model/memory.h"
#include "calib/model/quantised_model.h"
#include "calib/refine/tuning_pass.h"

namespace kvcc {
namespace {

class Refinement {
 public:
  Refinement(const ModelFiles& files, Codebook& codebook, const RefineOptions& options, bool recompute)
      : options_(options), recompute_(recompute), book_(codebook), exact_(files), decoder_(exact_) {
    if (options.weights != nullptr) use_weights(decoder_, files, *options.weights);
    const int layers = decoder_.layers();
    keys_.reserve(book_.layer_index.size());
    values_.reserve(book_.layer_index.size());
    tuners_ = {std::vector<TensorTuner*>(layers), std::vector<TensorTuner*>(layers), {}};
    if (book_.scheme.value.predicted) tuners_.prediction.resize(layers);
    for (size_t row = 0; row < book_.layer_index.size(); ++row) {
      const Scheme& scheme = book_.scheme;
      const auto tuner = [&](CacheTensor tensor) {
        return TensorTuner(vector_quantiser(book_, row, tensor), scheme.sink, scheme.residual,
                           options.transforms && moves_transform(tensor));
      };
      keys_.push_back(tuner(CacheTensor::key));
      values_.push_back(tuner(CacheTensor::value));
      tuners_.key.at(book_.layer_index[row]) = &keys_.back();
      tuners_.value.at(book_.layer_index[row]) = &values_.back();
      if (book_.scheme.value.predicted) tuners_.prediction.at(book_.layer_index[row]) = key_prediction(book_, row);
    }
  }

  RefineReport run(const std::vector<std::vector<int32_t>>& windows, const std::vector<std::vector<int32_t>>& held_out,
                   const std::function<void(uint64_t, uint64_t)>& progress) {
    const uint64_t looks = 1 + (options_.steps + options_.every - 1) / options_.every;
    const uint64_t total = options_.steps + looks;
    uint64_t done = 0;
    const auto passed = [&] {
      if (progress) progress(++done, total);
    };
    for (const auto& ids : held_out) held_out_.push_back({ids, exact(ids)});
    std::vector<at::Tensor> known(windows.size());  // of the windows, at full precision
    RefineReport report;
    report.looks.push_back({0, look(), std::numeric_limits<double>::quiet_NaN()});
    passed();
    Codebook best = book_;
    double sum = 0;
    int64_t since = 0, worse = 0;
    for (int64_t step = 0; step < options_.steps; ++step) {
      const size_t w = static_cast<size_t>(step) % windows.size();
      if (!known[w].defined()) known[w] = exact(windows[w]);
      const std::string place = "step " + std::to_string(step + 1);
      sum += tuning_pass(decoder_, windows[w], known[w], tuners_, recompute_, options_.threads, place);
      ++since;
      const double rate = rate_of(step);
      for (auto* tuners : {&keys_, &values_}) {
        for (TensorTuner& tuner : *tuners) tuner.step(rate);
      }
      passed();
      if ((step + 1) % options_.every != 0 && step + 1 != options_.steps) continue;
      write_back();
      report.looks.push_back({step + 1, look(), sum / static_cast<double>(since)});
      passed();
      sum = 0;
      since = 0;
      if (report.looks.back().held_out < report.looks[report.best].held_out) {
        report.best = static_cast<int64_t>(report.looks.size()) - 1;
        best = book_;
        worse = 0;
      } else if (++worse >= options_.patience) {
        break;
      }
    }
    book_ = std::move(best);
    if (report.improved()) drop_statistics();
    if (progress) progress(total, total);
    return report;
  }

 private:
  struct Window {
    std::vector<int32_t> ids;
    at::Tensor exact;
  };

  /// Without a rotation the transform is a matrix for each block of channels, which has few numbers; others would make
  /// it dense.
  bool moves_transform(CacheTensor tensor) const {
    const TensorScheme& scheme = tensor == CacheTensor::key ? book_.scheme.key : book_.scheme.value;
    return scheme.rotation != Rotation::none;
  }

  /// Rises over the first eighth of the steps, while the running means say little, then falls as a cosine.
  double rate_of(int64_t step) const {
    const double steps = static_cast<double>(options_.steps), now = static_cast<double>(step);
    const double rise = std::min(1.0, (now + 1) / std::max(1.0, steps / 8));
    return options_.rate * rise * 0.5 * (1 + std::cos(std::numbers::pi * now / steps));
  }

  at::Tensor exact(const std::vector<int32_t>& ids) const { return exact_.forward(ids_tensor(ids))[0]; }

  double look() const {
    double sum = 0;
    for (const Window& window : held_out_) {
      SimulatedCache cache(book_, decoder_.layers(), options_.threads);
      const at::Tensor coded = decoder_.forward(ids_tensor(window.ids), &cache)[0];
      sum += divergence(decoder_, window.exact, coded, nullptr, "text that is held out");
    }
    return sum / static_cast<double>(held_out_.size());
  }

  void write_back() {
    for (auto [stored, tuners] : {std::pair{&book_.key, &keys_}, {&book_.value, &values_}}) {
      const std::vector<size_t> offsets = vector_offsets(*stored, static_cast<int>(tuners->size()));
      for (size_t row = 0; row < tuners->size(); ++row) {
        const VectorQuantiser& q = (*tuners)[row].quantiser();
        std::copy(q.vectors.begin(), q.vectors.end(),
                  stored->vectors.begin() + static_cast<std::ptrdiff_t>(offsets[row]));
        std::copy(q.inverse.begin(), q.inverse.end(),
                  stored->inverse.begin() + static_cast<std::ptrdiff_t>(row * q.inverse.size()));
      }
    }
  }

  void drop_statistics() {
    for (TensorCodebooks* tensor : {&book_.key, &book_.value}) {
      for (auto* list : {&tensor->stats.weighted_sse, &tensor->stats.sqnr_db, &tensor->stats.predicted_fitted,
                         &tensor->stats.predicted_held_out}) {
        list->clear();
      }
    }
  }

  const RefineOptions& options_;
  bool recompute_;
  Codebook& book_;
  const Decoder exact_;
  Decoder decoder_;                         ///< all that is not replaced is shared
  std::vector<TensorTuner> keys_, values_;  ///< by row of layer_index
  Tuners tuners_;
  std::vector<Window> held_out_;
};

uint64_t peak_bytes(const ModelFiles& files, const Codebook& book, int64_t seqlen, int64_t windows, bool recompute) {
  const DecoderConfig& c = files.config;
  const auto tokens = static_cast<uint64_t>(seqlen);
  // Codes and the coded tensors; logits of both models; last layers' outputs of the exact one, of every window.
  const uint64_t cached = static_cast<uint64_t>(c.kv_heads) * (c.head_dim + c.value_head_dim) * tokens * c.layers * 6;
  const uint64_t logits = 2ull * sizeof(float) * logits_chunk_rows(c) * c.vocab;
  const uint64_t exact = static_cast<uint64_t>(windows) * tokens * c.hidden * sizeof(float);
  uint64_t numbers = 0;
  for (const TensorCodebooks* t : {&book.key, &book.value}) {
    numbers += t->vectors.size() * 5 + t->forward.size() * 10;  // as they are twice, their moments and sums
  }
  // Codes and coded tensors come and go between what is kept and leave holes that it does not fit into; measured.
  const uint64_t holes = recompute ? 0 : saved_bytes_per_token(c, seqlen) * tokens * c.layers / 4;
  return pass_bytes(files, seqlen, 0, {.fisher = true, .recompute = recompute}) + cached + logits + exact + holes +
         numbers * sizeof(float);
}

}  // namespace

RefinePlan plan_refine(const ModelFiles& files, const Codebook& codebook, int64_t seqlen, int64_t windows,
                       const RefineOptions& options) {
  RefinePlan plan;
  plan.memory_limit = options.max_memory != 0 ? options.max_memory : available_memory();
  const uint64_t decoded = options.weights != nullptr ? projection_bytes(files) : 0;
  const uint64_t whole = decoded + peak_bytes(files, codebook, seqlen, windows, false);
  plan.recompute = whole > plan.memory_limit;
  plan.peak_bytes = plan.recompute ? decoded + peak_bytes(files, codebook, seqlen, windows, true) : whole;
  require_memory(files.path, plan.peak_bytes, plan.memory_limit, options.max_memory != 0 ? "--max-memory" : "",
                 "a smaller --seqlen makes it smaller");
  return plan;
}

RefineReport refine(const ModelFiles& files, Codebook& codebook, const std::vector<std::vector<int32_t>>& windows,
                    const std::vector<std::vector<int32_t>>& held_out, const RefineOptions& options,
                    const std::function<void(uint64_t, uint64_t)>& progress) {
  size_t longest = 0;
  for (const auto* list : {&windows, &held_out}) {
    for (const std::vector<int32_t>& ids : *list) longest = std::max(longest, ids.size());
  }
  const RefinePlan plan = plan_refine(files, codebook, static_cast<int64_t>(longest),
                                      static_cast<int64_t>(windows.size() + held_out.size()), options);
  return with_torch_errors([&] {
    at::set_num_threads(options.threads);
    const RefineReport report = Refinement(files, codebook, options, plan.recompute).run(windows, held_out, progress);
    files.tensors->check_unchanged(false);  // weights that were changed under the run tune nothing
    return report;
  });
}

}  // namespace kvcc
