// kvcc eval: what quantised caches do to a model's predictions, side by side with full precision.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "calib/cli/eval_journal.h"
#include "calib/cli/eval_table.h"
#include "calib/cli/text_options.h"
#include "calib/eval/evaluate.h"
#include "calib/eval/geometry.h"
#include "calib/model/memory.h"
#include "calib/model/self_sample.h"
#include "calib/text/corpus.h"
#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/core/hash.h"
#include "formats/core/text.h"

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct Options {
  std::string model, dataset, ids, bos = "auto", journal;
  std::vector<std::string> codebooks, schemes, text, modes;
  std::vector<double> repairs;
  int64_t block = 128, prompt = 0, sink = -1, tail = -1, attention = 0;
  int64_t windows = 8, seqlen = 2048, seed = 1, context = 32768, amortise = 1 << 20;
  double max_ppl = 0;
  bool all_schemes = false, beyond_context = false;
};

void define(CLI::App& app, Options& o) {
  app.add_option("MODEL", o.model, "Hugging Face directory or .gguf file")->required();
  app.add_option("--codebook", o.codebooks, "Artifact F.kvcb, may be repeated");
  app.add_option("--scheme", o.schemes, "Scheme that needs no artifact, such as int4; may be repeated");
  app.add_flag("--schemes-all", o.all_schemes, "All presets that need no artifact");
  CLI::Option* dataset =
      app.add_option("--dataset", o.dataset,
                     "Text D[:split], or 'self' for samples of the model itself (default wikitext-2:evaluation)");
  CLI::Option* text = app.add_option("--text", o.text, "Text files");
  CLI::Option* ids = app.add_option("--ids", o.ids, "Token ids, .npy int32 [n], cut into windows, or [n, len]");
  dataset->excludes(text)->excludes(ids);
  text->excludes(ids);
  app.add_option("--windows", o.windows, "Windows from the start of the text; 0: all of it (with --dataset self: 8)")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30).description(""));
  app.add_option("--seqlen", o.seqlen, "Tokens a window")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24).description(""));
  app.add_option("--bos", o.bos, "Begin each window with the BOS token: auto (as the model says), on or off")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "on", "off"}).description(""));
  app.add_option("--seed", o.seed, "Seed of --dataset self")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, INT64_MAX).description(""));
  app.add_option("--mode", o.modes,
                 "full: all of a window is quantised in one pass; pseudo-decode: blocks against the quantised blocks "
                 "before, their own tokens exact; prefill-exact: a prompt whose tokens see each other exactly, then "
                 "token by token. May be repeated (default full; with --schemes-all full and pseudo-decode)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"full", "pseudo-decode", "prefill-exact"}).description(""));
  app.add_option("--block", o.block, "Tokens of a block of pseudo-decode")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24).description(""));
  app.add_option("--prompt", o.prompt, "Tokens of prefill-exact's prompt; 0: half of the window")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24).description(""));
  app.add_option("--sink", o.sink, "First tokens that every scheme keeps exactly, 0 for none (default: as each says)")
      ->check(CLI::Range(0, 1 << 20).description(""));
  app.add_option("--tail", o.tail, "Last tokens that every scheme keeps exactly, 0 for none (default: as each says)")
      ->check(CLI::Range(0, 1 << 20).description(""));
  app.add_option("--repair", o.repairs,
                 "KL with the worst P % of the tokens of each layer exact, and with the rest exact; may be repeated "
                 "(two passes more a scheme each)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0.0, 100.0).description(""));
  app.add_option("--attention", o.attention,
                 "Compare attention itself at N queries a window: KL of its weights and error of its output by layer "
                 "and head; 0: no")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20).description(""));
  app.add_option("--journal", o.journal,
                 "File of what is done, window by window, for --resume (default: in the cache folder, removed when all "
                 "is done)");
  app.add_option("--max-ppl", o.max_ppl, "Exit with 5 when a scheme's perplexity is above this, a number above 0")
      ->check(CLI::PositiveNumber.description(""));
  app.add_flag("--beyond-context", o.beyond_context,
               "Allow a --seqlen above the model's context; its RoPE is used unchanged");
  app.add_option("--context", o.context, "Tokens in the cache for which effective bits are counted")
      ->capture_default_str();
  app.add_option("--amortise", o.amortise, "Cached tokens that share codebooks and static scales, in effective bits")
      ->capture_default_str();
}

using Text = kvcc::cli::EvalText;

class Evaluation {
 public:
  Evaluation(const Options& options, const kvcc::cli::Common& common)
      : o_(options), common_(common), files_(kvcc::open_model(options.model)), model_(kvcc::model_info(files_)) {}

