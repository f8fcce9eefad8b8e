// kvcc fit: activations to artifacts, layer by layer. Several schemes share one reading and what they have in common.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <set>

#include "calib/cli/artifact_name.h"
#include "calib/fit/fit.h"
#include "calib/fit/usage.h"
#include "calib/report/explain.h"
#include "calib/report/layer_data.h"
#include "formats/cli/program.h"
#include "formats/cli/terminal.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
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

static_assert(kvcc::kUsageBins == kvcc::kNormalisedBins, "the fit's histograms are the artifact's");

constexpr float kStatedBound = 1e-4f;  // on the gap to the optimum; more than this is told

struct Options {
  std::string activations, output;
  std::vector<std::string> schemes;
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

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void append_layer(kvcc::TensorCodebooks& to, const kvcc::TensorFit& fit) {
  to.codes = fit.table.stride;
  append(to.codebook, fit.table.levels);
  append(to.bits, fit.table.bits);
  append(to.scale, fit.scale);
  append(to.zero, fit.zero);
  append(to.threshold_lower, fit.threshold_lower);
  append(to.threshold_upper, fit.threshold_upper);
  append(to.norm_scale, fit.norm_scale);
  append(to.norm_offset, fit.norm_offset);
  append(to.outlier_fraction, fit.outlier_fraction);
  append(to.stats.min, fit.min);
  append(to.stats.max, fit.max);
  append(to.stats.mean, fit.mean);
  append(to.stats.variance, fit.variance);
  append(to.stats.fisher, fit.fisher);
  append(to.stats.weighted_sse, fit.weighted_sse);
  append(to.stats.sqnr_db, fit.sqnr_db);
  append(to.stats.first_token_share, fit.first_token_share);
  append(to.stats.fit_gap_bound, fit.fit_gap_bound);
  append(to.stats.distinct, fit.distinct);
  append(to.stats.histogram, fit.histogram);
  append(to.stats.code_use, fit.code_use);
  append(to.stats.held_out_outliers, fit.held_out_outliers);
  append(to.stats.drift, fit.drift);
  append(to.stats.sample_share, fit.sample_share);
  append(to.stats.token_share, fit.token_share);
  append(to.stats.heaviest_sample, fit.heaviest_sample);
  append(to.stats.token_sample, fit.token_sample);
  append(to.stats.token_position, fit.token_position);
  append(to.stats.reached, fit.reached);
}

float greatest(const std::vector<float>& values) {
  return values.empty() ? 0.0f : *std::max_element(values.begin(), values.end());
}

double mean(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

float gap_bound(const Codebook& codebook) {
  return std::max(greatest(codebook.key.stats.fit_gap_bound), greatest(codebook.value.stats.fit_gap_bound));
}

uint32_t fewest_distinct(const Codebook& codebook) {
  uint32_t fewest = UINT32_MAX;
  for (const auto* tensor : {&codebook.key, &codebook.value}) {
    for (const uint32_t count : tensor->stats.distinct) fewest = std::min(fewest, count);
  }
  return fewest;
}

bool has_kmeans(const Scheme& s) { return s.key.grid == kvcc::Grid::nuq || s.value.grid == kvcc::Grid::nuq; }

/// The steps of a fit in words.
std::string explanation(const Scheme& s) {
  const auto grid = [](const kvcc::TensorScheme& t) {
    const char* name = t.grid == kvcc::Grid::nuq       ? "levels by exact weighted k-means"
                       : t.grid == kvcc::Grid::integer ? "uniform levels"
                                                       : "levels of the normal density";
    return fmt::format("{} {}", 1 << t.bits, name);
  };
  const auto range = [&](const kvcc::TensorScheme& t) {
    if (t.axis == kvcc::Axis::token) {
      return s.sparse > 0 ? "each token's own range (fp16), its ends of both tails kept exactly"
                          : std::string("each token's own range (fp16)");
    }
    const std::string tokens = s.first_in_thresholds ? "all tokens" : "all tokens but the first of each sample";
    return s.sparse > 0
               ? fmt::format("each channel's quantiles {:g} and {:g} over {}; what lies outside is kept exactly",
                             s.sparse / 2, 1 - s.sparse / 2, tokens)
               : fmt::format("each channel's least and greatest value over {}", tokens);
  };
  if (!has_kmeans(s)) {
    return fmt::format(
        "{}\n  keys:     {}, in {}\n  values:   {}, in {}\n  exact at inference: the first {} and the last {} tokens "
        "(fp16)\n",
        to_string(s), grid(s.key), range(s.key), grid(s.value), range(s.value), s.sink, s.residual);
  }
  const char* weight = s.weight == kvcc::FitWeight::none ? "none"
                       : s.weight == kvcc::FitWeight::f  ? "squared gradient"
                                                         : "squared gradient times squared scale";
  return fmt::format(
      "{}\n  keys:     {}, in {}\n  values:   {}, in {}\n  k-means:  one codebook per {}; weight: {}; first token of "
      "each "
      "sample {}\n  exact at inference: the first {} and the last {} tokens (fp16)\n",
      to_string(s), grid(s.key), range(s.key), grid(s.value), range(s.value),
      s.codebook == kvcc::CodebookScope::head ? "layer and head" : "layer", weight, s.first_in_kmeans ? "in" : "out",
      s.sink, s.residual);
}

class Fit {
 public:
  Fit(const Options& options, const Common& common)
      : options_(options), common_(common), reader_(options.activations), settings_(reader_.settings()) {
    std::set<std::string> seen;
    for (const std::string& text : options_.schemes) {
      Job job;
      job.scheme = kvcc::parse_scheme(text);
      if (!job.scheme.needs_calibration() || job.scheme.needs_rotations()) {
        throw Error(ErrorKind::usage, "--scheme " + text, "nothing to fit for it",
                    "a scheme with statistics of the model", "kvcc eval MODEL --scheme " + text);
      }
      if (!seen.insert(to_string(job.scheme)).second) throw Error(ErrorKind::usage, "--scheme " + text, "given twice");
      const bool weighs = job.scheme.weight != kvcc::FitWeight::none && has_kmeans(job.scheme);
      if (!settings_.fisher && weighs) {
        throw kvcc::bad_input(options_.activations, "no gradients (collected with --no-fisher)",
                              "gradients, which scheme " + text + " weighs with",
                              "collect without --no-fisher, or spell the scheme out with weight=none");
      }
      job.output = kvcc::cli::artifact_name(options_.output, short_name(job.scheme), options_.schemes.size() > 1);
      jobs_.push_back(std::move(job));
    }
  }

  int run() {
    if (options_.explains_head()) {
      explain_head();
      return 0;
    }
    for (Job& job : jobs_) job.skipped = is_done(job);
    if (options_.explain) {
      for (const Job& job : jobs_) fmt::print(common_.json ? stderr : stdout, "{}", explanation(job.scheme));
    }
    if (common_.dry_run) {
      plan();
      return 0;
    }
    fit();
    report();
    return 0;
  }

 private:
  const Options& options_;
  const Common& common_;
  kvcc::ActivationsReader reader_;
  const kvcc::ActivationsSettings& settings_;
  std::vector<Job> jobs_;
  double fit_seconds_ = 0, wait_seconds_ = 0;

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
    const kvcc::LayerActivations activations{settings_.samples,    settings_.seqlen, shape.kv_heads, shape.head_dim,
                                             shape.value_head_dim, data.key,         data.key_grad,  data.value,
                                             data.value_grad,      options_.layer};
    Json document{{"activations", options_.activations}, {"layer", options_.layer}, {"head", options_.head}};
    document["schemes"] = Json::array();
    for (const Job& job : jobs_) {
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
    if (!differences.empty()) {
      throw kvcc::bad_input(job.output, fmt::format("made from something else: {}", fmt::join(differences, "; ")), "",
                            "--force replaces it, -o names another file");
    }
    spdlog::info("{} is there already", job.output);
    return true;
  }

  int layers() const { return settings_.model.shape.layers; }

  /// As the decoder's configuration says; folders made without a model have none.
  std::optional<bool> attention_bias() const {
    if (settings_.model.attention_bias) return settings_.model.attention_bias;
    const Json decoder = Json::parse(settings_.decoder_json, nullptr, false);
    if (!decoder.is_object() || !decoder.contains("attention_bias")) return {};
    return decoder["attention_bias"].is_boolean() ? std::optional(decoder["attention_bias"].get<bool>()) : std::nullopt;
  }

  uint64_t layer_bytes() const {
    const kvcc::CacheShape& shape = settings_.model.shape;
    return static_cast<uint64_t>(settings_.samples) * settings_.seqlen * shape.kv_heads *
           (shape.head_dim + shape.value_head_dim) * sizeof(float) * (settings_.fisher ? 2 : 1);
  }

  void plan() const {
    uint64_t bytes = 0;
    for (const auto& [key, entry] : reader_.shards()) bytes += entry.bytes;
    // Two layers (one is read while the other is fitted), and histograms of 2 MiB a head, tensor and scheme at most.
    const uint64_t memory = 2 * layer_bytes() + jobs_.size() * settings_.model.shape.kv_heads * (uint64_t{4} << 20);
    if (common_.json) {
      Json document{{"activations", options_.activations},
                    {"layers", layers()},
                    {"tokens", settings_.samples * settings_.seqlen},
                    {"read_bytes", bytes},
                    {"peak_bytes", memory}};
      for (const Job& job : jobs_) document["outputs"].push_back({{"output", job.output}, {"skipped", job.skipped}});
      return kvcc::cli::print_json(document);
    }
    fmt::print("{}: {} layers of {} tokens, {} to read, about {} of memory\n", options_.activations, layers(),
               settings_.samples * settings_.seqlen, kvcc::human_bytes(bytes), kvcc::human_bytes(memory));
    for (const Job& job : jobs_) fmt::print("{} {}\n", job.skipped ? "keep " : "write", job.output);
  }

  Codebook empty_codebook(const Scheme& scheme) const {
    Codebook book;
    book.scheme = scheme;
    book.model = settings_.model;
    book.model.attention_bias = attention_bias();
    book.layer_index.assign(settings_.layer_index.begin(), settings_.layer_index.end());
    kvcc::Provenance& from = book.provenance;
    from.tool_version = KVCC_VERSION;
    from.dataset_name = settings_.text_name;
    from.dataset_sha256 = settings_.text_sha256;
    from.dataset_flavour = settings_.text_flavour;
    from.tokenizer_sha256 = settings_.tokenizer_sha256;
    from.bos = settings_.bos;
    from.samples = settings_.samples;
    from.seqlen = settings_.seqlen;
    from.seed = settings_.seed;
    from.tokens = settings_.samples * settings_.seqlen;
    if (settings_.samples_asked > settings_.samples) from.samples_asked = settings_.samples_asked;
    from.activations_sha256 = reader_.content_sha256();
    from.sources_json = kvcc::sources_json(settings_);
    return book;
  }

  void fit() {
    std::vector<Job*> open;
    std::vector<Scheme> schemes;
    for (Job& job : jobs_) {
      if (job.skipped) continue;
      job.codebook = empty_codebook(job.scheme);
      open.push_back(&job);
      schemes.push_back(job.scheme);
      if (const fs::path folder = fs::path(job.output).parent_path(); !folder.empty())
        kvcc::make_folder(folder.string());
      job.file = std::make_unique<kvcc::AtomicFile>(job.output);
    }
    if (open.empty()) return;
    const kvcc::CacheShape& shape = settings_.model.shape;
    const int threads = common_.threads;
    const auto start_reading = [&](int layer) {
      return std::async(std::launch::async, [this, layer, threads] {
        return kvcc::read_layer(reader_, layer, settings_.samples, threads);
      });
    };
    {
      kvcc::cli::Progress progress("fit", layers(), common_.quiet);
      std::future<kvcc::LayerData> next = start_reading(0);
      for (int layer = 0; layer < layers(); ++layer) {
        kvcc::check_interrupt();
        const Clock::time_point waiting = Clock::now();
        const kvcc::LayerData data = next.get();
        wait_seconds_ += seconds_since(waiting);
        if (layer + 1 < layers()) next = start_reading(layer + 1);
        const Clock::time_point start = Clock::now();
        const std::vector<kvcc::LayerFit> fits =
            fit_layer({settings_.samples, settings_.seqlen, shape.kv_heads, shape.head_dim, shape.value_head_dim,
                       data.key, data.key_grad, data.value, data.value_grad, settings_.layer_index[layer]},
                      schemes, threads);
        fit_seconds_ += seconds_since(start);
        for (size_t i = 0; i < open.size(); ++i) {
          append_layer(open[i]->codebook.key, fits[i].key);
          append_layer(open[i]->codebook.value, fits[i].value);
        }
        progress.advance();
      }
    }
    warn_of_thin_heads(open.front()->codebook);
    for (Job* job : open) {
      job->seconds = fit_seconds_ / static_cast<double>(open.size());
      if (gap_bound(job->codebook) > kStatedBound) {
        spdlog::warn("{}: k-means is only known to be within {:g} of the optimum (relative)", job->output,
                     gap_bound(job->codebook));
      }
      kvcc::write_codebook(*job->file, job->output, job->codebook);
    }
  }

  /// Heads that the loss never reached, whose codebooks are unweighted, and those it reached at few tokens: all at
  /// once.
  void warn_of_thin_heads(const Codebook& book) const {
    if (!settings_.fisher) return;
    std::vector<std::string> thin;
    const auto heads = static_cast<size_t>(book.model.shape.kv_heads);
    for (const bool key : {true, false}) {
      const std::vector<uint32_t>& reached = (key ? book.key : book.value).stats.reached;
      for (size_t i = 0; i < reached.size(); ++i) {
        if (!kvcc::is_thin(reached[i], book.provenance.tokens)) continue;
        thin.push_back(fmt::format("layer {} {} head {} (at {} tokens)", book.layer_index[i / heads],
                                   key ? "key" : "value", i % heads, reached[i]));
      }
    }
    if (!thin.empty()) {
      spdlog::warn(
          "gradients reached {} of {} heads at fewer than 1 % of {} tokens: {}; without any they are fitted without "
          "weights. Calibrate on more or other text",
          thin.size(), 2 * book.layer_index.size() * heads, book.provenance.tokens, fmt::join(thin, ", "));
    }
  }

  void report() const {
    if (common_.json) {
      Json document{{"activations", options_.activations}, {"layers", layers()}};
      document["fit_seconds"] = fit_seconds_;
      document["read_wait_seconds"] = wait_seconds_;
      document["results"] = Json::array();
      for (const Job& job : jobs_) {
        const Codebook& book = job.codebook;
        document["results"].push_back({{"scheme", short_name(job.scheme)},
                                       {"scheme_text", to_string(job.scheme)},
                                       {"output", job.output},
                                       {"skipped", job.skipped},
                                       {"content_sha256", book.content_sha256},
                                       {"fit_seconds", job.seconds},
                                       {"max_gap_bound", gap_bound(book)},
                                       {"min_distinct", fewest_distinct(book)},
                                       {"key_outlier_fraction", mean(book.key.outlier_fraction)},
                                       {"value_outlier_fraction", mean(book.value.outlier_fraction)},
                                       {"key_sqnr_db", mean(book.key.stats.sqnr_db)},
                                       {"value_sqnr_db", mean(book.value.stats.sqnr_db)}});
      }
      return kvcc::cli::print_json(document);
    }
    std::vector<std::vector<std::string>> rows{
        {"artifact", "fit s", "gap bound", "key outliers", "value outliers", "key dB", "value dB", "sha256"}};
    for (const Job& job : jobs_) {
      const Codebook& book = job.codebook;
      rows.push_back({job.output, job.skipped ? "kept" : fmt::format("{:.1f}", job.seconds),
                      fmt::format("{:.1e}", gap_bound(book)),
                      fmt::format("{:.2f}%", 100 * mean(book.key.outlier_fraction)),
                      fmt::format("{:.2f}%", 100 * mean(book.value.outlier_fraction)),
                      fmt::format("{:.1f}", mean(book.key.stats.sqnr_db)),
                      fmt::format("{:.1f}", mean(book.value.stats.sqnr_db)), book.content_sha256.substr(0, 12)});
    }
    fmt::print("{}", kvcc::cli::table(rows));
  }
};

}  // namespace

int main(int argc, char** argv) {
  using namespace kvcc::cli;
  Options options;
  const auto define = [&](CLI::App& app) {
    app.add_option("activations", options.activations, "Folder NAME.acts that 'kvcc collect' made")->required();
    app.add_option("--scheme", options.schemes,
                   "Scheme to fit, may be repeated: the activations are read once ('kvcc schemes' lists presets)")
        ->required();
    app.add_option("-o,--output", options.output,
                   "Artifact NAME.kvcb; with several schemes NAME, which gives NAME.SCHEME.kvcb");
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
               return Fit(options, common).run();
             });
}
