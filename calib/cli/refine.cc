// kvcc refine: vector codebooks tuned by gradient against the model's own predictions.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <random>

#include "calib/cli/text_source.h"
#include "calib/eval/geometry.h"
#include "calib/model/arithmetic.h"
#include "calib/model/memory.h"
#include "calib/model/quantised_model.h"
#include "calib/refine/refine.h"
#include "formats/cli/output.h"
#include "formats/cli/program.h"
#include "formats/cli/ranges.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/json.h"
#include "formats/core/text.h"

namespace {

using Json = nlohmann::ordered_json;
using kvcc::Error;
using kvcc::ErrorKind;
namespace fs = std::filesystem;

constexpr const char* kDefaultDataset = "wikitext-2";

struct Options {
  std::string artifact, model, output, weights, max_memory;
  kvcc::cli::TextOptions text;
  int64_t steps = 32, held_out = 4, seqlen = 2048, seed = 0;
  double rate = 0;  ///< 0: by the bits of codes an element
  bool fixed_transforms = false, beyond_context = false;
};

void define(CLI::App& app, Options& o) {
  app.add_option("artifact", o.artifact, "Artifact NAME.kvcb of vector codebooks (kvcc fit --scheme kvcc-2)")
      ->required();
  app.add_option("MODEL", o.model, "The model it is of: Hugging Face directory or .gguf file")->required();
  app.add_option("-o,--output", o.output, "Refined artifact, NAME.kvcb")->required();
  app.add_option("--weights", o.weights,
                 "Quantised weights W.kvcw (kvcc fit-weights) to run on; what is aimed at stays the model's own "
                 "predictions");
  kvcc::cli::define_text(app, o.text, "window", kDefaultDataset);
  app.add_option("--steps", o.steps, "Steps, one window each; fewer when windows that are held out say so")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20).description(""));
  app.add_option("--held-out", o.held_out,
                 "Windows that no step sees and that decide what is kept: never worse than before on them")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20).description(""));
  app.add_option("--seqlen", o.seqlen, "Tokens a window; of documents: at most")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24).description(""));
  app.add_option("--seed", o.seed, "Seed of the order in which the text's windows are taken")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, INT64_MAX).description(""));
  app.add_option("--rate", o.rate,
                 "Length of the longest steps, in root mean square errors of each group of coordinates (default 0.03; "
                 "0.01 above 1.5 bits of codes an element)")
      ->check(kvcc::cli::number_in(1e-6, 1));
  app.add_flag("--fixed-transforms", o.fixed_transforms, "Tune codebooks and means alone");
  app.add_option("--max-memory", o.max_memory, "Memory the run may take, e.g. 8GiB (default: what is there)");
  app.add_flag("--beyond-context", o.beyond_context,
               "Allow a --seqlen above the model's context; its RoPE is used unchanged");
}

class Refinement {
 public:
  Refinement(const Options& options, const kvcc::cli::Common& common)
      : o_(options), common_(common), book_(kvcc::read_codebook(options.artifact)), files_(kvcc::open_model(o_.model)) {
    if (!book_.scheme.is_vector()) {
      throw Error(ErrorKind::usage, o_.artifact, "scheme " + short_name(book_.scheme) + " has levels",
                  "vector codebooks, such as kvcc-2's");
    }
    if (!book_.provenance.shard.empty()) {
      throw Error(ErrorKind::usage, o_.artifact, "a shard, " + book_.provenance.shard, "a whole artifact");
    }
    const kvcc::ModelInfo model = kvcc::model_info(files_);
    kvcc::check_geometry(o_.artifact, book_, model, files_.config.cached_layers());
    if (book_.model.weights_sha256 != model.weights_sha256) {
      spdlog::warn("{}: made from other weights ({}) of the same geometry as {}", o_.artifact, book_.model.name,
                   model.name);
    }
    if (!o_.weights.empty()) weights_ = kvcc::read_weights_for(o_.weights, files_, model);
    const std::string& of = book_.provenance.quantised_weights;
    if (!of.empty() && (!weights_ || of != weights_->content_sha256)) {
      spdlog::warn("{}: fitted to quantised weights {} that it is not refined on", o_.artifact, of.substr(0, 12));
    }
    check_output();
    options_.steps = o_.steps;
    // calib/fit/RESULTS.md: at 1 bit the longer steps reach further, at 2 bits they lose what they gain.
    options_.rate = o_.rate > 0 ? o_.rate : kvcc::bits_query(book_).code_bits > 1.5 ? 0.01 : 0.03;
    options_.transforms = !o_.fixed_transforms;
    options_.threads = common.threads;
    options_.weights = weights_ ? &*weights_ : nullptr;
    options_.max_memory = kvcc::memory_option(o_.max_memory);
  }

