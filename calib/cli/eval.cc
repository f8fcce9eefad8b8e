// kvcc eval: what quantised caches do to a model's predictions, side by side with full precision.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "calib/cli/eval_journal.h"
#include "calib/cli/eval_options.h"
#include "calib/cli/eval_subjects.h"
#include "calib/cli/eval_table.h"
#include "calib/cli/eval_tasks.h"
#include "calib/cli/text_source.h"
#include "calib/eval/evaluate.h"
#include "calib/model/arithmetic.h"
#include "calib/model/memory.h"
#include "calib/model/quantised_model.h"
#include "calib/model/self_sample.h"
#include "calib/report/html_report.h"
#include "formats/cli/output.h"
#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/text.h"

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

using kvcc::cli::EvalSettings;
using Text = kvcc::cli::EvalText;

class Evaluation {
 public:
  Evaluation(const EvalSettings& options, const kvcc::cli::Common& common)
      : o_(options), common_(common), files_(kvcc::open_model(options.model)), model_(kvcc::model_info(files_)) {}

  int run() {
    kvcc::reuse_freed_memory();
    if (!files_.left_out.empty()) spdlog::info("{}: {}", o_.model, files_.left_out);
    kvcc::cli::check_context(o_.seqlen, files_.config.max_position, o_.beyond_context);
    if (!o_.html.empty()) {
      kvcc::cli::check_replaced(o_.html, {"<!doctype html>", "content=\"kvcc "}, "--html");
      kvcc::AtomicFile{o_.html};  // says now what is wrong with the name
    }
    set_options();
    if (!o_.weights.empty()) set_weights();
    for (kvcc::EvalSubject& subject :
         kvcc::cli::eval_subjects(o_, files_, model_, weights_ ? weights_->content_sha256 : "")) {
      subjects_.push_back(std::move(subject));
    }
    if (!o_.tasks.tasks.empty()) return run_tasks();
    kvcc::cli::TextSource source(files_, o_.text, common_, kvcc::cli::kEvalDataset);
    check_memory(0);  // before the text is read
    kvcc::MixedSamples samples = source.cut(o_.windows, o_.seqlen);
    const uint64_t peak = check_memory(samples.self_samples);
    check_lengths(samples);
    if (!common_.dry_run) source.sample_self(samples, o_.seqlen, static_cast<uint64_t>(o_.seed));
    const Text text = text_of(std::move(samples));
    if (common_.dry_run) {
      print_plan(text, static_cast<int64_t>(text.windows.size()), peak);
      return 0;
    }
    spdlog::info("{} windows of {}{} tokens from {}, {} schemes", text.windows.size(),
                 text.has_one_length() ? "" : "at most ", text.longest(), text.name, subjects_.size() + 1);
    kvcc::cli::add_rotations(subjects_, o_, files_, common_);
    const kvcc::EvalReport report = evaluate(text);
    const kvcc::cli::EvalTable table{o_.model,  model_.shape, subjects_, options_, bits_, o_.sink >= 0 || o_.tail >= 0,
                                     o_.weights};
    const Json document = kvcc::cli::eval_json(table, text, report);
    write_html(document);
    if (common_.json) {
      kvcc::cli::print_json(document);
    } else {
      std::fputs(kvcc::cli::eval_table(table, report).c_str(), stdout);
    }
    return check_limit(report);
  }

 private:
  void set_options() {
    bits_.context = o_.context;
    bits_.amortise = o_.amortise;
    options_.threads = common_.threads;
    options_.repair_percents = o_.repairs;
    options_.attention_queries = o_.attention;
    std::vector<std::string> names = o_.modes;
    if (names.empty())
      names = o_.all_schemes ? std::vector<std::string>{"full", "pseudo-decode"} : std::vector<std::string>{"full"};
    options_.modes.clear();
    for (const std::string& name : names) {
      const kvcc::ModeOptions mode{kvcc::parse_mode(name), o_.block, o_.prompt > 0 ? o_.prompt : o_.seqlen / 2};
      const bool there = std::any_of(options_.modes.begin(), options_.modes.end(),
                                     [&](const kvcc::ModeOptions& m) { return m.mode == mode.mode; });
      if (!there) options_.modes.push_back(mode);
    }
    if (!o_.evict.empty()) set_eviction();
    if (o_.prompt >= o_.seqlen) {
      throw kvcc::Error(kvcc::ErrorKind::usage, "--prompt " + std::to_string(o_.prompt), "no token follows it",
                        "less than --seqlen " + std::to_string(o_.seqlen));
    }
  }

