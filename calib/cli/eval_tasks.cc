#include "calib/cli/eval_tasks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "calib/eval/answer.h"
#include "calib/model/errors.h"
#include "calib/model/quantised_model.h"
#include "calib/text/chat.h"
#include "formats/core/error.h"
#include "formats/core/text.h"

namespace kvcc::cli {
namespace {

/// Caches that a prompt is put into at once.
constexpr size_t kTogether = 4;

int64_t default_size(const std::string& task) { return task == "lines" || task == "codes" ? 100 : 2048; }

class Answering {
 public:
  Answering(const ModelFiles& files, const ModelInfo& model, const std::vector<EvalSubject>& subjects,
            const QuantisedWeights* weights, const TaskOptions& options, const Common& common)
      : files_(files),
        model_(model),
        options_(options),
        common_(common),
        decoder_(files),
        tokenizer_(make_tokenizer(files.tokenizer)) {
    if (weights != nullptr) {
      quantised_.emplace(decoder_);
      use_weights(*quantised_, files, *weights);
    }
    subjects_.push_back({parse_scheme("fp"), std::nullopt, nullptr, "", "fp"});
    subjects_.insert(subjects_.end(), subjects.begin(), subjects.end());
    const int64_t eos = files.config.eos_id >= 0 ? files.config.eos_id : files.tokenizer.eos_id;
    end_tokens_ = end_tokens(*tokenizer_, eos);
  }

  TaskReport run() {
    TaskReport report;
    report.tasks = read_tasks(options_);
    for (const Task& task : report.tasks) total_ += task.samples.size() * subjects_.size();
    report.scores.resize(subjects_.size());
    progress_.emplace("answers", total_, common_.quiet);
    for (const Task& task : report.tasks) {
      std::vector<Sums> sums(subjects_.size(), {{}, std::vector<Points>(task.further_metrics.size()), 0});
      for (size_t i = 0; i < task.samples.size(); ++i) {
        ask(task.samples[i], fmt::format("{}, sample {}", task.name, i), sums);
      }
      for (size_t s = 0; s < subjects_.size(); ++s) report.scores[s].push_back(summary(sums[s]));
    }
    progress_.reset();
    return report;
  }

 private:
  /// Of one task and subject.
  struct Sums {
    std::vector<double> scores;
    std::vector<Points> further;
    double seconds = 0;
  };

  static TaskScore summary(const Sums& sums) {
    std::vector<double> known;
    for (const double score : sums.scores) {
      if (!std::isnan(score)) known.push_back(score);
    }
    TaskScore result;
    result.scored = static_cast<int64_t>(known.size());
    result.score = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
    if (!known.empty()) result.score = {mean(known), standard_error(known)};
    for (const Points& points : sums.further) result.further.push_back(points.got / points.possible);
    result.seconds = sums.seconds;
    return result;
  }

  void ask(const TaskSample& sample, const std::string& place, std::vector<Sums>& sums) {
    GenerateOptions options;
    options.tokens = sample.max_tokens;
    options.end_tokens = end_tokens_;
    options.prefill = options_.prompt_quantised ? PrefillMode::quantised : PrefillMode::exact;
    const std::vector<int32_t> ids = prompt_ids(sample);
    check_length(ids, sample, place);
    for (size_t begin = 0, end = 0; begin < subjects_.size(); begin = end) {
      check_interrupt();
      const bool alone = quantised_ && begin == 0;  // full precision, which has its own weights
      end = alone ? 1 : std::min(begin + kTogether, subjects_.size());
      std::vector<std::unique_ptr<AttentionCache>> caches;
      for (size_t i = begin; i < end; ++i) {
        caches.push_back(empty_cache(subjects_[i], model_, decoder_.rope(), common_.threads));
      }
      const std::vector<Answer> given = answers(quantised_ && !alone ? *quantised_ : decoder_, ids, caches, options);
      files_.tensors->check_unchanged(false);  // weights that were changed under the run score nothing
      for (size_t i = 0; i < given.size(); ++i) {
        const std::string text = text_of(given[i].ids);
        spdlog::debug("{}, {}: {}", place, subjects_[begin + i].name, text);
        Sums& own = sums[begin + i];
        own.scores.push_back(sample.score(text));
        own.seconds += given[i].seconds;
        if (sample.further) {
          const std::vector<Points> points = sample.further(text);
          for (size_t m = 0; m < points.size(); ++m) {
            own.further[m].got += points[m].got;
            own.further[m].possible += points[m].possible;
          }
        }
        progress_->advance();
      }
    }
  }

  std::vector<int32_t> prompt_ids(const TaskSample& sample) {
    std::string text = sample.prompt;
    if (sample.chat) {
      try {
        text = chat_format(*tokenizer_, files_.path).turn(text, "", true);
      } catch (const Error& error) {  // a model that has no chat format is asked in plain text
        if (!warned_) spdlog::warn("{}; questions are asked in plain text", error.what());
        warned_ = true;
        text += "\n";
      }
    }
    std::vector<int32_t> ids = tokenizer_->encode(text);
    if (tokenizer_->adds_bos() && (ids.empty() || ids[0] != tokenizer_->bos_id())) {
      ids.insert(ids.begin(), static_cast<int32_t>(tokenizer_->bos_id()));
    }
    return ids;
  }

