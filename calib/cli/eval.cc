// kvcc eval: what quantised caches do to a model's predictions, side by side with full precision.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "calib/cli/text_options.h"
#include "calib/eval/evaluate.h"
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
  std::string model, dataset, ids, bos = "auto", mode = "full";
  std::vector<std::string> codebooks, schemes, text;
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
  app.add_option("--mode", o.mode, "full: every key and value of the window is read back quantised")
      ->capture_default_str()
      ->check(CLI::IsMember({"full"}).description(""));
  app.add_option("--max-ppl", o.max_ppl, "Exit with 5 when a scheme's perplexity is above this, a number above 0")
      ->check(CLI::PositiveNumber.description(""));
  app.add_flag("--beyond-context", o.beyond_context,
               "Allow a --seqlen above the model's context; its RoPE is used unchanged");
  app.add_option("--context", o.context, "Tokens in the cache for which effective bits are counted")
      ->capture_default_str();
  app.add_option("--amortise", o.amortise, "Cached tokens that share codebooks and static scales, in effective bits")
      ->capture_default_str();
}

struct Text {
  std::string name, sha256;
  int64_t tokens = 0;
  std::vector<std::vector<int32_t>> windows;
};

/// A NaN (no standard error of one window) is null in JSON.
Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

class Evaluation {
 public:
  Evaluation(const Options& options, const kvcc::cli::Common& common)
      : o_(options), common_(common), files_(kvcc::open_model(options.model)) {}

  int run() {
    kvcc::cli::check_context(o_.seqlen, files_.config.max_position, o_.beyond_context);
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
    kvcc::EffectiveBitsQuery bits;
    bits.context = o_.context;
    bits.amortise = o_.amortise;
    std::optional<kvcc::cli::Progress> progress;
    const kvcc::EvalReport report =
        kvcc::evaluate(files_, text.windows, subjects_, bits, common_.threads, [&](uint64_t done, uint64_t total) {
          if (!progress) progress.emplace("eval", total, common_.quiet);
          progress->set(done);
        });
    progress.reset();
    if (common_.json) {
      print_json(text, report);
    } else {
      print_table(report);
    }
    return check_limit(report);
  }

 private:
  int64_t self_windows() const { return o_.windows > 0 ? o_.windows : 8; }

  /// Refuses what would not fit; returns the estimate.
  uint64_t check_memory(bool self) const {
    const uint64_t limit = kvcc::available_memory();
    uint64_t peak = kvcc::eval_bytes(files_, o_.seqlen, subjects_.size());
    kvcc::require_memory(o_.model, peak, limit, "", "a smaller --seqlen or fewer schemes at once make it smaller");
    if (self) {
      const uint64_t sampling = kvcc::self_sample_bytes(files_, self_windows(), o_.seqlen);
      kvcc::require_memory(o_.model + ": sampling", sampling, limit, "",
                           "fewer --windows or a smaller --seqlen make it smaller");
      peak = std::max(peak, sampling);
    }
    return peak;
  }

  void print_plan(const Text& text, int64_t windows, uint64_t peak) const {
    if (common_.json) {
      Json schemes = Json::array({"fp"});
      for (const kvcc::EvalSubject& subject : subjects_) schemes.push_back(kvcc::short_name(subject.scheme));
      kvcc::cli::print_json({{"text", text.name},
                             {"windows", windows},
                             {"seqlen", o_.seqlen},
                             {"schemes", schemes},
                             {"forward_passes", windows * static_cast<int64_t>(subjects_.size() + 1)},
                             {"peak_memory_bytes", peak}});
      return;
    }
    const std::string plan =
        kvcc::cli::table({{"plan", ""},
                          {"text", text.name},
                          {"windows", fmt::format("{} of {}", windows, o_.seqlen)},
                          {"schemes", std::to_string(subjects_.size() + 1)},
                          {"forward passes", std::to_string(windows * static_cast<int64_t>(subjects_.size() + 1))},
                          {"peak memory, about", kvcc::human_bytes(peak)}});
    std::fputs(plan.c_str(), stdout);
  }

