// kvcc fit: activations to artifacts, layer by layer. Several schemes share one reading and what they have in common.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <set>

#include "calib/cli/artifact_name.h"
#include "calib/cli/fit_artifact.h"
#include "calib/cli/fit_parts.h"
#include "calib/cli/fit_report.h"
#include "calib/cli/fit_vector.h"
#include "calib/cli/ranked.h"
#include "calib/cli/run_status.h"
#include "calib/fit/fit.h"
#include "calib/report/explain.h"
#include "calib/report/layer_data.h"
#include "formats/cli/output.h"
#include "formats/cli/program.h"
#include "formats/cli/ranges.h"
#include "formats/cli/terminal.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/json.h"
#include "formats/core/paths.h"
#include "formats/core/text.h"
#include "formats/store/activations.h"
#include "formats/store/codebook.h"

namespace {

namespace fs = std::filesystem;
using kvcc::Codebook;
using kvcc::Error;
using kvcc::ErrorKind;
using kvcc::Scheme;
using kvcc::cli::Common;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr float kStatedBound = 1e-4f;  // on the gap to the optimum; more than this is told

struct Options {
  std::string activations, output;
  std::vector<std::string> schemes;
  double budget = 0;      ///< in place of the schemes' own; 0: theirs
  int64_t held_out = -1;  ///< samples; -1: the default
  bool explain = false;
  int layer = -1, head = -1;  ///< of the head to explain; -1: none
  std::string kind;           ///< "", "key" or "value"
  bool explains_head() const { return layer >= 0 || head >= 0 || !kind.empty(); }
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// One scheme's artifact, done before or to be fitted.
struct Job {
  Scheme scheme;
  std::string output;
  bool skipped = false;
  std::unique_ptr<kvcc::AtomicFile> file = {};  ///< taken before the work, so that nobody else writes it meanwhile
  Codebook codebook;
  double seconds = 0;  ///< its share of the fit that all schemes have in common
};

/// Jobs whose vector codebooks are fitted together.
struct Family {
  std::vector<Job*> jobs;
  std::unique_ptr<kvcc::VectorFit> fit = {};
};

class Fit {
 public:
  /// `ranks` null: this process alone.
  Fit(const Options& options, const Common& common, kvcc::Ranks* ranks)
      : options_(options), common_(common), ranks_(ranks), reader_(options.activations), settings_(reader_.settings()) {
    std::set<std::string> seen;
    for (const std::string& text : options_.schemes) {
      Job job;
      job.scheme = kvcc::parse_scheme(text);
      if (options_.budget > 0) {
        if (!job.scheme.is_vector()) {
          throw Error(ErrorKind::usage, "--budget", "with scheme " + text,
                      "schemes of vector codebooks such as kvcc-2");
        }
        job.scheme.budget = options_.budget;
      }
      if (!job.scheme.needs_calibration() || job.scheme.needs_rotations()) {
        throw Error(ErrorKind::usage, "--scheme " + text, "nothing to fit for it",
                    "a scheme with statistics of the model", "kvcc eval MODEL --scheme " + text);
      }
      if (!seen.insert(to_string(job.scheme)).second) throw Error(ErrorKind::usage, "--scheme " + text, "given twice");
      const bool weighs = job.scheme.weight != kvcc::FitWeight::none && kvcc::cli::has_kmeans(job.scheme);
      if (!settings_.fisher && weighs) {
        throw kvcc::bad_input(options_.activations, "no gradients (collected with --no-fisher)",
                              "gradients, which scheme " + text + " weighs with",
                              "collect without --no-fisher, or spell the scheme out with weight=none");
      }
      job.output = kvcc::cli::artifact_name(options_.output, short_name(job.scheme), options_.schemes.size() > 1);
      jobs_.push_back(std::move(job));
    }
    const bool vectors = std::any_of(jobs_.begin(), jobs_.end(), [](const Job& job) { return job.scheme.is_vector(); });
    if (options_.held_out >= 0 && !vectors) {
      throw Error(ErrorKind::usage, fmt::format("--held-out {}", options_.held_out), "without a scheme that it is for",
                  "schemes of vector codebooks such as kvcc-2");
    }
    if (vectors && held_out() >= settings_.samples) {
      throw kvcc::bad_input(options_.activations,
                            fmt::format("{} samples, of which {} are held out", settings_.samples, held_out()),
                            "some to fit to", "a smaller --held-out");
    }
  }

