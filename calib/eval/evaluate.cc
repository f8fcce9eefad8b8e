#include "calib/eval/evaluate.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "calib/eval/comparison.h"
#include "calib/eval/evicting_cache.h"
#include "calib/eval/summary.h"
#include "calib/eval/window_cache.h"
#include "calib/model/decoder.h"
#include "calib/model/errors.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Runs of which a window's predictions are compared together, so that full precision's are made once for all of them.
constexpr size_t kTogether = 8;

CacheShape shape_of(const DecoderConfig& c) {
  return {static_cast<int>(c.cached_layers().size()), static_cast<int>(c.query_heads), static_cast<int>(c.kv_heads),
          static_cast<int>(c.head_dim), static_cast<int>(c.value_head_dim)};
}

Codebook with_scheme(Codebook codebook, const Scheme& scheme) {
  codebook.scheme = scheme;
  return codebook;
}

class Seconds {
 public:
  explicit Seconds(double& sum) : sum_(sum) {}
  ~Seconds() { sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Seconds(const Seconds&) = delete;
  Seconds& operator=(const Seconds&) = delete;

 private:
  double& sum_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// A subject in a mode.
struct Run {
  size_t subject;
  ModeOptions mode;
  std::string name, short_name;
  SimulatedCache* cache;
};

/// A forward pass whose predictions are still to be made.
struct Pass {
  at::Tensor normed;  ///< [T, hidden]
  Predictions predictions;
  double seconds = 0;
};

/// A run on a window.
struct Work {
  const Run* run;
  WindowRecord record;
  std::vector<Pass> passes;  ///< the run's own, then two for each repair
};

class Evaluation {
 public:
  Evaluation(const ModelFiles& files, const std::vector<EvalSubject>& subjects, const EvalOptions& options,
             EvalJournal* journal, const std::function<void(uint64_t, uint64_t)>& progress)
      : files_(files), options_(options), journal_(journal), progress_(progress), decoder_(files) {
    const CacheShape shape = shape_of(files.config);
    const int layers = decoder_.layers();
    for (size_t i = 0; i < subjects.size(); ++i) {
      const EvalSubject& s = subjects[i];
      caches_.push_back(
          s.codebook ? std::make_unique<SimulatedCache>(with_scheme(*s.codebook, s.scheme), layers, options.threads)
                     : std::make_unique<SimulatedCache>(s.scheme, shape, layers, options.threads, s.rotations.get()));
      for (const ModeOptions& mode : options.modes) {
        runs_.push_back({i, mode, run_name(s, mode, options), s.name, caches_.back().get()});
      }
    }
  }

  EvalReport run(const std::vector<std::vector<int32_t>>& windows) {
    EvalReport report;
    report.bins = position_bins(static_cast<int64_t>(windows[0].size()));
    if (options_.attention_queries > 0) {
      report.queries = query_positions(static_cast<int64_t>(windows[0].size()), options_.attention_queries);
    }
    total_ = windows.size() * (1 + runs_.size() * passes_of_a_run());
    std::vector<WindowRecord> full;
    std::vector<std::vector<WindowRecord>> records(runs_.size());
    for (size_t w = 0; w < windows.size(); ++w) {
      check_interrupt();
      window(windows[w], w, report.queries);
      full.push_back(std::move(full_));
      for (size_t i = 0; i < runs_.size(); ++i) records[i].push_back(std::move(records_[i]));
    }
    report.full = summarise(full, full, report.bins);
    for (size_t i = 0; i < runs_.size(); ++i) {
      report.results.push_back(summarise(records[i], full, report.bins));
      report.results.back().subject = runs_[i].subject;
      report.results.back().mode = runs_[i].mode;
    }
    return report;
  }

 private:
  size_t passes_of_a_run() const { return 1 + 2 * options_.repair_percents.size(); }
  void passed(size_t passes = 1) {
    done_ += passes;
    if (progress_) progress_(done_, total_);
  }
  std::optional<WindowRecord> find(const std::string& run, size_t window) {
    return journal_ != nullptr ? journal_->find(run, window) : std::nullopt;
  }
  void keep(const std::string& run, size_t window, const WindowRecord& record) {
    files_.tensors->check_unchanged(false);  // weights that were changed under the run count for nothing
    if (journal_ != nullptr) journal_->add(run, window, record);
  }

  /// Fills full_ and records_ of one window, from the journal where they are there.
  void window(const std::vector<int32_t>& ids, size_t w, const std::vector<int64_t>& queries) {
    records_.assign(runs_.size(), {});
    std::vector<size_t> missing;
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (auto record = find(runs_[i].name, w)) {
        records_[i] = std::move(*record);
        passed(passes_of_a_run());
      } else {
        missing.push_back(i);
      }
    }
    const std::optional<WindowRecord> known = find("fp", w);
    if (known) full_ = *known;
    if (known && missing.empty()) return passed();
    std::vector<Work> work;
    for (const size_t i : missing) work.push_back({&runs_[i], {}, {}});
    Pass reference = reference_pass(ids, queries, work);
    passed();
    if (!known) full_ = full_record(ids, reference, w);
    for (size_t begin = 0; begin < work.size(); begin += kTogether) {
      const std::span<Work> some(work.data() + begin, std::min(kTogether, work.size() - begin));
      for (Work& one : some) scheme_passes(ids, one);
      compare(ids, reference, some);
      for (Work& one : some) {
        finish(one, w);
        records_[one.run - runs_.data()] = std::move(one.record);
        one.passes.clear();
      }
    }
  }

  Pass reference_pass(const std::vector<int32_t>& ids, const std::vector<int64_t>& queries, std::vector<Work>& work) {
    Pass pass;
    const Seconds seconds(pass.seconds);
    if (queries.empty() || work.empty()) {
      pass.normed = decoder_.forward(ids_tensor(ids))[0];
      return pass;
    }
    reference_.emplace(decoder_.layers(), queries);
    std::vector<ReferenceTap::Subject> subjects;
    for (Work& one : work) {
      one.record.attention.windows = 1;
      subjects.push_back({one.run->cache, one.run->mode, &one.record.attention});
    }
    ReferenceTap tap(*reference_, std::move(subjects));
    pass.normed = decoder_.forward(ids_tensor(ids), &tap)[0];
    return pass;
  }

  WindowRecord full_record(const std::vector<int32_t>& ids, const Pass& reference, size_t w) {
    WindowRecord record;
    {
      const Seconds seconds(record.seconds);
      for_chunks(ids, [&](int64_t begin, int64_t rows, std::vector<int32_t> labels) {
        ReferenceChunk(decoder_.logits(reference.normed.narrow(0, begin, rows)), std::move(labels))
            .add_self(record.predictions);
      });
    }
    record.seconds += reference.seconds;
    check_finite(record, "fp", w);
    keep("fp", w, record);
    return record;
  }

  void scheme_passes(const std::vector<int32_t>& ids, Work& work) {
    SimulatedCache& cache = *work.run->cache;
    const auto pass = [&](std::optional<Repair> repair) {
      check_interrupt();
      Pass& now = work.passes.emplace_back();
      const Seconds seconds(now.seconds);
      if (options_.eviction) {
        EvictingCache tap(cache, work.run->mode, *options_.eviction, decoder_.rope(), decoder_.layers());
        now.normed = decoder_.forward(ids_tensor(ids), &tap)[0];
        work.record.kept = tap.kept();
        return;
      }
      WindowCache tap(cache, work.run->mode, repair);
      if (!repair) {
        work.record.key_errors = KeyErrors(decoder_.layers());
        tap.measure_keys(&work.record.key_errors);
        if (work.record.attention.windows > 0) tap.measure_attention(&*reference_, &work.record.attention);
      }
      now.normed = decoder_.forward(ids_tensor(ids), &tap)[0];
    };
    const int64_t outliers = cache.key_outliers(), elements = cache.key_elements();
    pass({});
    work.record.key_outliers = cache.key_outliers() - outliers;
    work.record.key_elements = cache.key_elements() - elements;
    passed();
    for (const double percent : options_.repair_percents) {
      for (const bool worst : {true, false}) {
        pass(Repair{percent, worst});
        passed();
      }
    }
  }

  void compare(const std::vector<int32_t>& ids, const Pass& reference, std::span<Work> some) {
    for_chunks(ids, [&](int64_t begin, int64_t rows, std::vector<int32_t> labels) {
      const ReferenceChunk exact(decoder_.logits(reference.normed.narrow(0, begin, rows)), std::move(labels));
      for (Work& work : some) {
        for (Pass& pass : work.passes) {
          const Seconds seconds(pass.seconds);
          exact.add(decoder_.logits(pass.normed.narrow(0, begin, rows)), pass.predictions);
        }
      }
    });
  }

  /// work(first prediction, how many, the ids that follow).
  template <typename Chunk>
  void for_chunks(const std::vector<int32_t>& ids, const Chunk& work) const {
    const int64_t predictions = static_cast<int64_t>(ids.size()) - 1, chunk = logits_chunk_rows(decoder_.config());
    for (int64_t begin = 0; begin < predictions; begin += chunk) {
      check_interrupt();
      const int64_t rows = std::min(chunk, predictions - begin);
      const auto label = ids.begin() + begin + 1;
      work(begin, rows, {label, label + rows});
    }
  }

  void finish(Work& work, size_t w) {
    WindowRecord& record = work.record;
    record.predictions = std::move(work.passes[0].predictions);
    record.seconds = work.passes[0].seconds;
    const auto mean_kl = [&](size_t pass) {
      const std::vector<float>& kl = work.passes[pass].predictions.kl;
      return mean(std::vector<double>(kl.begin(), kl.end()));
    };
    for (size_t i = 0; i < options_.repair_percents.size(); ++i) {
      record.repairs.push_back({options_.repair_percents[i], mean_kl(1 + 2 * i), mean_kl(2 + 2 * i)});
    }
    check_finite(record, work.run->short_name, w);
    keep(work.run->name, w, record);
  }

  void check_finite(const WindowRecord& record, const std::string& scheme, size_t window) const {
    const auto finite = [](const std::vector<float>& x) {
      return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
    };
    if (finite(record.predictions.nll) && finite(record.predictions.kl)) return;
    std::string weights;
    for (int l = -1; l < decoder_.layers() && weights.empty(); ++l) weights = decoder_.nonfinite_weights(l);
    throw Error(ErrorKind::failed, fmt::format("window {}, scheme {}", window, scheme),
                "predictions that are not finite", "finite ones",
                weights.empty() ? "" : "not finite in the model's weights: " + weights);
  }

  const ModelFiles& files_;
  const EvalOptions& options_;
  EvalJournal* journal_;
  const std::function<void(uint64_t, uint64_t)>& progress_;
  const Decoder decoder_;
  std::vector<std::unique_ptr<SimulatedCache>> caches_;
  std::vector<Run> runs_;
  uint64_t done_ = 0, total_ = 0;
  WindowRecord full_;                  ///< of the window at work
  std::vector<WindowRecord> records_;  ///< likewise, by run
  std::optional<AttentionReference> reference_;
};

}  // namespace