  int run() {
    kvcc::cli::check_context(o_.seqlen, files_.config.max_position, o_.beyond_context);
    set_options();
    add_codebooks();
    add_schemes();
    const bool self = o_.dataset == "self";
    const uint64_t peak = check_memory(self);
    if (common_.dry_run && self) {
      print_plan({"self", "", self_windows() * o_.seqlen, {}}, self_windows(), peak);
      return 0;
    }
    const Text text = self ? sample_self() : read_text();
    if (common_.dry_run) {
      print_plan(text, static_cast<int64_t>(text.windows.size()), peak);
      return 0;
    }
    spdlog::info("{} windows of {} tokens from {}, {} schemes", text.windows.size(), text.windows[0].size(), text.name,
                 subjects_.size() + 1);
    const kvcc::EvalReport report = evaluate(text);
    const kvcc::cli::EvalTable table{o_.model, model_.shape, subjects_, options_, bits_, o_.sink >= 0 || o_.tail >= 0};
    if (common_.json) {
      kvcc::cli::print_json(kvcc::cli::eval_json(table, text, report));
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
    if (o_.prompt >= o_.seqlen) {
      throw kvcc::Error(kvcc::ErrorKind::usage, "--prompt " + std::to_string(o_.prompt), "no token follows it",
                        "less than --seqlen " + std::to_string(o_.seqlen));
    }
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
    if (o_.journal.empty()) fs::remove(path, ignored);
    return report;
  }

  int64_t self_windows() const { return o_.windows > 0 ? o_.windows : 8; }

  /// Refuses what would not fit; returns the estimate.
  uint64_t check_memory(bool self) const {
    const uint64_t limit = kvcc::available_memory();
    uint64_t peak = kvcc::eval_bytes(files_, o_.seqlen, subjects_.size(), options_);
    kvcc::require_memory(o_.model, peak, limit, "", "a smaller --seqlen or fewer schemes at once make it smaller");
    if (self) {
      const uint64_t sampling = kvcc::self_sample_bytes(files_, self_windows(), o_.seqlen);
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

  void add_codebooks() {
    if (o_.codebooks.empty()) return;
    for (const std::string& path : o_.codebooks) {
      kvcc::Codebook codebook = kvcc::read_codebook(path);
      kvcc::check_geometry(path, codebook, model_, files_.config.cached_layers());
      if (codebook.model.weights_sha256 != model_.weights_sha256) {
        spdlog::warn("{}: made from other weights ({}) of the same geometry as {}", path, codebook.model.name,
                     model_.name);
      }
      const kvcc::Scheme scheme = with_exact_tokens(codebook.scheme);
      std::string name = kvcc::short_name(codebook.scheme);
      subjects_.push_back({scheme, std::move(codebook), path, std::move(name)});
    }
  }

  kvcc::Scheme with_exact_tokens(kvcc::Scheme scheme) const {
    if (o_.sink >= 0) scheme.sink = static_cast<int>(o_.sink);
    if (o_.tail >= 0) scheme.residual = static_cast<int>(o_.tail);
    return scheme;
  }

  void add_schemes() {
    std::vector<std::string> names = o_.schemes;
    if (o_.all_schemes) {
      for (const kvcc::PresetInfo& preset : kvcc::presets()) names.push_back(preset.example);
    }
    for (size_t i = 0; i < names.size(); ++i) {
      const kvcc::Scheme scheme = kvcc::parse_scheme(names[i]);
      if (scheme.needs_calibration()) {
        if (i >= o_.schemes.size()) continue;
        throw kvcc::Error(kvcc::ErrorKind::usage, "--scheme " + names[i], "needs statistics of the model",
                          "a scheme that works on-line, such as int4",
                          fmt::format("kvcc calibrate '{}' --scheme '{}' makes a codebook; then --codebook FILE",
                                      o_.model, names[i]));
      }
      if (scheme.is_full()) continue;  // always there
      const kvcc::Scheme exact = with_exact_tokens(scheme);
      const auto there = std::find_if(subjects_.begin(), subjects_.end(), [&](const auto& subject) {
        return !subject.codebook && subject.scheme == exact;
      });
      if (there == subjects_.end()) {
        subjects_.push_back({exact, std::nullopt, "", kvcc::short_name(scheme)});
      } else if (i < o_.schemes.size()) {
        spdlog::warn("--scheme {}: the same as {}, which is there already; it is run once", names[i], there->name);
      }
    }
  }

  Text read_text() {
    kvcc::CorpusRequest request;
    request.files = o_.text;
    request.ids = o_.ids;
    request.bos = o_.bos;
    request.cache_dir = common_.cache_dir;
    if (o_.text.empty() && o_.ids.empty()) request.dataset = o_.dataset.empty() ? "wikitext-2:evaluation" : o_.dataset;
    std::unique_ptr<kvcc::Tokenizer> tokenizer;
    if (o_.ids.empty() || o_.bos == "on") tokenizer = kvcc::make_tokenizer(files_.tokenizer);
    const kvcc::Corpus corpus = kvcc::cli::load_corpus(request, tokenizer.get(), common_.quiet);
    kvcc::Samples samples = kvcc::cut_windows(corpus, o_.windows, o_.seqlen);
    kvcc::cli::warn_if_fewer(o_.windows, samples, corpus, "windows");
    return {corpus.name, corpus.sha256, static_cast<int64_t>(corpus.ids.size()), std::move(samples.ids)};
  }

  Text sample_self() {
    Text text{"self", "", 0, {}};
    const int64_t windows = self_windows();
    kvcc::cli::Progress progress("sampling", o_.seqlen, common_.quiet);
    text.windows = kvcc::sample_from_model(files_, windows, o_.seqlen, o_.seed, common_.threads,
                                           [&](int64_t done) { progress.set(done); });
    kvcc::Sha256 hash;
    for (const auto& ids : text.windows) hash.update(ids.data(), ids.size() * sizeof(int32_t));
    text.sha256 = hash.hex();
    text.tokens = windows * o_.seqlen;
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

  const Options& o_;
  const kvcc::cli::Common& common_;
  kvcc::ModelFiles files_;
  kvcc::ModelInfo model_;
  kvcc::EvalOptions options_;
  kvcc::EffectiveBitsQuery bits_;
  std::vector<kvcc::EvalSubject> subjects_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  using namespace kvcc::cli;
  return run(
      argc, argv, "eval", "Perplexity, KL and top-1 agreement of quantised caches against full precision",
      kJson | kResume | kThreads | kDevice | kDryRun | kCacheDir, [&](CLI::App& app) { define(app, options); },
      [&](const Common& common) {
        if (common.device != "cpu") {
          throw kvcc::Error(kvcc::ErrorKind::usage, "--device " + common.device, "this version runs models on the CPU",
                            "--device cpu");
        }
        return Evaluation(options, common).run();
      });
}