  int run() {
    if (options_.explains_head()) {
      explain_head();
      return 0;
    }
    if (is_first()) {
      for (Job& job : jobs_) job.skipped = is_done(job);
    }
    if (ranks_ != nullptr) agree();
    if (options_.explain && is_first()) {
      for (const Job& job : jobs_) {
        fmt::print(common_.json ? stderr : stdout, "{}",
                   job.scheme.is_vector() ? kvcc::cli::explain_vector(job.scheme, held_out())
                                          : kvcc::cli::explain_fit(job.scheme));
      }
    }
    if (common_.dry_run) {
      plan();
      return 0;
    }
    fit();
    if (is_first()) report();
    return 0;
  }

 private:
  const Options& options_;
  const Common& common_;
  kvcc::Ranks* ranks_;
  kvcc::ActivationsReader reader_;
  const kvcc::ActivationsSettings& settings_;
  std::vector<Job> jobs_;
  double fit_seconds_ = 0, wait_seconds_ = 0;

  bool is_first() const { return ranks_ == nullptr || ranks_->first(); }

  /// All ranks fit the same; rank 0 says what is there already.
  void agree() {
    kvcc::cli::agree_on(*ranks_, "activations_sha256", reader_.content_sha256());
    std::string schemes = std::to_string(held_out()), skipped;
    for (const Job& job : jobs_) {
      schemes += " " + to_string(job.scheme) + fmt::format(" {}", job.scheme.budget);
      skipped += job.skipped ? '1' : '0';
    }
    kvcc::cli::agree_on(*ranks_, "held out and schemes", schemes);
    skipped = ranks_->gather(skipped)[0];
    for (size_t i = 0; i < jobs_.size(); ++i) jobs_[i].skipped = skipped[i] == '1';
  }

  /// Errors of the candidates for one head; writes nothing.
  void explain_head() const {
    const auto found = std::find(settings_.layer_index.begin(), settings_.layer_index.end(), options_.layer);
    if (found == settings_.layer_index.end()) {
      throw Error(ErrorKind::usage, fmt::format("--layer {}", options_.layer), "not in the activations",
                  fmt::format("one of {} to {}", settings_.layer_index.front(), settings_.layer_index.back()));
    }
    const auto layer = static_cast<int>(found - settings_.layer_index.begin());
    const kvcc::LayerData data = kvcc::read_layer(reader_, layer, settings_.samples, common_.threads);
    const kvcc::CacheShape& shape = settings_.model.shape;
    const kvcc::LayerActivations activations{data.starts,          shape.kv_heads,  shape.head_dim,
                                             shape.value_head_dim, data.key,        data.key_grad,
                                             data.value,           data.value_grad, options_.layer};
    Json document{{"activations", options_.activations}, {"layer", options_.layer}, {"head", options_.head}};
    document["schemes"] = Json::array();
    for (const Job& job : jobs_) {
      if (job.scheme.is_vector()) {
        throw Error(ErrorKind::usage, "--scheme " + short_name(job.scheme), "its groups are not of one head's levels",
                    "a scheme of scalar levels such as kvcc-nuq2-1%-sink1");
      }
      const std::vector<kvcc::Candidate> candidates =
          kvcc::explain_head(activations, job.scheme, options_.head, options_.kind, common_.threads);
      if (common_.json) {
        document["schemes"].push_back({{"scheme", short_name(job.scheme)},
                                       {"scheme_text", to_string(job.scheme)},
                                       {"candidates", kvcc::explain_json(candidates)}});
        continue;
      }
      const kvcc::TextStyle style{kvcc::cli::stdout_columns(), kvcc::cli::shows_unicode(), kvcc::cli::shows_colors()};
      fmt::print("{}: layer {} head {}\n{}", short_name(job.scheme), options_.layer, options_.head,
                 kvcc::explain_text(candidates, style));
    }
    if (common_.json) kvcc::cli::print_json(document);
  }

