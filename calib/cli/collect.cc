// kvcc collect: keys, values and the gradients of the loss with respect to them, to an activations folder.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>

#include "calib/cli/ranked.h"
#include "calib/cli/run_status.h"
#include "calib/cli/text_source.h"
#include "calib/collect/collect.h"
#include "calib/collect/probe.h"
#include "calib/model/arithmetic.h"
#include "calib/model/memory.h"
#include "calib/model/quantised_model.h"
#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/json.h"
#include "formats/core/text.h"

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kDefaultDataset = "wikitext-2";

struct Options {
  std::string model, output, dtype = "f32", acts_dtype = "f32", recompute = "auto", on_nonfinite = "stop", max_memory,
                             weights;
  kvcc::cli::TextOptions text;
  int64_t samples = 16, seqlen = 2048, seed = 0;
  bool no_fisher = false, beyond_context = false;
};

void define(CLI::App& app, Options& o) {
  const auto among = [](std::vector<std::string> words) { return CLI::IsMember(std::move(words)).description(""); };
  app.add_option("MODEL", o.model, "Hugging Face directory or .gguf file")->required();
  app.add_option("-o,--output", o.output, "Folder of the activations, NAME.acts")->required();
  app.add_option("--weights", o.weights,
                 "Quantised weights W.kvcw (kvcc fit-weights) in place of the model's, so that a cache is fitted to "
                 "them ('self' stays the model's own samples)");
  kvcc::cli::define_text(app, o.text, "sample", kDefaultDataset);
  app.add_option("--samples", o.samples, "Samples")
      ->capture_default_str()
      ->check(CLI::Range(1, 999999).description(""));
  app.add_option("--seqlen", o.seqlen, "Tokens a sample; of documents: at most")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24).description(""));
  app.add_option("--seed", o.seed, "Seed of the sampling")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, INT64_MAX).description(""));
  app.add_option(
         "--dtype", o.dtype,
         "Arithmetic: f32, or bf16 for products in bf16 with f32 sums (faster where the processor has AVX-512-BF16 or "
         "AMX)")
      ->capture_default_str()
      ->check(among({"f32", "bf16"}));
  app.add_option("--acts-dtype", o.acts_dtype, "Stored activations: f32 or bf16 (half the disk)")
      ->capture_default_str()
      ->check(among({"f32", "bf16"}));
  app.add_option("--recompute", o.recompute, "Run layers again in the backward pass to save memory: auto, on or off")
      ->capture_default_str()
      ->check(among({"auto", "on", "off"}));
  app.add_option("--max-memory", o.max_memory,
                 "Memory the run may take, e.g. 8GiB; of several ranks: each (default: what is there)");
  app.add_option("--on-nonfinite", o.on_nonfinite, "NaN or infinity: stop, or skip the sample")
      ->capture_default_str()
      ->check(among({"stop", "skip"}));
  app.add_flag("--beyond-context", o.beyond_context,
               "Allow a --seqlen above the model's context; its RoPE is used unchanged");
  app.add_flag("--no-fisher", o.no_fisher, "Keys and values only, no backward pass");
}