  /// Full precision is a row of its own then, so that what eviction alone does is seen.
  void set_eviction() {
    options_.eviction = kvcc::parse_eviction(o_.evict);
    for (const kvcc::ModeOptions& mode : options_.modes) {
      if (mode.mode != kvcc::EvalMode::full) continue;
      throw kvcc::Error(kvcc::ErrorKind::usage, "--evict " + o_.evict, "the full mode has no moment at which to evict",
                        "--mode pseudo-decode or prefill-exact");
    }
    for (const auto& [option, given] : {std::pair{"--repair", !o_.repairs.empty()},
                                        {"--attention", o_.attention > 0},
                                        {"--task", !o_.tasks.tasks.empty()}}) {
      if (given) throw kvcc::Error(kvcc::ErrorKind::usage, option, "does not go with --evict", "one of them");
    }
    subjects_.push_back({kvcc::parse_scheme("fp"), std::nullopt, nullptr, "", "fp"});
  }

  void write_html(const Json& document) const {
    if (o_.html.empty()) return;
    kvcc::write_text_file(o_.html, kvcc::evaluation_html(document));
    spdlog::info("{}: the report", o_.html);
  }

  /// With full precision's cache first, so that what the weights alone do is seen.
  void set_weights() {
    weights_ = kvcc::read_weights_for(o_.weights, files_, model_);
    options_.weights = &*weights_;
    if (subjects_.empty()) subjects_.push_back({kvcc::parse_scheme("fp"), std::nullopt, nullptr, "", "fp"});
  }

  int run_tasks() {
    kvcc::cli::add_rotations(subjects_, o_, files_, common_);
    kvcc::cli::TaskOptions options = o_.tasks;
    options.seed = static_cast<uint64_t>(o_.seed);
    options.beyond_context = o_.beyond_context;
    for (const std::string& mode : o_.modes) {
      if (mode == "pseudo-decode" || o_.modes.size() > 1) {
        throw kvcc::Error(kvcc::ErrorKind::usage, "--mode " + mode, "tasks are decoded token by token in one mode",
                          "full or prefill-exact");
      }
      options.prompt_quantised = mode == "full";
    }
    const kvcc::cli::TaskReport report =
        kvcc::cli::run_tasks(files_, model_, subjects_, options_.weights, options, common_);
    Json document{
        {"model", o_.model}, {"seed", o_.seed}, {"mode", options.prompt_quantised ? "full" : "prefill-exact"}};
    if (weights_) document["weights"] = kvcc::cli::weights_json(*weights_, o_.weights);
    document["results"] = Json::array();
    for (size_t i = 0; i <= subjects_.size(); ++i) {
      Json row{{"scheme", i == 0 ? "fp" : subjects_[i - 1].name}};
      if (i > 0 && subjects_[i - 1].codebook) row["codebook"] = subjects_[i - 1].path;
      if (i > 0) row["sink"] = subjects_[i - 1].scheme.sink;
      if (i > 0) row["tail"] = subjects_[i - 1].scheme.residual;
      row["tasks"] = kvcc::cli::task_json(report, i);
      document["results"].push_back(row);
    }
    write_html(document);
    if (common_.json) {
      kvcc::cli::print_json(document);
    } else {
      std::fputs(kvcc::cli::task_table(report, subjects_).c_str(), stdout);
      if (weights_) fmt::print("all but the first on the weights {}, {}\n", weights_->name(), o_.weights);
    }
    return 0;
  }

  /// With a journal beside it, which is removed when it is not the user's own.
  kvcc::EvalReport evaluate(const Text& text) {
    const std::string identity = model_.weights_sha256 + " " + KVCC_VERSION;
    std::string path = o_.journal;
    if (path.empty()) {
      kvcc::Sha256 key;
      key.update(identity).update(text.sha256).update(std::to_string(o_.seqlen));
      for (const kvcc::EvalSubject& subject : subjects_) {
        for (const kvcc::ModeOptions& mode : options_.modes) key.update(kvcc::run_name(subject, mode, options_));
      }
      path = common_.cache_dir + "/eval/" + key.hex().substr(0, 16) + ".jsonl";
    }
    kvcc::cli::JournalFile journal(path, identity, text.windows, common_.resume);
    if (journal.records() > 0) spdlog::info("{}: {} records of an earlier run", path, journal.records());
    std::optional<kvcc::cli::Progress> progress;
    const kvcc::EvalReport report =
        kvcc::evaluate(files_, text.windows, subjects_, options_, &journal, [&](uint64_t done, uint64_t total) {
          if (!progress) progress.emplace("eval", total, common_.quiet);
          progress->set(done);
        });
    progress.reset();
    std::error_code ignored;
    if (o_.journal.empty()) {
      fs::remove(path, ignored);
      fs::remove(fs::path(path).parent_path(), ignored);  // unless others have journals there
    }
    return report;
  }