  /// Whether --resume may keep the artifact that is there.
  bool is_done(Job& job) const {
    if (kvcc::lies_in(job.output, options_.activations)) {
      throw kvcc::Error(kvcc::ErrorKind::usage, "-o " + job.output, "lies in the folder of the activations",
                        "a name outside " + options_.activations);
    }
    if (common_.force) kvcc::cli::check_replaced(job.output, {"\x89HDF", "kvcc-codebook"}, "kvcc fit");
    if (common_.force || !fs::exists(job.output)) return false;
    if (!common_.resume) {
      throw kvcc::bad_input(job.output, "exists", "", "--force replaces it, --resume keeps what is finished");
    }
    try {
      job.codebook = kvcc::read_codebook(job.output);
    } catch (const Error& error) {
      spdlog::warn("{}; fitting it again", error.what());
      return false;
    }
    std::vector<std::string> differences;
    const auto compare = [&](const char* name, const std::string& there, const std::string& now) {
      if (there != now) differences.push_back(fmt::format("{} is {}, now {}", name, there, now));
    };
    compare("scheme", to_string(job.codebook.scheme), to_string(job.scheme));
    compare("activations_sha256", job.codebook.provenance.activations_sha256, reader_.content_sha256());
    if (job.scheme.is_vector()) {
      compare("held_out", std::to_string(job.codebook.provenance.held_out), std::to_string(held_out()));
    }
    if (!differences.empty()) {
      throw kvcc::bad_input(job.output, fmt::format("made from something else: {}", fmt::join(differences, "; ")), "",
                            "--force replaces it, -o names another file");
    }
    spdlog::info("{} is there already", job.output);
    return true;
  }

  int layers() const { return settings_.model.shape.layers; }
  int64_t held_out() const {
    return options_.held_out >= 0 ? options_.held_out : kvcc::cli::default_held_out(settings_.samples);
  }

  uint64_t layer_bytes() const {
    const kvcc::CacheShape& shape = settings_.model.shape;
    return static_cast<uint64_t>(settings_.tokens()) * shape.kv_heads * (shape.head_dim + shape.value_head_dim) *
           sizeof(float) * (settings_.fisher ? 2 : 1);
  }

  void plan() const {
    uint64_t bytes = 0;
    for (const auto& [key, entry] : reader_.shards()) bytes += entry.bytes;
    // Two layers (one is read while the other is fitted), and histograms of 2 MiB a head, tensor and scheme at most.
    const uint64_t memory = 2 * layer_bytes() + jobs_.size() * settings_.model.shape.kv_heads * (uint64_t{4} << 20);
    if (common_.json) {
      Json document{{"activations", options_.activations},
                    {"layers", layers()},
                    {"tokens", settings_.tokens()},
                    {"read_bytes", bytes},
                    {"peak_bytes", memory}};
      for (const Job& job : jobs_) document["outputs"].push_back({{"output", job.output}, {"skipped", job.skipped}});
      return kvcc::cli::print_json(document);
    }
    fmt::print("{}: {} layers of {} tokens, {} to read, about {} of memory\n", options_.activations, layers(),
               settings_.tokens(), kvcc::human_bytes(bytes), kvcc::human_bytes(memory));
    for (const Job& job : jobs_) fmt::print("{} {}\n", job.skipped ? "keep " : "write", job.output);
  }