std::string human_seconds(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  return seconds < 6000 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

class Collection {
 public:
  Collection(const Options& options, const kvcc::cli::RankedRun& run)
      : o_(options), run_(run), common_(run.common), files_(kvcc::open_model(options.model)) {
    options_.output = o_.output;
    options_.recompute = o_.recompute == "on"    ? kvcc::Recompute::on
                         : o_.recompute == "off" ? kvcc::Recompute::off
                                                 : kvcc::Recompute::automatic;
    options_.max_memory = kvcc::memory_option(o_.max_memory);
    // Ranks of one machine share what it has.
    if (options_.max_memory == 0 && run.launch.local_size > 1) {
      options_.max_memory = kvcc::available_memory() / static_cast<uint64_t>(run.launch.local_size);
    }
    options_.device = kvcc::device_named(common_.device);
    if (o_.dtype == "bf16" && options_.device.is_cpu()) kvcc::require_bf16("--dtype bf16");
    options_.bf16 = o_.dtype == "bf16";
    options_.resume = common_.resume;
    options_.force = common_.force;
    options_.skip_nonfinite = o_.on_nonfinite == "skip";
    options_.threads = common_.threads;
    options_.ranks = run.ranks.get();
    source_.emplace(files_, options.text, common_, kDefaultDataset);
  }

  int run() {
    if (!files_.left_out.empty()) spdlog::info("{}: {}", o_.model, files_.left_out);
    kvcc::cli::check_context(o_.seqlen, files_.config.max_position, o_.beyond_context);
    samples_ = source_->draw(o_.samples, o_.seqlen, static_cast<uint64_t>(o_.seed));
    const auto start = std::chrono::steady_clock::now();
    settings_.model = kvcc::model_info(files_);
    const double hashing = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    settings_.decoder_json = kvcc::decoder_json(files_.config);
    if (!o_.weights.empty()) set_weights();
    if (options_.bf16) note_in_decoder("products", "bf16");
    settings_.samples = static_cast<int64_t>(samples_.ids.size());
    if (o_.samples > settings_.samples) settings_.samples_asked = o_.samples;
    settings_.seqlen = o_.seqlen;
    settings_.seed = o_.seed;
    settings_.acts_dtype = o_.acts_dtype;
    settings_.fisher = !o_.no_fisher;
    settings_.layer_index = files_.config.cached_layers();
    settings_.tokenizer_sha256 = source_->tokenizer_sha256();
    settings_.text_name = samples_.name();
    settings_.text_flavour = samples_.flavour();
    settings_.bos = samples_.bos();
    set_lengths();
    options_.self_samples = samples_.self_samples;
    const kvcc::CollectPlan plan = kvcc::plan_collect(files_, settings_, options_);
    if (common_.dry_run) {
      if (run_.first()) print_plan(plan, hashing + seconds(plan));
      return 0;
    }
    if (samples_.self_samples > 0) sample_self();
    settings_.text_sha256 = samples_.sha256();
    settings_.offsets = samples_.offsets;
    set_parts();
    for (const std::vector<int32_t>& ids : samples_.ids) settings_.sample_sha256.push_back(kvcc::ids_sha256(ids));
    return collect(plan);
  }

 private:
  void set_weights() {
    weights_ = kvcc::read_weights_for(o_.weights, files_, settings_.model);
    options_.weights = &*weights_;
    note_in_decoder("quantised_weights", weights_->content_sha256);
  }

  /// What else decides the activations: a folder is gone on with, or merged, where it is the same.
  void note_in_decoder(const char* name, const std::string& value) {
    Json decoder = kvcc::parse_json<Json>(settings_.decoder_json, "the decoder");
    decoder[name] = value;
    settings_.decoder_json = decoder.dump();
  }

  /// Documents have lengths of their own.
  void set_lengths() {
    for (const std::vector<int32_t>& ids : samples_.ids) settings_.lengths.push_back(static_cast<int64_t>(ids.size()));
    const bool one = std::all_of(settings_.lengths.begin(), settings_.lengths.end(),
                                 [&](int64_t length) { return length == o_.seqlen; });
    if (one) settings_.lengths.clear();
  }

  void set_parts() {
    if (samples_.parts.size() < 2) return;
    for (const kvcc::TextPart& part : samples_.parts) {
      settings_.parts.push_back({part.name, part.sha256, part.flavour, part.bos, part.weight, part.tokens});
    }
    settings_.sample_part = samples_.part;
  }

  /// Rank 0 samples for all.
  void sample_self() {
    if (run_.first()) sample_self_here();
    if (!run_.ranks) return;
    std::string mine;
    for (const std::vector<int32_t>& row : self_ids_) {
      mine.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(int32_t));
    }
    const std::string all = run_.ranks->gather(mine)[0];
    if (run_.first()) return;
    std::vector<std::vector<int32_t>> kept;
    const size_t row = static_cast<size_t>(o_.seqlen) * sizeof(int32_t);
    for (size_t at = 0; at + row <= all.size(); at += row) {
      kept.emplace_back(static_cast<size_t>(o_.seqlen));
      std::memcpy(kept.back().data(), all.data() + at, row);
    }
    self_ids_ = source_->sample_self(samples_, o_.seqlen, static_cast<uint64_t>(o_.seed), std::move(kept));
  }

  /// Samples of an earlier run are kept in the folder, as sampling takes minutes; the manifest's hashes say whether
  /// they are the same.
  void sample_self_here() {
    const std::string path = o_.output + "/self_ids.npy";
    std::vector<std::vector<int32_t>> kept;
    if (common_.resume && fs::exists(path)) {
      const kvcc::NpyIds npy = kvcc::read_npy_ids(path);
      const int64_t length = npy.shape.back();
      for (int64_t s = 0; npy.shape.size() == 2 && s < npy.shape[0]; ++s) {
        kept.emplace_back(npy.ids.begin() + s * length, npy.ids.begin() + (s + 1) * length);
      }
    }
    self_ids_ = source_->sample_self(samples_, o_.seqlen, static_cast<uint64_t>(o_.seed), std::move(kept));
  }

  std::string samples_text() const {
    return fmt::format("{} of {}{}", settings_.samples, settings_.lengths.empty() ? "" : "at most ", settings_.seqlen);
  }

  /// From running a little; what the ids are does not matter.
  double seconds(const kvcc::CollectPlan& plan) const {
    std::vector<int32_t> ids = samples_.ids.empty() ? std::vector<int32_t>() : samples_.ids.front();
    if (ids.empty()) ids.assign(static_cast<size_t>(o_.seqlen), 0);
    return kvcc::estimate_seconds(files_, settings_, options_, plan, ids);
  }

  void print_plan(const kvcc::CollectPlan& plan, double seconds) const {
    if (common_.json) {
      kvcc::cli::print_json({{"tokens", plan.tokens},
                             {"samples", settings_.samples},
                             {"seqlen", settings_.seqlen},
                             {"disk_bytes", plan.disk_bytes},
                             {"peak_memory_bytes", plan.peak_bytes},
                             {"seconds", seconds},
                             {"memory_limit_bytes", plan.memory_limit},
                             {"recompute", plan.recompute},
                             {"streamed", plan.streamed}});
      return;
    }
    const std::string text = kvcc::cli::table(
        {{"plan", ""},
         {"text", settings_.text_name},
         {"samples", samples_text()},
         {"tokens", std::to_string(plan.tokens)},
         {"disk", kvcc::human_bytes(plan.disk_bytes)},
         {"peak memory, about", kvcc::human_bytes(plan.peak_bytes)},
         {"time, about", human_seconds(seconds) + (samples_.self_samples > 0 ? " after sampling" : "")},
         {"recompute", plan.recompute ? "on" : "off"},
         {"weights", plan.streamed ? "left in their files" : "in memory"}});
    std::fputs(text.c_str(), stdout);
  }

  int collect(const kvcc::CollectPlan& plan) {
    // Little memory, of which much stays: the plan is to be kept to.
    if (plan.streamed && !plan.recompute) kvcc::return_freed_memory();
    spdlog::info("{} tokens from {}; about {} of disk, {} of memory{}", samples_text(), settings_.text_name,
                 kvcc::human_bytes(plan.disk_bytes), kvcc::human_bytes(plan.peak_bytes),
                 plan.recompute ? ", layers are run twice" : "");
    std::optional<kvcc::cli::Progress> progress;
    kvcc::CollectCallbacks callbacks;
    callbacks.started = [&] {
      if (!self_ids_.empty()) kvcc::write_npy_ids(o_.output + "/self_ids.npy", self_ids_);
    };
    const auto start = std::chrono::steady_clock::now();
    callbacks.begun = [&](const kvcc::CollectState& state) { tell_begun(state); };
    callbacks.progress = [&](const kvcc::CollectState& state) {
      if (!progress) progress.emplace("collect", state.total, common_.quiet);
      const double share = static_cast<double>(state.done) / static_cast<double>(state.total);
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      progress->tell(
          kvcc::cli::run_status(share * static_cast<double>(state.open_tokens), elapsed.count(), state.written));
      progress->set(state.done);
    };
    callbacks.warn = [](const std::string& text) { spdlog::warn("{}", text); };
    const kvcc::CollectReport report = kvcc::collect(files_, settings_, samples_.ids, options_, callbacks);
    progress.reset();
    if (!run_.first()) return 0;
    if (common_.json) {
      Json document{{"activations", o_.output},     {"samples", report.samples},   {"seqlen", settings_.seqlen},
                    {"tokens", settings_.tokens()}, {"text", settings_.text_name}, {"left_out", report.skipped}};
      for (const kvcc::TextPart& part : samples_.parts) {
        document["parts"].push_back({{"text", part.name},
                                     {"sha256", part.sha256},
                                     {"weight", part.weight},
                                     {"samples", part.samples},
                                     {"tokens", part.tokens}});
      }
      document["nll"] = report.nll == report.nll ? Json(report.nll) : Json(nullptr);
      kvcc::cli::print_json(document);
    } else {
      spdlog::info("{}: {} samples", o_.output, report.samples);
    }
    return 0;
  }

  /// What a run that goes on keeps of the one before.
  void tell_begun(const kvcc::CollectState& state) const {
    if (!run_.first() || (state.samples_kept == 0 && state.shards_kept == 0)) return;
    std::string kept = fmt::format("keeps {} of {} samples", state.samples_kept, settings_.samples);
    if (state.shards_kept > 0) kept += fmt::format(" and {} layers of others", state.shards_kept);
    spdlog::info("{}: goes on where it was: {}; {}", o_.output, kept,
                 state.open.empty() ? "nothing is left to do" : "to run: sample " + kvcc::cli::ranges_text(state.open));
  }

  const Options& o_;
  const kvcc::cli::RankedRun& run_;
  const kvcc::cli::Common& common_;
  kvcc::ModelFiles files_;
  std::optional<kvcc::QuantisedWeights> weights_;
  kvcc::CollectOptions options_;
  kvcc::ActivationsSettings settings_;
  std::optional<kvcc::cli::TextSource> source_;
  kvcc::MixedSamples samples_;
  std::vector<std::vector<int32_t>> self_ids_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const CLI::App* parsed = nullptr;
  using namespace kvcc::cli;
  return run(
      argc, argv, "collect", "Collect a model's keys, values and Fisher information on a text",
      kJson | kResume | kForce | kThreads | kDevice | kDryRun | kCacheDir,
      [&](CLI::App& app) {
        define(app, options);
        parsed = &app;
      },
      [&](const Common& common) {
        const RankedRun ranked = start_ranks("collect", *parsed, common);
        return kvcc::as_rank(ranked.ranks.get(), [&] { return Collection(options, ranked).run(); });
      });
}
