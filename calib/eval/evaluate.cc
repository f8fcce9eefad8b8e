#include "calib/eval/evaluate.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "calib/eval/comparison.h"
#include "calib/eval/simulated_cache.h"
#include "calib/model/decoder.h"
#include "calib/model/errors.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

double mean(const std::vector<double>& x) {
  double sum = 0;
  for (double v : x) sum += v;
  return sum / static_cast<double>(x.size());
}

/// Standard error of the mean; NaN for one value.
double standard_error(const std::vector<double>& x) {
  if (x.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const double centre = mean(x), n = static_cast<double>(x.size());
  double squares = 0;
  for (double v : x) squares += (v - centre) * (v - centre);
  return std::sqrt(squares / (n - 1) / n);
}

/// Per-window means of one subject.
struct Windows {
  std::vector<double> nll, kl, agreement;
  void add(const PredictionSums& sums, int64_t predictions) {
    nll.push_back(sums.nll / static_cast<double>(predictions));
    kl.push_back(sums.kl / static_cast<double>(predictions));
    agreement.push_back(static_cast<double>(sums.agreed) / static_cast<double>(predictions));
  }
};

EvalResult summarise(const Windows& windows, const Windows& full) {
  EvalResult result;
  std::vector<double> difference;
  for (size_t w = 0; w < windows.nll.size(); ++w) difference.push_back(windows.nll[w] - full.nll[w]);
  result.nll = mean(windows.nll);
  result.perplexity = std::exp(result.nll);
  result.dnll = mean(difference);
  result.dnll_se = standard_error(difference);
  result.kl = mean(windows.kl);
  result.kl_se = standard_error(windows.kl);
  result.top1_agreement = mean(windows.agreement);
  result.window_nll = windows.nll;
  return result;
}

CacheShape shape_of(const DecoderConfig& c) {
  return {static_cast<int>(c.layers), static_cast<int>(c.query_heads), static_cast<int>(c.kv_heads),
          static_cast<int>(c.head_dim), static_cast<int>(c.head_dim)};
}

/// One window: forward passes of full precision and all subjects, then their predictions chunk by chunk.
class WindowPass {
 public:
  WindowPass(const Decoder& decoder, std::vector<std::unique_ptr<SimulatedCache>>& caches)
      : decoder_(decoder), caches_(caches) {}

  /// Sums of full precision, then of the subjects.
  std::vector<PredictionSums> run(const std::vector<int32_t>& ids, const std::function<void()>& passed) {
    const at::Tensor tokens = ids_tensor(ids);
    std::vector<at::Tensor> normed{decoder_.forward(tokens)[0]};
    passed();
    for (const std::unique_ptr<SimulatedCache>& cache : caches_) {
      check_interrupt();
      normed.push_back(decoder_.forward(tokens, cache.get())[0]);
      passed();
    }
    std::vector<PredictionSums> sums(normed.size());
    const int64_t predictions = static_cast<int64_t>(ids.size()) - 1, chunk = logits_chunk_rows(decoder_.config());
    for (int64_t begin = 0; begin < predictions; begin += chunk) {
      check_interrupt();
      const int64_t rows = std::min(chunk, predictions - begin);
      const auto logits = [&](size_t i) { return decoder_.logits(normed[i].narrow(0, begin, rows)); };
      const auto label = ids.begin() + begin + 1;
      const ReferenceChunk reference(logits(0), {label, label + rows});
      reference.add_self(sums[0]);
      for (size_t i = 1; i < sums.size(); ++i) reference.add(logits(i), sums[i]);
    }
    return sums;
  }

 private:
  const Decoder& decoder_;
  std::vector<std::unique_ptr<SimulatedCache>>& caches_;
};

}  // namespace

std::vector<std::string> geometry_differences(const ModelInfo& a, const ModelInfo& m) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* field, const auto& artifact, const auto& model) {
    if (artifact != model) differences.push_back(fmt::format("{}: artifact {}, model {}", field, artifact, model));
  };
  compare("architecture", a.architecture, m.architecture);
  compare("layers", a.shape.layers, m.shape.layers);
  compare("query_heads", a.shape.query_heads, m.shape.query_heads);
  compare("kv_heads", a.shape.kv_heads, m.shape.kv_heads);
  compare("head_dim", a.shape.head_dim, m.shape.head_dim);
  compare("value_head_dim", a.shape.value_head_dim, m.shape.value_head_dim);
  compare("rope theta", a.rope.theta, m.rope.theta);
  compare("rope kind", a.rope.kind, m.rope.kind);
  compare("rope scaling", a.rope.scaling, m.rope.scaling);
  compare("rope scaling parameters", a.rope.scaling_json, m.rope.scaling_json);
  compare("rotary_dim", a.rope.rotary_dim, m.rope.rotary_dim);
  compare("qk_norm", a.qk_norm, m.qk_norm);
  return differences;
}