  void add_codebooks() {
    if (o_.codebooks.empty()) return;
    const kvcc::ModelInfo model = kvcc::model_info(files_);
    for (const std::string& path : o_.codebooks) {
      kvcc::Codebook codebook = kvcc::read_codebook(path);
      kvcc::check_geometry(path, codebook, model);
      if (codebook.model.weights_sha256 != model.weights_sha256) {
        spdlog::warn("{}: made from other weights ({}) of the same geometry as {}", path, codebook.model.name,
                     model.name);
      }
      const kvcc::Scheme scheme = codebook.scheme;
      subjects_.push_back({scheme, std::move(codebook), path});
    }
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
      // Full precision is always there; a scheme given twice is run once.
      const bool there = scheme.is_full() || std::any_of(subjects_.begin(), subjects_.end(), [&](const auto& subject) {
                           return !subject.codebook && subject.scheme == scheme;
                         });
      if (!there) subjects_.push_back({scheme, std::nullopt, ""});
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

  Json row(const kvcc::EvalResult& result, const kvcc::EvalSubject* subject) const {
    Json row{{"scheme", subject ? kvcc::short_name(subject->scheme) : "fp"}};
    if (subject && subject->codebook) {
      row["codebook"] = subject->path;
      row["content_sha256"] = subject->codebook->content_sha256;
      row["artifact_bytes"] = fs::file_size(subject->path);
    }
    row["nominal_bits"] = subject ? kvcc::nominal_bits(subject->scheme) : 16.0;
    row["effective_bits"] = result.effective.total;
    row["constant_bytes"] = result.effective.constant_bytes;
    row["nll"] = number(result.nll);
    row["perplexity"] = number(result.perplexity);
    if (subject) {
      row["dnll"] = number(result.dnll);
      row["dnll_se"] = number(result.dnll_se);
      row["kl"] = number(result.kl);
      row["kl_se"] = number(result.kl_se);
      row["top1_agreement"] = number(result.top1_agreement);
      row["key_outlier_fraction"] = number(result.key_outlier_fraction);
      row["mode"] = o_.mode;
    }
    row["window_nll"] = result.window_nll;
    return row;
  }

  void print_json(const Text& text, const kvcc::EvalReport& report) const {
    Json document{{"model", o_.model},
                  {"dataset", {{"name", text.name}, {"sha256", text.sha256}, {"tokens", text.tokens}}},
                  {"windows", text.windows.size()},
                  {"seqlen", text.windows[0].size()},
                  {"effective_bits_context", o_.context},
                  {"effective_bits_amortise", o_.amortise}};
    document["results"] = Json::array({row(report.full, nullptr)});
    for (size_t i = 0; i < subjects_.size(); ++i) document["results"].push_back(row(report.results[i], &subjects_[i]));
    kvcc::cli::print_json(document);
  }

  void print_table(const kvcc::EvalReport& report) const {
    const auto with_error = [](double x, double error) {
      return std::isfinite(error) ? fmt::format("{:.5f} ±{:.5f}", x, error) : fmt::format("{:.5f}", x);
    };
    std::vector<std::vector<std::string>> rows{{"scheme", "bits", "effective", "perplexity", "dNLL", "KL", "top-1"}};
    rows.push_back({"fp", "16", "16", fmt::format("{:.4f}", report.full.perplexity), "", "", ""});
    for (size_t i = 0; i < subjects_.size(); ++i) {
      const kvcc::EvalResult& r = report.results[i];
      rows.push_back(
          {kvcc::short_name(subjects_[i].scheme), fmt::format("{:g}", kvcc::nominal_bits(subjects_[i].scheme)),
           fmt::format("{:.3f}", r.effective.total), fmt::format("{:.4f}", r.perplexity), with_error(r.dnll, r.dnll_se),
           with_error(r.kl, r.kl_se), fmt::format("{:.4f}", r.top1_agreement)});
    }
    std::fputs(kvcc::cli::table(rows).c_str(), stdout);
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
    for (size_t i = 0; i < subjects_.size(); ++i) {
      check(kvcc::short_name(subjects_[i].scheme), report.results[i].perplexity);
    }
    return code;
  }

  const Options& o_;
  const kvcc::cli::Common& common_;
  kvcc::ModelFiles files_;
  std::vector<kvcc::EvalSubject> subjects_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  using namespace kvcc::cli;
  return run(
      argc, argv, "eval", "Perplexity, KL and top-1 agreement of quantised caches against full precision",
      kJson | kThreads | kDevice | kDryRun | kCacheDir, [&](CLI::App& app) { define(app, options); },
      [&](const Common& common) {
        if (common.device != "cpu") {
          throw kvcc::Error(kvcc::ErrorKind::usage, "--device " + common.device, "this version runs models on the CPU",
                            "--device cpu");
        }
        return Evaluation(options, common).run();
      });
}