std::shared_ptr<const SpectralRotations> make_rotations(const ModelFiles& files, const Scheme& scheme,
                                                        const std::vector<std::vector<int32_t>>& windows, int threads,
                                                        const std::function<void(uint64_t done)>& progress) {
  return with_torch_errors([&] {
    at::set_num_threads(threads);
    const c10::NoGradGuard no_gradient;
    return std::make_shared<const SpectralRotations>(fit_rotations(Decoder(files), scheme, windows, threads, progress));
  });
}

uint64_t eval_bytes(const ModelFiles& files, int64_t seqlen, size_t subjects, const EvalOptions& options) {
  const DecoderConfig& c = files.config;
  const uint64_t query = c.query_heads * c.head_dim, key = c.kv_heads * c.head_dim;
  // One layer at work, its keys and values in three versions and those that attention joins; what passes end with.
  uint64_t layer = sizeof(float) * seqlen * (5 * c.hidden + 3 * c.feed_forward + 5 * query + 14 * key);
  const size_t runs = subjects * options.modes.size();
  const uint64_t together = 1 + std::min(runs, kTogether) * (1 + 2 * options.repair_percents.size());
  const uint64_t passes = sizeof(float) * seqlen * c.hidden * together;
  if (options.attention_queries > 0) {
    // All runs' rows beside full precision's; several scores of each query in f32 and f64.
    layer += sizeof(float) * seqlen * 4 * key * runs;
    layer += 10 * sizeof(double) * seqlen * c.query_heads * std::min(seqlen, options.attention_queries);
  }
  const uint64_t logits = 5ull * sizeof(float) * logits_chunk_rows(c) * c.vocab;
  return loaded_bytes(files) + passes + std::max(layer, logits);
}