  void fit() {
    std::vector<Job*> open, plain;
    std::vector<Family> families;
    std::vector<Scheme> schemes;
    for (Job& job : jobs_) {
      if (job.skipped) continue;
      job.codebook = kvcc::cli::empty_codebook(settings_, reader_.content_sha256(), job.scheme);
      open.push_back(&job);
      if (job.scheme.is_vector()) {
        add_vector(families, job);
      } else {
        plain.push_back(&job);
        schemes.push_back(job.scheme);
      }
      if (!is_first()) continue;
      if (const fs::path folder = fs::path(job.output).parent_path(); !folder.empty())
        kvcc::make_folder(folder.string());
      job.file = std::make_unique<kvcc::AtomicFile>(job.output);
    }
    if (open.empty()) return;
    if (!families.empty()) schemes.emplace_back();  // full precision: the statistics alone
    const std::vector<int> own = kvcc::cli::own_layers(ranks_, layers());
    kvcc::cli::Progress progress("fit", own.size() * (families.empty() ? 1 : 2), common_.quiet);
    uint64_t passed = 0;
    const Clock::time_point start = Clock::now();
    const auto advance = [&] {
      if (ranks_ != nullptr) ranks_->check();
      const double tokens =
          static_cast<double>(++passed) / static_cast<double>(own.size()) * static_cast<double>(settings_.tokens());
      progress.tell(kvcc::cli::run_status(tokens, seconds_since(start), 0));
      progress.advance();
    };
    std::vector<std::vector<kvcc::cli::LayerPart>> parts(open.size(), std::vector<kvcc::cli::LayerPart>(layers()));
    const auto part = [&](const Job* job, int layer) -> kvcc::cli::LayerPart& {
      return parts[std::find(open.begin(), open.end(), job) - open.begin()][layer];
    };
    for_layers(own, true, [&](int layer, const kvcc::LayerActivations& activations) {
      const std::vector<kvcc::LayerFit> fits = fit_layer(activations, schemes, common_.threads);
      for (size_t i = 0; i < plain.size(); ++i) {
        kvcc::cli::append_layer(part(plain[i], layer).key, fits[i].key);
        kvcc::cli::append_layer(part(plain[i], layer).value, fits[i].value);
      }
      for (Family& family : families) {
        for (Job* job : family.jobs) {
          kvcc::cli::append_statistics(part(job, layer).key, fits.back().key);
          kvcc::cli::append_statistics(part(job, layer).value, fits.back().value);
        }
        family.fit->tabulate(layer, activations);
      }
      advance();
    });
    if (!families.empty()) {
      for (Family& family : families) {
        if (ranks_ != nullptr) kvcc::cli::exchange_tables(*ranks_, *family.fit, layers());
        family.fit->allocate();
      }
      for_layers(own, false, [&](int layer, const kvcc::LayerActivations& activations) {
        for (Family& family : families) {
          const std::vector<kvcc::LayerVectors> fits = family.fit->fit(layer, activations);
          for (size_t i = 0; i < fits.size(); ++i) kvcc::cli::append_vectors(part(family.jobs[i], layer), fits[i]);
        }
        advance();
      });
    }
    if (ranks_ != nullptr) kvcc::cli::gather_parts(*ranks_, parts);
    if (!is_first()) return;
    for (size_t i = 0; i < open.size(); ++i) {
      for (const kvcc::cli::LayerPart& layer : parts[i]) kvcc::cli::append_part(open[i]->codebook, layer);
    }
    if (settings_.fisher) {
      if (const std::string thin = kvcc::cli::thin_heads(open.front()->codebook); !thin.empty())
        spdlog::warn("{}", thin);
    }
    for (Job* job : open) {
      job->seconds = fit_seconds_ / static_cast<double>(open.size());
      if (kvcc::cli::gap_bound(job->codebook) > kStatedBound) {
        spdlog::warn("{}: k-means is only known to be within {:g} of the optimum (relative)", job->output,
                     kvcc::cli::gap_bound(job->codebook));
      }
      kvcc::write_codebook(*job->file, job->output, job->codebook);
    }
  }

  void add_vector(std::vector<Family>& families, Job& job) const {
    job.codebook.provenance.held_out = held_out();
    auto found = std::find_if(families.begin(), families.end(), [&](const Family& family) {
      return kvcc::VectorFit::together(family.jobs[0]->scheme, job.scheme);
    });
    if (found == families.end()) {
      families.emplace_back();
      found = families.end() - 1;
    }
    found->jobs.push_back(&job);
    std::vector<Scheme> schemes;
    for (const Job* other : found->jobs) schemes.push_back(other->scheme);
    kvcc::VectorFitSettings settings;
    settings.held_out = held_out();
    settings.threads = common_.threads;
    found->fit = std::make_unique<kvcc::VectorFit>(settings_.model.shape, schemes, settings);
  }