  /// What needs windows of one length, or more tokens than a document has.
  void check_lengths(const kvcc::MixedSamples& samples) const {
    const auto [least, most] = std::minmax_element(samples.ids.begin(), samples.ids.end(),
                                                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
    if (least->size() == most->size()) return;
    if (o_.attention > 0) {
      throw kvcc::Error(kvcc::ErrorKind::usage, "--attention", "windows of several lengths have no positions in common",
                        "--packing packed");
    }
    for (const kvcc::ModeOptions& mode : options_.modes) {
      if (mode.mode != kvcc::EvalMode::prefill_exact || static_cast<int64_t>(least->size()) > mode.prompt) continue;
      throw kvcc::Error(kvcc::ErrorKind::usage, fmt::format("--prompt {}", mode.prompt),
                        fmt::format("no token follows it in a document of {}", least->size()), "a shorter prompt");
    }
  }

  /// Refuses what would not fit; returns the estimate.
  uint64_t check_memory(int64_t self_windows) const {
    const uint64_t limit = kvcc::available_memory();
    uint64_t peak = kvcc::eval_bytes(files_, o_.seqlen, subjects_.size(), options_);
    kvcc::require_memory(o_.model, peak, limit, "", "a smaller --seqlen or fewer schemes at once make it smaller");
    if (self_windows > 0) {
      const uint64_t sampling = kvcc::self_sample_bytes(files_, self_windows, o_.seqlen);
      kvcc::require_memory(o_.model + ": sampling", sampling, limit, "",
                           "fewer --windows or a smaller --seqlen make it smaller");
      peak = std::max(peak, sampling);
    }
    return peak;
  }

  int64_t passes(int64_t windows) const {
    const size_t runs = subjects_.size() * options_.modes.size();
    return windows * static_cast<int64_t>(1 + runs * (1 + 2 * options_.repair_percents.size()));
  }

  void print_plan(const Text& text, int64_t windows, uint64_t peak) const {
    if (common_.json) {
      Json schemes = Json::array({"fp"});
      for (const kvcc::EvalSubject& subject : subjects_) schemes.push_back(subject.name);
      kvcc::cli::print_json({{"text", text.name},
                             {"windows", windows},
                             {"seqlen", o_.seqlen},
                             {"schemes", schemes},
                             {"forward_passes", passes(windows)},
                             {"peak_memory_bytes", peak}});
      return;
    }
    const std::string plan = kvcc::cli::table({{"plan", ""},
                                               {"text", text.name},
                                               {"windows", fmt::format("{} of {}", windows, o_.seqlen)},
                                               {"schemes", std::to_string(subjects_.size() + 1)},
                                               {"forward passes", std::to_string(passes(windows))},
                                               {"peak memory, about", kvcc::human_bytes(peak)}});
    std::fputs(plan.c_str(), stdout);
  }

  /// Of one text, the tokens are those of all of it.
  static Text text_of(kvcc::MixedSamples samples) {
    const bool whole = samples.parts.size() == 1 && samples.parts[0].corpus_tokens > 0;
    Text text{samples.name(), samples.sha256(), whole ? samples.parts[0].corpus_tokens : samples.tokens(), {}, {}};
    if (samples.parts.size() > 1) {
      for (const kvcc::TextPart& part : samples.parts) {
        text.parts.push_back({{"name", part.name},
                              {"sha256", part.sha256},
                              {"weight", part.weight},
                              {"windows", part.samples},
                              {"tokens", part.tokens}});
      }
    }
    text.windows = std::move(samples.ids);
    return text;
  }

  /// The limit holds for every scheme, and for full precision when nothing else was asked for.
  int check_limit(const kvcc::EvalReport& report) const {
    if (o_.max_ppl <= 0) return 0;
    int code = 0;
    const auto check = [&](const std::string& scheme, double perplexity) {
      if (perplexity <= o_.max_ppl) return;
      spdlog::error("perplexity of {} is {:.4f}; wanted at most {:g} (--max-ppl)", scheme, perplexity, o_.max_ppl);
      code = static_cast<int>(kvcc::ErrorKind::limit);
    };
    if (subjects_.empty()) check("fp", report.full.perplexity);
    for (const kvcc::EvalResult& result : report.results) {
      const std::string mode = options_.modes.size() > 1 ? std::string(", ") + kvcc::mode_name(result.mode.mode) : "";
      check(subjects_[result.subject].name + mode, result.perplexity);
    }
    return code;
  }

  const EvalSettings& o_;
  const kvcc::cli::Common& common_;
  kvcc::ModelFiles files_;
  kvcc::ModelInfo model_;
  std::optional<kvcc::QuantisedWeights> weights_;
  kvcc::EvalOptions options_;
  kvcc::EffectiveBitsQuery bits_;
  std::vector<kvcc::EvalSubject> subjects_;
};

}  // namespace

int main(int argc, char** argv) {
  EvalSettings options;
  using namespace kvcc::cli;
  return run(
      argc, argv, "eval", "Perplexity, KL and top-1 agreement of quantised caches against full precision",
      kJson | kResume | kThreads | kDevice | kDryRun | kCacheDir, [&](CLI::App& app) { define_eval(app, options); },
      [&](const Common& common) {
        kvcc::require_cpu(common.device);
        return Evaluation(options, common).run();
      });
}
