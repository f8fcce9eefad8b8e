// kvcc fit-weights: codebooks of a model's weights, weighed by their Fisher information, with a sparse exact part.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <list>
#include <optional>

#include "calib/cli/text_source.h"
#include "calib/collect/weight_fisher.h"
#include "calib/fit/weight_fit.h"
#include "calib/model/memory.h"
#include "calib/report/weights_report.h"
#include "formats/cli/output.h"
#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/scheme_parts.h"
#include "formats/core/text.h"
#include "formats/store/weights_file.h"

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct Options {
  std::string model, output, sparse = "0.45%", sensitive, max_memory;
  kvcc::cli::TextOptions text;
  int64_t samples = 100, seqlen = 512, seed = 0;
  std::vector<int> bits = {4};
  bool beyond_context = false;
};

constexpr const char* kDefaultDataset = "wikitext-2";

void define(CLI::App& app, Options& o) {
  app.add_option("MODEL", o.model, "Hugging Face directory or .gguf file")->required();
  app.add_option("-o,--output", o.output, "File of the quantised weights, NAME.kvcw; of several NAME.w4-s0.45.kvcw, …")
      ->required();
  app.add_option("--bits", o.bits,
                 "Bits of a code, 2 to 8: 2^bits levels a row. Several (4,3) are fitted to the same gradients "
                 "(default 4)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(2, 8).description(""));
  app.add_option("--sparse", o.sparse, "Share of each matrix's weights that are kept exactly, e.g. 0.45% or 0%")
      ->capture_default_str();
  app.add_option("--sensitive", o.sensitive,
                 "Part of them that is chosen by Fisher information, the rest by magnitude (default: a ninth of "
                 "--sparse, 0.05% of 0.45%)");
  kvcc::cli::define_text(app, o.text, "sample", kDefaultDataset);
  app.add_option("--samples", o.samples, "Samples")
      ->capture_default_str()
      ->check(CLI::Range(1, 999999).description(""));
  app.add_option("--seqlen", o.seqlen, "Tokens a sample")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24).description(""));
  app.add_option("--seed", o.seed, "Seed of the sampling")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, INT64_MAX).description(""));
  app.add_option("--max-memory", o.max_memory,
                 "Memory the run may take, e.g. 3GiB (default: what is there); with less, fewer layers at a time and "
                 "more passes over the samples");
  app.add_flag("--beyond-context", o.beyond_context,
               "Allow a --seqlen above the model's context; its RoPE is used unchanged");
}

double share(const std::string& option, const std::string& text, double below) {
  try {
    return kvcc::scheme_parts::parse_share("it", text, below, "");
  } catch (const kvcc::Error& error) {
    throw kvcc::Error(error.kind(), option, error.found(), error.wanted(), error.hint());
  }
}

class WeightsFit {
 public:
  WeightsFit(const Options& options, const kvcc::cli::Common& common)
      : o_(options),
        common_(common),
        files_(kvcc::open_model(options.model)),
        source_(files_, options.text, common, kDefaultDataset) {
    settings_.sparse = share("--sparse", o_.sparse, 0.5);
    settings_.sensitive = o_.sensitive.empty() ? settings_.sparse / 9 : share("--sensitive", o_.sensitive, 0.5);
    if (settings_.sensitive > settings_.sparse) {
      throw kvcc::Error(kvcc::ErrorKind::usage, "--sensitive " + o_.sensitive, "is more than --sparse " + o_.sparse,
                        "a part of it");
    }
    settings_.threads = common.threads;
    for (const int bits : o_.bits) {
      const auto same = [&](const Job& job) { return job.weights.bits == bits; };
      if (std::any_of(jobs_.begin(), jobs_.end(), same)) continue;
      jobs_.emplace_back();
      jobs_.back().weights.bits = bits;
      jobs_.back().weights.sparse = settings_.sparse;
      jobs_.back().weights.sensitive = settings_.sensitive;
    }
    for (Job& job : jobs_) job.output = output_of(job.weights);
  }

  int run() {
    for (const Job& job : jobs_) {
      if (common_.force) kvcc::cli::check_replaced(job.output, {"\x89HDF", "kvcc-weights"}, "kvcc fit-weights");
      if (common_.force || !fs::exists(job.output)) continue;
      throw kvcc::bad_input(job.output, "exists", "", "--force replaces it");
    }
    read_text();
    const kvcc::WeightFisherPlan plan =
        kvcc::plan_weight_fisher(files_, o_.seqlen, kvcc::memory_option(o_.max_memory), result_bytes());
    if (common_.dry_run) {
      print_plan(plan);
      return 0;
    }
    for (Job& job : jobs_) job.file.emplace(job.output);  // says now what is wrong with the name
    source_.sample_self(samples_, o_.seqlen, static_cast<uint64_t>(o_.seed));
    fill_origin();
    const double nll = fit(plan);
    Json document{{"nll", nll}, {"weights", Json::array()}};
    for (Job& job : jobs_) {
      kvcc::write_weights(*job.file, job.output, job.weights);
      spdlog::info("{}: {}", job.output, kvcc::human_bytes(fs::file_size(job.output)));
      if (common_.json) {
        document["weights"].push_back({{"path", job.output}});
        document["weights"].back().update(kvcc::weights_json(job.weights));
      } else {
        fmt::print("{}\n{}", job.weights.name(), kvcc::cli::table(kvcc::weights_rows(job.weights)));
      }
    }
    if (common_.json) kvcc::cli::print_json(document);
    return 0;
  }

 private:
  struct Job {
    kvcc::QuantisedWeights weights;
    std::string output;
    std::optional<kvcc::AtomicFile> file;
  };