  /// work(layer, activations) for these layers in order; the next one is read meanwhile.
  template <typename Work>
  void for_layers(const std::vector<int>& rows, bool check_hash, const Work& work) {
    if (rows.empty()) return;
    const kvcc::CacheShape& shape = settings_.model.shape;
    const auto start_reading = [&](int layer) {
      return std::async(std::launch::async, [this, layer, check_hash] {
        return kvcc::read_layer(reader_, layer, settings_.samples, common_.threads, check_hash);
      });
    };
    std::future<kvcc::LayerData> next = start_reading(rows[0]);
    for (size_t i = 0; i < rows.size(); ++i) {
      const int layer = rows[i];
      kvcc::check_interrupt();
      const Clock::time_point waiting = Clock::now();
      const kvcc::LayerData data = next.get();
      wait_seconds_ += seconds_since(waiting);
      if (i + 1 < rows.size()) next = start_reading(rows[i + 1]);
      const Clock::time_point start = Clock::now();
      work(layer, kvcc::LayerActivations{data.starts, shape.kv_heads, shape.head_dim, shape.value_head_dim, data.key,
                                         data.key_grad, data.value, data.value_grad, settings_.layer_index[layer]});
      fit_seconds_ += seconds_since(start);
    }
  }

  void report() const {
    std::vector<kvcc::cli::FitResult> results;
    for (const Job& job : jobs_) results.push_back({job.codebook, job.output, job.skipped, job.seconds});
    if (!common_.json) {
      fmt::print("{}", kvcc::cli::fit_table(results));
      return;
    }
    kvcc::cli::print_json({{"activations", options_.activations},
                           {"layers", layers()},
                           {"fit_seconds", fit_seconds_},
                           {"read_wait_seconds", wait_seconds_},
                           {"results", kvcc::cli::fit_results_json(results)}});
  }
};

}  // namespace

int main(int argc, char** argv) {
  using namespace kvcc::cli;
  Options options;
  const CLI::App* parsed = nullptr;
  const auto define = [&](CLI::App& app) {
    parsed = &app;
    app.add_option("activations", options.activations, "Folder NAME.acts that 'kvcc collect' made")->required();
    app.add_option("--scheme", options.schemes,
                   "Scheme to fit, may be repeated: the activations are read once ('kvcc schemes' lists presets)")
        ->required();
    app.add_option("-o,--output", options.output,
                   "Artifact NAME.kvcb; with several schemes NAME, which gives NAME.SCHEME.kvcb");
    app.add_option("--budget", options.budget,
                   "Effective bits an element for schemes of vector codebooks, in place of their own")
        ->check(kvcc::cli::number_in(0.01, 16));
    app.add_option("--held-out", options.held_out,
                   "Last samples that vector codebooks are not fitted to, but judged by (default: one in eight)")
        ->check(CLI::Range(0, 1 << 20).description(""));
    CLI::Option* explain =
        app.add_flag("--explain", options.explain,
                     "Say in words what each scheme has fitted, and how; with --layer and --head instead of fitting: "
                     "the error of int, nf and k-means levels, with and without Fisher weights, per layer and per "
                     "head, with and without outliers");
    const CLI::Validator number = CLI::Range(0, 1 << 20).description("");
    CLI::Option* layer = app.add_option("--layer", options.layer, "Layer to explain, by the model's number");
    CLI::Option* head = app.add_option("--head", options.head, "KV head to explain");
    layer->check(number)->needs(explain)->needs(head);
    head->check(number)->needs(explain)->needs(layer);
    app.add_option("--kind", options.kind, "Explain only key or value")
        ->check(CLI::IsMember({"key", "value"}).description(""))
        ->needs(layer);
  };
  return run(argc, argv, "fit", "Fit thresholds, scales and codebooks to activations; writes artifacts (.kvcb)",
             kJson | kResume | kForce | kThreads | kDryRun, define, [&](const Common& common) {
               if (options.output.empty() && !options.explains_head()) {
                 throw Error(ErrorKind::usage, "-o", "missing", "a name for the artifact");
               }
               Common asked = common;
               asked.dry_run |= options.explains_head();  // for which ranks need not meet
               RankedRun ranked = start_ranks("fit", *parsed, asked);
               if (asked.dry_run && !ranked.first()) return 0;
               ranked.common.dry_run = common.dry_run;
               return kvcc::as_rank(ranked.ranks.get(),
                                    [&] { return Fit(options, ranked.common, ranked.ranks.get()).run(); });
             });
}