  int run() {
    kvcc::cli::check_context(o_.seqlen, files_.config.max_position, o_.beyond_context);
    choose_windows();
    const kvcc::RefinePlan plan =
        kvcc::plan_refine(files_, book_, o_.seqlen, static_cast<int64_t>(tuned_.size() + held_out_.size()), options_);
    if (common_.dry_run) {
      print_plan(plan);
      return 0;
    }
    std::optional<kvcc::AtomicFile> file(o_.output);
    spdlog::info("{}: {} steps at most of {} windows of {}, {} held out, about {} of memory{}", o_.artifact, o_.steps,
                 tuned_.size(), text_name_, held_out_.size(), kvcc::human_bytes(plan.peak_bytes),
                 plan.recompute ? ", layers are run twice" : "");
    std::optional<kvcc::cli::Progress> progress;
    const std::string before = book_.content_sha256;
    const kvcc::RefineReport report =
        kvcc::refine(files_, book_, tuned_, held_out_, options_, [&](uint64_t done, uint64_t total) {
          if (!progress) progress.emplace("refine", total, common_.quiet);
          progress->set(done);
        });
    progress.reset();
    if (report.improved()) record(report, before);
    kvcc::write_codebook(*file, o_.output, book_);
    print(report);
    return 0;
  }

 private:
  void check_output() const {
    if (fs::weakly_canonical(o_.output) == fs::weakly_canonical(o_.artifact)) {
      throw Error(ErrorKind::usage, "-o " + o_.output, "the artifact itself", "another name");
    }
    if (common_.force) kvcc::cli::check_replaced(o_.output, {"\x89HDF", "kvcc-codebook"}, "kvcc refine");
    if (!common_.force && fs::exists(o_.output)) throw kvcc::bad_input(o_.output, "exists", "", "--force replaces it");
  }