std::string run_name(const EvalSubject& subject, const ModeOptions& mode, const EvalOptions& options) {
  std::string name = to_string(subject.scheme);
  if (subject.codebook) name += " " + subject.codebook->content_sha256;
  if (subject.rotations) name += " rotations=" + subject.rotations->sha256;
  name += fmt::format(" {}", mode_name(mode.mode));
  if (mode.mode == EvalMode::pseudo_decode) name += fmt::format(" block={}", mode.block);
  if (mode.mode == EvalMode::prefill_exact) name += fmt::format(" prompt={}", mode.prompt);
  if (options.eviction) name += " evict=" + eviction_name(*options.eviction);
  for (const double percent : options.repair_percents) name += fmt::format(" repair={}", percent);
  if (options.attention_queries > 0) name += fmt::format(" attention={}", options.attention_queries);
  return name;
}

EvalReport evaluate(const ModelFiles& files, const std::vector<std::vector<int32_t>>& windows,
                    const std::vector<EvalSubject>& subjects, const EvalOptions& options, EvalJournal* journal,
                    const std::function<void(uint64_t done, uint64_t total)>& progress) {
  return with_torch_errors([&] {
    at::set_num_threads(options.threads);
    const c10::NoGradGuard no_gradient;
    return Evaluation(files, subjects, options, journal, progress).run(windows);
  });
}

}  // namespace kvcc
