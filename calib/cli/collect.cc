// kvcc collect: keys, values and the gradients of the loss with respect to them, to an activations folder.
#include <spdlog/spdlog.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "calib/cli/text_options.h"
#include "calib/collect/collect.h"
#include "calib/model/self_sample.h"
#include "calib/text/corpus.h"
#include "datasets/datasets.h"
#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/text.h"

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct Options {
  std::string model, output, dataset, ids, bos = "auto", dtype = "f32", acts_dtype = "f32", recompute = "auto",
                                           on_nonfinite = "stop", max_memory;
  std::vector<std::string> text;
  int64_t samples = 16, seqlen = 2048, seed = 0;
  bool no_fisher = false, beyond_context = false;
};

void define(CLI::App& app, Options& o) {
  const auto among = [](std::vector<std::string> words) { return CLI::IsMember(std::move(words)).description(""); };
  app.add_option("MODEL", o.model, "Hugging Face directory or .gguf file")->required();
  app.add_option("-o,--output", o.output, "Folder of the activations, NAME.acts")->required();
  CLI::Option* dataset = app.add_option(
      "--dataset", o.dataset, "Text D[:split], or 'self' for samples of the model itself (default wikitext-2)");
  CLI::Option* text = app.add_option("--text", o.text, "Text files");
  CLI::Option* ids = app.add_option("--ids", o.ids, "Token ids, .npy int32 [n, len], or [n] to be cut");
  dataset->excludes(text)->excludes(ids);
  text->excludes(ids);
  app.add_option("--samples", o.samples, "Samples")
      ->capture_default_str()
      ->check(CLI::Range(1, 999999).description(""));
  app.add_option("--seqlen", o.seqlen, "Tokens a sample")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24).description(""));
  app.add_option("--seed", o.seed, "Seed of the sampling")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, INT64_MAX).description(""));
  app.add_option("--bos", o.bos, "Begin each sample with the BOS token: auto (as the model says), on or off")
      ->capture_default_str()
      ->check(among({"auto", "on", "off"}));
  app.add_option("--dtype", o.dtype, "Arithmetic: f32")->capture_default_str()->check(among({"f32"}));
  app.add_option("--acts-dtype", o.acts_dtype, "Stored activations: f32 or bf16 (half the disk)")
      ->capture_default_str()
      ->check(among({"f32", "bf16"}));
  app.add_option("--recompute", o.recompute, "Run layers again in the backward pass to save memory: auto, on or off")
      ->capture_default_str()
      ->check(among({"auto", "on", "off"}));
  app.add_option("--max-memory", o.max_memory, "Memory the run may take, e.g. 8GiB (default: what is there)");
  app.add_option("--on-nonfinite", o.on_nonfinite, "NaN or infinity: stop, or skip the sample")
      ->capture_default_str()
      ->check(among({"stop", "skip"}));
  app.add_flag("--beyond-context", o.beyond_context,
               "Allow a --seqlen above the model's context; its RoPE is used unchanged");
  app.add_flag("--no-fisher", o.no_fisher, "Keys and values only, no backward pass");
}

class Collection {
 public:
  Collection(const Options& options, const kvcc::cli::Common& common)
      : o_(options), common_(common), files_(kvcc::open_model(options.model)) {
    options_.output = o_.output;
    options_.recompute = o_.recompute == "on"    ? kvcc::Recompute::on
                         : o_.recompute == "off" ? kvcc::Recompute::off
                                                 : kvcc::Recompute::automatic;
    options_.max_memory = o_.max_memory.empty() ? 0 : kvcc::parse_bytes(o_.max_memory);
    options_.resume = common.resume;
    options_.force = common.force;
    options_.skip_nonfinite = o_.on_nonfinite == "skip";
    options_.threads = common.threads;
  }

  int run() {
    if (!files_.left_out.empty()) spdlog::info("{}: {}", o_.model, files_.left_out);
    kvcc::cli::check_context(o_.seqlen, files_.config.max_position, o_.beyond_context);
    if (o_.dataset == "self") {
      describe_self();
    } else {
      read_text();
    }
    settings_.model = kvcc::model_info(files_);
    settings_.decoder_json = kvcc::decoder_json(files_.config);
    settings_.samples = static_cast<int64_t>(samples_.ids.size());
    if (!samples_.ids.empty() && o_.samples > settings_.samples) settings_.samples_asked = o_.samples;
    settings_.seqlen = samples_.ids.empty() ? o_.seqlen : static_cast<int64_t>(samples_.ids[0].size());
    settings_.seed = o_.seed;
    settings_.acts_dtype = o_.acts_dtype;
    settings_.fisher = !o_.no_fisher;
    settings_.layer_index = files_.config.cached_layers();
    if (o_.dataset == "self") settings_.samples = o_.samples;
    const kvcc::CollectPlan plan = kvcc::plan_collect(files_, settings_, options_);
    if (common_.dry_run) {
      print_plan(plan);
      return 0;
    }
    if (o_.dataset == "self") sample_self();
    settings_.offsets = samples_.offsets;
    for (const std::vector<int32_t>& ids : samples_.ids) settings_.sample_sha256.push_back(kvcc::ids_sha256(ids));
    return collect(plan);
  }