void check_geometry(const std::string& path, const Codebook& artifact, const ModelInfo& model) {
  std::vector<std::string> differences = geometry_differences(artifact.model, model);
  if (!artifact.layer_index.empty() && artifact.layer_index.back() >= model.shape.layers) {  // ascending
    differences.push_back(fmt::format("layer_index: artifact has layer {}, the model layers 0 to {}",
                                      artifact.layer_index.back(), model.shape.layers - 1));
  }
  if (differences.empty()) return;
  throw bad_input(path,
                  fmt::format("made for another model ({}): {}", artifact.model.name, fmt::join(differences, "; ")),
                  "a codebook of " + model.name, "kvcc calibrate makes one");
}

uint64_t eval_bytes(const ModelFiles& files, int64_t seqlen, size_t subjects) {
  const DecoderConfig& c = files.config;
  const uint64_t query = c.query_heads * c.head_dim, key = c.kv_heads * c.head_dim;
  // One layer at work, its keys and values once more for every query head under GQA; what every pass ends with.
  const uint64_t layer = sizeof(float) * seqlen * (5 * c.hidden + 3 * c.feed_forward + 5 * query + 4 * key);
  const uint64_t passes = sizeof(float) * seqlen * c.hidden * (subjects + 1);
  const uint64_t logits = 5ull * sizeof(float) * logits_chunk_rows(c) * c.vocab;
  return loaded_bytes(files) + passes + std::max(layer, logits);
}

namespace {

EvalReport evaluate_windows(const ModelFiles& files, const std::vector<std::vector<int32_t>>& windows,
                            const std::vector<EvalSubject>& subjects, const EffectiveBitsQuery& bits, int threads,
                            const std::function<void(uint64_t done, uint64_t total)>& progress) {
  at::set_num_threads(threads);
  const c10::NoGradGuard no_gradient;
  const CacheShape shape = shape_of(files.config);
  std::vector<std::unique_ptr<SimulatedCache>> caches;
  for (const EvalSubject& subject : subjects) {
    caches.push_back(subject.codebook ? std::make_unique<SimulatedCache>(*subject.codebook, shape.layers, threads)
                                      : std::make_unique<SimulatedCache>(subject.scheme, shape, threads));
  }
  const Decoder decoder(files);
  WindowPass pass(decoder, caches);
  std::vector<Windows> rows(1 + subjects.size());
  uint64_t done = 0;
  const uint64_t total = windows.size() * rows.size();
  for (size_t w = 0; w < windows.size(); ++w) {
    check_interrupt();
    const std::vector<PredictionSums> sums = pass.run(windows[w], [&] {
      if (progress) progress(++done, total);
    });
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!std::isfinite(sums[i].nll) || !std::isfinite(sums[i].kl)) {
        std::string weights;
        for (int l = -1; l < decoder.layers() && weights.empty(); ++l) weights = decoder.nonfinite_weights(l);
        throw Error(ErrorKind::failed,
                    fmt::format("window {}, scheme {}", w, i == 0 ? "fp" : short_name(subjects[i - 1].scheme)),
                    "predictions that are not finite", "finite ones",
                    weights.empty() ? "" : "not finite in the model's weights: " + weights);
      }
      rows[i].add(sums[i], static_cast<int64_t>(windows[w].size()) - 1);
    }
  }
  EvalReport report;
  report.full = summarise(rows[0], rows[0]);
  report.full.effective = effective_bits(parse_scheme("fp"), shape, bits);
  for (size_t i = 0; i < subjects.size(); ++i) {
    EvalResult result = summarise(rows[i + 1], rows[0]);
    result.key_outlier_fraction = caches[i]->key_outlier_fraction();
    EffectiveBitsQuery query = bits;
    if (subjects[i].codebook)
      query.key_outlier_fraction = mean_outlier_fraction(subjects[i].codebook->key.outlier_fraction);
    result.effective = effective_bits(subjects[i].scheme, shape, query);
    report.results.push_back(std::move(result));
  }
  return report;
}

}  // namespace

EvalReport evaluate(const ModelFiles& files, const std::vector<std::vector<int32_t>>& windows,
                    const std::vector<EvalSubject>& subjects, const EffectiveBitsQuery& bits, int threads,
                    const std::function<void(uint64_t done, uint64_t total)>& progress) {
  return with_torch_errors([&] { return evaluate_windows(files, windows, subjects, bits, threads, progress); });
}

}  // namespace kvcc