  void check_length(const std::vector<int32_t>& ids, const TaskSample& sample, const std::string& place) const {
    if (ids.empty()) throw bad_input(place, "a prompt without a token");
    const int64_t most = files_.config.max_position, all = static_cast<int64_t>(ids.size()) + sample.max_tokens;
    if (most <= 0 || all <= most || options_.beyond_context) return;
    throw Error(ErrorKind::usage, place, fmt::format("{} tokens with the answer's {}", all, sample.max_tokens),
                fmt::format("at most {}, the model's context", most), "a smaller task, or --beyond-context");
  }

  std::string text_of(const std::vector<int32_t>& ids) const {
    std::vector<int32_t> text;
    for (const int32_t id : ids) {
      if (!tokenizer_->is_special(id)) text.push_back(id);
    }
    return tokenizer_->decode(text);
  }

  const ModelFiles& files_;
  const ModelInfo& model_;
  const TaskOptions& options_;
  const Common& common_;
  const Decoder decoder_;
  std::optional<Decoder> quantised_;  ///< with quantised weights
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<EvalSubject> subjects_;
  std::vector<int32_t> end_tokens_;
  bool warned_ = false;
  uint64_t total_ = 0;
  std::optional<Progress> progress_;
};

}  // namespace

std::vector<Task> read_tasks(const TaskOptions& options) {
  std::vector<Task> tasks;
  for (const std::string& text : options.tasks) {
    if (const size_t equals = text.find('='); equals != std::string::npos) {
      tasks.push_back(file_task(text.substr(0, equals), text.substr(equals + 1), {options.samples, options.run_code}));
      if (tasks.back().metric == "pass@1" && !options.run_code) {
        spdlog::warn("{}: not scored, as that executes what the model writes; --run-code does", text);
      }
      continue;
    }
    const size_t colon = text.find(':');
    SyntheticOptions synthetic;
    const std::string name = text.substr(0, colon);
    synthetic.size = default_size(name);
    synthetic.samples = options.samples > 0 ? options.samples : 10;
    synthetic.seed = options.seed;
    if (colon != std::string::npos) {
      const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
      const auto [stopped, error] = std::from_chars(begin, end, synthetic.size);
      if (error != std::errc() || stopped != end) {
        throw Error(ErrorKind::usage, "--task " + text, "no size after the colon", "a number, as in passkey:4096");
      }
    }
    tasks.push_back(synthetic_task(name, synthetic));
    if (colon != std::string::npos) tasks.back().name = text;
  }
  return tasks;
}

TaskReport run_tasks(const ModelFiles& files, const ModelInfo& model, const std::vector<EvalSubject>& subjects,
                     const QuantisedWeights* weights, const TaskOptions& options, const Common& common) {
  return with_torch_errors([&] {
    at::set_num_threads(common.threads);
    return Answering(files, model, subjects, weights, options, common).run();
  });
}

nlohmann::ordered_json task_json(const TaskReport& report, size_t subject) {
  const auto number = [](double x) { return std::isfinite(x) ? nlohmann::ordered_json(x) : nullptr; };
  auto array = nlohmann::ordered_json::array();
  for (size_t t = 0; t < report.tasks.size(); ++t) {
    const TaskScore& score = report.scores[subject][t];
    array.push_back({{"task", report.tasks[t].name},
                     {"metric", report.tasks[t].metric},
                     {"samples", report.tasks[t].samples.size()},
                     {"scored", score.scored},
                     {"score", number(score.score.value)},
                     {"score_se", number(score.score.error)},
                     {"seconds", score.seconds}});
    for (size_t m = 0; m < score.further.size(); ++m) {
      array.back()["further"].push_back(
          {{"metric", report.tasks[t].further_metrics[m]}, {"score", number(score.further[m])}});
    }
  }
  return array;
}

std::string task_table(const TaskReport& report, const std::vector<EvalSubject>& subjects) {
  std::vector<std::vector<std::string>> rows{{"scheme"}};
  for (const Task& task : report.tasks) {
    rows[0].push_back(fmt::format("{} ({})", task.name, task.metric));
    for (const std::string& metric : task.further_metrics) rows[0].push_back(metric);
  }
  for (size_t s = 0; s < report.scores.size(); ++s) {
    rows.push_back({s == 0 ? "fp" : subjects[s - 1].name});
    for (const TaskScore& score : report.scores[s]) {
      rows.back().push_back(score.scored == 0 ? "not scored"
                            : std::isfinite(score.score.error)
                                ? fmt::format("{:.3f} ±{:.3f}", score.score.value, score.score.error)
                                : fmt::format("{:.3f}", score.score.value));
      for (const double further : score.further) {
        rows.back().push_back(std::isfinite(further) ? fmt::format("{:.3f}", further) : "not scored");
      }
    }
  }
  return table(rows);
}

}  // namespace kvcc::cli