  std::string output_of(const kvcc::QuantisedWeights& weights) const {
    if (jobs_.size() == 1) return o_.output;
    std::string stem = o_.output;
    if (stem.ends_with(".kvcw")) stem.resize(stem.size() - 5);
    return stem + "." + weights.name() + ".kvcw";
  }

  void read_text() {
    kvcc::cli::check_context(o_.seqlen, files_.config.max_position, o_.beyond_context);
    samples_ = source_.draw(o_.samples, o_.seqlen, static_cast<uint64_t>(o_.seed));
    origin_.text_name = samples_.name();
  }

  void fill_origin() {
    kvcc::WeightsProvenance& from = origin_;
    from.tool_version = KVCC_VERSION;
    from.samples = static_cast<int64_t>(samples_.ids.size());
    from.seqlen = o_.seqlen;
    from.seed = o_.seed;
    from.text_sha256 = samples_.sha256();
    from.text_flavour = samples_.flavour();
    from.bos = samples_.bos();
    from.tokenizer_sha256 = source_.tokenizer_sha256();
    kvcc::Sha256 hash;
    for (const std::vector<int32_t>& ids : samples_.ids) hash.update(ids.data(), ids.size() * sizeof(int32_t));
    from.ids_sha256 = hash.hex();
    const kvcc::ModelInfo model = kvcc::model_info(files_);
    for (Job& job : jobs_) {
      job.weights.model = model;
      job.weights.provenance = origin_;
    }
  }

  /// Of the fitted matrices, as they are, as the file's objects and as its image.
  uint64_t result_bytes() const {
    uint64_t weights = 0;
    for (const kvcc::ExpectedTensor& tensor : kvcc::projections(files_)) {
      weights += static_cast<uint64_t>(tensor.shape[0]) * static_cast<uint64_t>(tensor.shape[1]);
    }
    uint64_t bits = 0, most = 0;
    for (const Job& job : jobs_) {
      bits += static_cast<uint64_t>(job.weights.bits + 1);
      most = std::max(most, static_cast<uint64_t>(job.weights.bits + 1));
    }
    return weights * (bits + 3 * most) / 8;
  }

  double fit(const kvcc::WeightFisherPlan& plan) {
    spdlog::info("{} samples of {} tokens from {}, {} over them, about {} of memory", samples_.ids.size(), o_.seqlen,
                 origin_.text_name, plan.sweeps.size() == 1 ? "one pass" : fmt::format("{} passes", plan.sweeps.size()),
                 kvcc::human_bytes(plan.peak_bytes));
    std::optional<kvcc::cli::Progress> progress;
    kvcc::WeightFisherCallbacks callbacks;
    callbacks.progress = [&](uint64_t done, uint64_t total) {
      if (!progress) progress.emplace("gradients", total, common_.quiet);
      progress->set(done);
    };
    callbacks.done = [&](std::vector<kvcc::WeightFisher>& matrices) { fit_sweep(matrices); };
    const double nll = kvcc::collect_weight_fisher(files_, samples_.ids, plan, common_.threads, callbacks);
    for (Job& job : jobs_) {
      std::stable_sort(job.weights.matrices.begin(), job.weights.matrices.end(),
                       [](const auto& a, const auto& b) { return a.layer < b.layer; });
    }
    return nll;
  }

  void fit_sweep(std::vector<kvcc::WeightFisher>& matrices) {
    kvcc::cli::Progress progress("codebooks", matrices.size(), common_.quiet);
    for (kvcc::WeightFisher& matrix : matrices) {
      kvcc::check_interrupt();
      const auto values = [](const at::Tensor& x) {
        return std::span(x.const_data_ptr<float>(), static_cast<size_t>(x.numel()));
      };
      const at::Tensor weight = matrix.weight.contiguous();
      for (Job& job : jobs_) {
        settings_.bits = job.weights.bits;
        job.weights.matrices.push_back(kvcc::fit_matrix(matrix.tensor.hf, static_cast<int>(matrix.tensor.layer),
                                                        weight.size(0), weight.size(1), values(weight),
                                                        values(matrix.fisher), settings_));
      }
      matrix.fisher.reset();
      progress.advance();
    }
  }

  void print_plan(const kvcc::WeightFisherPlan& plan) const {
    int64_t tokens = 0;
    for (const std::vector<int32_t>& ids : samples_.ids) tokens += static_cast<int64_t>(ids.size());
    if (common_.json) {
      kvcc::cli::print_json({{"tokens", tokens},
                             {"samples", samples_.ids.size()},
                             {"seqlen", o_.seqlen},
                             {"passes", plan.sweeps.size()},
                             {"peak_memory_bytes", plan.peak_bytes},
                             {"memory_limit_bytes", plan.memory_limit}});
      return;
    }
    const std::string text = kvcc::cli::table({{"plan", ""},
                                               {"text", origin_.text_name},
                                               {"samples", fmt::format("{} of {}", samples_.ids.size(), o_.seqlen)},
                                               {"passes over them", std::to_string(plan.sweeps.size())},
                                               {"peak memory, about", kvcc::human_bytes(plan.peak_bytes)}});
    std::fputs(text.c_str(), stdout);
  }

  const Options& o_;
  const kvcc::cli::Common& common_;
  kvcc::ModelFiles files_;
  kvcc::WeightFitSettings settings_;
  std::list<Job> jobs_;  // files are not moved
  kvcc::WeightsProvenance origin_;
  kvcc::cli::TextSource source_;
  kvcc::MixedSamples samples_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  using namespace kvcc::cli;
  return run(
      argc, argv, "fit-weights", "Quantise a model's weights: Fisher-weighted codebooks and a sparse exact part",
      kJson | kForce | kThreads | kDryRun | kCacheDir, [&](CLI::App& app) { define(app, options); },
      [&](const Common& common) { return WeightsFit(options, common).run(); });
}