 private:
  void read_text() {
    kvcc::CorpusRequest request;
    request.files = o_.text;
    request.ids = o_.ids;
    request.bos = o_.bos;
    if (o_.text.empty() && o_.ids.empty()) request.dataset = o_.dataset.empty() ? "wikitext-2" : o_.dataset;
    std::unique_ptr<kvcc::Tokenizer> tokenizer;
    if (o_.ids.empty() || o_.bos == "on") {
      tokenizer = kvcc::make_tokenizer(files_.tokenizer);
      settings_.tokenizer_sha256 = tokenizer->sha256();
    }
    request.cache_dir = common_.cache_dir;
    const kvcc::Corpus corpus = kvcc::cli::load_corpus(request, tokenizer.get(), common_.quiet);
    samples_ = kvcc::draw_samples(corpus, o_.samples, o_.seqlen, o_.seed);
    kvcc::cli::warn_if_fewer(o_.samples, samples_, corpus, "samples");
    settings_.text_name = corpus.name;
    settings_.text_sha256 = corpus.sha256;
    settings_.text_flavour = corpus.flavour;
    settings_.bos = corpus.bos;
  }

  void describe_self() {
    settings_.text_name = "self";
    settings_.text_flavour = "self";
    settings_.bos = files_.config.bos_id >= 0 ? "on" : "off";
  }

  /// Samples of an earlier run are kept in the folder, as sampling takes minutes; the manifest's hashes say whether
  /// they are the same.
  void sample_self() {
    const std::string kept = o_.output + "/self_ids.npy";
    if (common_.resume && fs::exists(kept)) {
      const kvcc::NpyIds npy = kvcc::read_npy_ids(kept);
      if (npy.shape == std::vector<int64_t>{o_.samples, o_.seqlen}) {
        for (int64_t s = 0; s < o_.samples; ++s) {
          const auto begin = npy.ids.begin() + s * o_.seqlen;
          samples_.ids.emplace_back(begin, begin + o_.seqlen);
        }
      }
    }
    if (samples_.ids.empty()) {
      kvcc::cli::Progress progress("sampling", o_.seqlen, common_.quiet);
      samples_.ids = kvcc::sample_from_model(files_, o_.samples, o_.seqlen, o_.seed, common_.threads,
                                             [&](int64_t done) { progress.set(done); });
      new_self_ids_ = true;
    }
    samples_.offsets.assign(samples_.ids.size(), 0);
    kvcc::Sha256 hash;
    for (const std::vector<int32_t>& ids : samples_.ids) hash.update(ids.data(), ids.size() * sizeof(int32_t));
    settings_.text_sha256 = hash.hex();
  }

  void print_plan(const kvcc::CollectPlan& plan) const {
    if (common_.json) {
      kvcc::cli::print_json({{"tokens", plan.tokens},
                             {"samples", settings_.samples},
                             {"seqlen", settings_.seqlen},
                             {"disk_bytes", plan.disk_bytes},
                             {"peak_memory_bytes", plan.peak_bytes},
                             {"memory_limit_bytes", plan.memory_limit},
                             {"recompute", plan.recompute}});
      return;
    }
    const std::string text =
        kvcc::cli::table({{"plan", ""},
                          {"text", settings_.text_name},
                          {"samples", std::to_string(settings_.samples) + " of " + std::to_string(settings_.seqlen)},
                          {"tokens", std::to_string(plan.tokens)},
                          {"disk", kvcc::human_bytes(plan.disk_bytes)},
                          {"peak memory, about", kvcc::human_bytes(plan.peak_bytes)},
                          {"recompute", plan.recompute ? "on" : "off"}});
    std::fputs(text.c_str(), stdout);
  }

  int collect(const kvcc::CollectPlan& plan) {
    spdlog::info("{} samples of {} tokens from {}; about {} of disk, {} of memory{}", settings_.samples,
                 settings_.seqlen, settings_.text_name, kvcc::human_bytes(plan.disk_bytes),
                 kvcc::human_bytes(plan.peak_bytes), plan.recompute ? ", layers are run twice" : "");
    std::optional<kvcc::cli::Progress> progress;
    kvcc::CollectCallbacks callbacks;
    callbacks.started = [&] {
      if (new_self_ids_) kvcc::write_npy_ids(o_.output + "/self_ids.npy", samples_.ids);
    };
    callbacks.progress = [&](uint64_t done, uint64_t total) {
      if (!progress) progress.emplace("collect", total, common_.quiet);
      progress->set(done);
    };
    callbacks.warn = [](const std::string& text) { spdlog::warn("{}", text); };
    const kvcc::CollectReport report = kvcc::collect(files_, settings_, samples_.ids, options_, callbacks);
    progress.reset();
    if (common_.json) {
      Json document{{"activations", o_.output},
                    {"samples", report.samples},
                    {"seqlen", settings_.seqlen},
                    {"text", settings_.text_name},
                    {"left_out", report.skipped}};
      document["nll"] = report.nll == report.nll ? Json(report.nll) : Json(nullptr);
      kvcc::cli::print_json(document);
    } else {
      spdlog::info("{}: {} samples", o_.output, report.samples);
    }
    return 0;
  }

  const Options& o_;
  const kvcc::cli::Common& common_;
  kvcc::ModelFiles files_;
  kvcc::CollectOptions options_;
  kvcc::ActivationsSettings settings_;
  kvcc::Samples samples_;
  bool new_self_ids_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  using namespace kvcc::cli;
  return run(
      argc, argv, "collect", "Collect a model's keys, values and Fisher information on a text",
      kJson | kResume | kForce | kThreads | kDevice | kDryRun | kCacheDir, [&](CLI::App& app) { define(app, options); },
      [&](const Common& common) {
        if (common.device != "cpu") {
          throw kvcc::Error(kvcc::ErrorKind::usage, "--device " + common.device, "this version runs models on the CPU",
                            "--device cpu");
        }
        return Collection(options, common).run();
      });
}