  /// All windows of the text in an order that the seed decides (Fisher and Yates' shuffle): the first are held out, so
  /// that the others share no token with them.
  void choose_windows() {
    kvcc::cli::TextSource source(files_, o_.text, common_, kDefaultDataset);
    kvcc::MixedSamples all = source.cut(0, o_.seqlen);
    source.sample_self(all, o_.seqlen, static_cast<uint64_t>(o_.seed));
    std::erase_if(all.ids, [](const std::vector<int32_t>& ids) { return ids.size() < 2; });  // which predict nothing
    const auto count = static_cast<int64_t>(all.ids.size());
    if (count <= o_.held_out) {
      throw kvcc::bad_input(all.name(), fmt::format("{} windows of {} tokens", count, o_.seqlen),
                            fmt::format("more than the {} that are held out", o_.held_out),
                            "more text, a smaller --seqlen or a smaller --held-out");
    }
    std::vector<int64_t> order(all.ids.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(static_cast<uint64_t>(o_.seed));
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
    const int64_t used = std::min(count - o_.held_out, o_.steps);
    for (int64_t i = 0; i < o_.held_out + used; ++i) {
      (i < o_.held_out ? held_out_ : tuned_).push_back(std::move(all.ids[order[i]]));
    }
    text_name_ = all.name();
    text_sha256_ = all.sha256();
  }

  /// In the artifact (formats/spec/codebook.md, "Refinement").
  void record(const kvcc::RefineReport& report, const std::string& before) {
    kvcc::TreeObject& to = book_.extras["/refinement"];
    to.attributes = {{"artifact_sha256", kvcc::text_value(before)},
                     {"dataset_name", kvcc::text_value(text_name_)},
                     {"dataset_sha256", kvcc::text_value(text_sha256_)},
                     {"windows", kvcc::integer_value(static_cast<int64_t>(tuned_.size()))},
                     {"held_out", kvcc::integer_value(static_cast<int64_t>(held_out_.size()))},
                     {"seqlen", kvcc::integer_value(o_.seqlen)},
                     {"seed", kvcc::integer_value(o_.seed)},
                     {"rate", kvcc::float_value(options_.rate)},
                     {"steps", kvcc::integer_value(report.looks[report.best].step)},
                     {"transforms", kvcc::integer_value(options_.transforms ? 1 : 0)},
                     {"kl_before", kvcc::float_value(report.looks[0].held_out)},
                     {"kl_after", kvcc::float_value(report.looks[report.best].held_out)}};
    if (weights_) to.attributes["quantised_weights"] = kvcc::text_value(weights_->content_sha256);
  }

  void print_plan(const kvcc::RefinePlan& plan) const {
    if (common_.json) {
      kvcc::cli::print_json({{"artifact", o_.artifact},
                             {"text", text_name_},
                             {"steps", o_.steps},
                             {"windows", tuned_.size()},
                             {"held_out", held_out_.size()},
                             {"seqlen", o_.seqlen},
                             {"peak_memory_bytes", plan.peak_bytes},
                             {"memory_limit_bytes", plan.memory_limit},
                             {"recompute", plan.recompute}});
      return;
    }
    const std::string text =
        kvcc::cli::table({{"plan", ""},
                          {"text", text_name_},
                          {"steps", fmt::format("{}, on {} windows of {}", o_.steps, tuned_.size(), o_.seqlen)},
                          {"held out", std::to_string(held_out_.size())},
                          {"peak memory, about", kvcc::human_bytes(plan.peak_bytes)},
                          {"recompute", plan.recompute ? "on" : "off"}});
    std::fputs(text.c_str(), stdout);
  }

  void print(const kvcc::RefineReport& report) const {
    const double before = report.looks[0].held_out, after = report.looks[report.best].held_out;
    if (common_.json) {
      Json looks = Json::array();
      for (const kvcc::RefineLook& look : report.looks) {
        looks.push_back({{"step", look.step},
                         {"kl_held_out", look.held_out},
                         {"kl_tuned", std::isnan(look.tuned) ? Json(nullptr) : Json(look.tuned)}});
      }
      kvcc::cli::print_json({{"artifact", o_.artifact},
                             {"output", o_.output},
                             {"scheme", short_name(book_.scheme)},
                             {"text", text_name_},
                             {"windows", tuned_.size()},
                             {"held_out", held_out_.size()},
                             {"seqlen", o_.seqlen},
                             {"improved", report.improved()},
                             {"steps", report.looks[report.best].step},
                             {"kl_before", before},
                             {"kl_after", after},
                             {"looks", looks}});
      return;
    }
    std::vector<std::vector<std::string>> rows{{"steps", "KL, held out", "KL, tuned on", ""}};
    for (size_t i = 0; i < report.looks.size(); ++i) {
      const kvcc::RefineLook& look = report.looks[i];
      rows.push_back({std::to_string(look.step), fmt::format("{:.5f}", look.held_out),
                      std::isnan(look.tuned) ? "" : fmt::format("{:.5f}", look.tuned),
                      static_cast<int64_t>(i) == report.best ? "kept" : ""});
    }
    std::fputs(kvcc::cli::table(rows).c_str(), stdout);
    if (report.improved()) {
      fmt::print("{}: {} refined, KL {:.5f} after {:.5f} on {} windows held out\n", o_.output, short_name(book_.scheme),
                 after, before, held_out_.size());
    } else {
      fmt::print("{}: {} as it was: nothing was better on {} windows held out\n", o_.output, short_name(book_.scheme),
                 held_out_.size());
    }
  }

  const Options& o_;
  const kvcc::cli::Common& common_;
  kvcc::Codebook book_;
  kvcc::ModelFiles files_;
  std::optional<kvcc::QuantisedWeights> weights_;
  kvcc::RefineOptions options_;
  std::vector<std::vector<int32_t>> tuned_, held_out_;
  std::string text_name_, text_sha256_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  using namespace kvcc::cli;
  return run(
      argc, argv, "refine", "Tune vector codebooks by gradient against the model's own predictions",
      kJson | kForce | kThreads | kDevice | kDryRun | kCacheDir, [&](CLI::App& app) { define(app, options); },
      [&](const Common& common) {
        kvcc::require_cpu(common.device);
        return Refinement(options, common).run();
      });
}
