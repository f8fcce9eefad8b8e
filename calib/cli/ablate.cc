// kvcc ablate: how much text, how long, of which kind, and how sure: many calibrations, one evaluation of all. A chain
// of collect, fit and eval over a folder, so that what is done is not done again.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "calib/cli/ablate_plan.h"
#include "calib/cli/ablate_report.h"
#include "calib/cli/artifact_name.h"
#include "calib/cli/stage_chain.h"
#include "calib/report/html_report.h"
#include "calib/text/mixture.h"
#include "datasets/datasets.h"
#include "formats/cli/output.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/store/activations.h"
#include "formats/store/subset.h"
#include "formats/weights/model_files.h"

namespace {

using kvcc::cli::AblateCollection;
using kvcc::cli::AblateOptions;
using kvcc::cli::AblatePoint;
using kvcc::cli::chain_stage;
using kvcc::cli::Common;
using kvcc::cli::stage_document;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int64_t kEvalSeed = 1'000'003;  ///< of the model's own evaluation text: none that samples are drawn with

void define(CLI::App& app, AblateOptions& o) {
  app.add_option("MODEL", o.model, "Hugging Face directory or .gguf file")->required();
  app.add_option("-o,--output", o.output, "Folder of the artifacts and of what is measured")->required();
  app.add_option("--scheme", o.schemes, "Scheme to fit, may be repeated (default kvcc-nuq4-1%-sink1)")
      ->allow_extra_args(false);
  kvcc::cli::define_text(app, o.text, "sample", "wikitext-2");
  const auto list = [&](const char* name, std::vector<int64_t>& to, const std::string& help, int64_t least,
                        int64_t most) {
    app.add_option(name, to, help)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->capture_default_str()
        ->check(CLI::Range(least, most).description(""));
  };
  list("--samples", o.samples, "Numbers of samples to compare; the most are the base's", 1, 999999);
  list("--seqlen", o.seqlens, "Tokens a sample to compare; the most are the base's", 2, 1 << 24);
  list("--seeds", o.seeds, "Seeds of the sampling to compare; the first is the base's", 0, INT64_MAX);
  app.add_option("--domain", o.domains,
                 "Calibration text to compare with the base's, as --dataset has it; may be repeated; none: no other "
                 "(default self, or wikitext-2 where the base is self)")
      ->allow_extra_args(false);
  app.add_option("--eval-dataset", o.evaluations,
                 "Text to evaluate on, as --dataset of kvcc eval has it; may be repeated (default "
                 "wikitext-2:evaluation, and self where a calibration text is self)")
      ->allow_extra_args(false);
  app.add_option("--windows", o.windows, "Windows of each evaluation text")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24).description(""));
  app.add_option("--eval-seqlen", o.eval_seqlen, "Tokens a window; 0: the most of --seqlen")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24).description(""));
  app.add_option("--acts-dtype", o.acts_dtype, "Stored activations: f32 or bf16 (half the disk)")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}).description(""));
  app.add_option("--max-memory", o.max_memory, "Memory that collecting may take, e.g. 8GiB (default: what is there)");
  app.add_flag("--keep-activations", o.keep, "Keep the activations, which are removed once they are fitted");
  app.add_flag("--beyond-context", o.beyond_context,
               "Allow more tokens than the model's context; its RoPE is used unchanged");
  app.add_option("--html", o.html, "Also write the plots, one HTML file");
}

void append(std::vector<std::string>& to, const std::string& option, const std::string& value) {
  if (!value.empty()) to.insert(to.end(), {option, value});
}

class Ablate {
 public:
  Ablate(AblateOptions options, const Common& common)
      : o_(set_defaults(std::move(options))), common_(common), plan_(kvcc::cli::plan_ablation(o_)) {
    for (const std::string& scheme : o_.schemes) {
      const kvcc::Scheme parsed = kvcc::parse_scheme(scheme);
      if (!parsed.needs_calibration()) {
        throw kvcc::Error(kvcc::ErrorKind::usage, "--scheme " + scheme, "nothing to calibrate for it",
                          "a scheme with statistics of the model");
      }
      schemes_.push_back(short_name(parsed));
    }
    if (!o_.html.empty()) {
      kvcc::cli::check_replaced(o_.html, {"<!doctype html>", "content=\"kvcc "}, "--html");
      kvcc::AtomicFile{o_.html};  // says now what is wrong with the name
    }
  }

  int run() {
    check_identity();
    if (common_.dry_run) {
      print_plan();
      return 0;
    }
    try {
      for (const AblateCollection& collection : plan_.collections) calibrate(collection);
      for (size_t i = 0; i < o_.evaluations.size(); ++i) evaluate(i);
    } catch (const kvcc::cli::StageFailed& failed) {
      return report_failure(failed, common_);
    }
    report();
    return 0;
  }

 private:
  static AblateOptions set_defaults(AblateOptions o) {
    const auto is_self = [](const std::string& name) { return name == "self"; };
    if (o.schemes.empty()) o.schemes = {"kvcc-nuq4-1%-sink1"};
    const bool base_is_self = o.text.datasets.size() == 1 && is_self(o.text.datasets[0]);
    if (o.domains.empty()) o.domains = {base_is_self ? "wikitext-2" : "self"};
    if (o.domains.size() == 1 && o.domains[0] == "none") o.domains.clear();
    if (o.evaluations.empty()) {
      o.evaluations = {"wikitext-2:evaluation"};
      if (base_is_self || std::any_of(o.domains.begin(), o.domains.end(), is_self)) o.evaluations.push_back("self");
    }
    return o;
  }

  /// The text of a domain: the base's, or another data set packed as the base's is.
  kvcc::cli::TextOptions text_of(size_t domain) const {
    if (domain == 0) return o_.text;
    kvcc::cli::TextOptions text;
    text.datasets = {o_.domains[domain - 1]};
    text.bos = o_.text.bos;
    text.packing = o_.text.packing;
    return text;
  }

  /// What a text is, with the hashes of its files.
  Json description(const kvcc::cli::TextOptions& text) const {
    Json names = Json::array();
    const auto add = [&](const std::string& name, const std::string& sha256) { names.push_back({name, sha256}); };
    std::vector<std::string> words = text.datasets;
    if (!text.is_given()) words = {"wikitext-2"};
    for (const kvcc::DatasetPart& part : kvcc::parse_datasets(words)) {
      const bool file = fs::is_regular_file(part.name);
      const bool self = part.name == "self";
      add(fmt::format("{}:{}", part.name, part.weight),
          self   ? ""
          : file ? kvcc::sha256_file(part.name)
                 : kvcc::resolve_dataset(part.name, common_.cache_dir).sha256);
    }
    for (const std::string& file : text.text) add(file, kvcc::sha256_file(file));
    if (!text.ids.empty()) add(text.ids, kvcc::sha256_file(text.ids));
    return {{"texts", names}, {"field", text.field}, {"packing", text.packing}, {"bos", text.bos}};
  }

  /// Artifacts of another model or other texts are not taken for those of this run.
  void check_identity() {
    const kvcc::ModelFiles files = kvcc::open_model(o_.model);
    Json identity{{"kind", "kvcc ablation"}, {"weights_sha256", kvcc::model_info(files).weights_sha256}};
    weights_sha256_ = identity["weights_sha256"];
    identity["acts_dtype"] = o_.acts_dtype;
    for (size_t d = 0; d <= o_.domains.size(); ++d) identity["domains"].push_back(description(text_of(d)));
    const std::string path = o_.output + "/ablation.json";
    const bool occupied = fs::exists(o_.output) && !fs::is_empty(o_.output);
    const Json there = kvcc::cli::read_record(path);
    if (occupied && there.value("kind", "") != identity["kind"]) {
      throw kvcc::bad_input(o_.output, "is not empty and holds no ablation", "a new or empty folder");
    }
    if (occupied) {
      Json old = there;
      // Domains may be added at the end.
      Json& domains = old["domains"];
      for (size_t d = domains.size(); d < identity["domains"].size(); ++d) domains.push_back(identity["domains"][d]);
      while (domains.size() > identity["domains"].size())
        identity["domains"].push_back(domains[identity["domains"].size()]);
      if (old != identity) {
        if (!common_.force) {
          throw kvcc::bad_input(o_.output, "made of another model, other texts or another --acts-dtype",
                                "the same, to go on with it", "--force starts over, -o names another folder");
        }
        if (!common_.dry_run) start_over();
      } else if (common_.force && !common_.dry_run) {
        start_over();
      }
    }
    if (common_.dry_run) return;
    kvcc::make_folder(o_.output);
    kvcc::write_if_different(path, identity.dump(1) + "\n");
  }

  void start_over() const {
    for (const char* part : {"acts", "fits", "eval"}) fs::remove_all(fs::path(o_.output) / part);
  }

  std::string artifact(const AblatePoint& point, size_t scheme) const {
    return kvcc::cli::artifact_name(o_.output + "/fits/" + point_name(point) + ".kvcb", schemes_[scheme], true);
  }

  bool is_fitted(const AblatePoint& point) const {
    for (size_t scheme = 0; scheme < schemes_.size(); ++scheme) {
      const std::string path = artifact(point, scheme);
      if (!fs::exists(path)) return false;
      try {
        kvcc::read_codebook(path);
      } catch (const kvcc::Error& error) {
        spdlog::warn("{}; fitting it again", error.what());
        fs::remove(path);
        return false;
      }
    }
    return true;
  }

  std::string activations(const AblatePoint& most) const { return o_.output + "/acts/" + point_name(most) + ".acts"; }

  void calibrate(const AblateCollection& collection) {
    std::vector<AblatePoint> open;
    for (const size_t i : collection.points) {
      if (!is_fitted(plan_.points[i])) open.push_back(plan_.points[i]);
    }
    if (open.empty()) return;
    const std::string folder = activations(collection.most);
    kvcc::make_folder(o_.output + "/acts");
    kvcc::make_folder(o_.output + "/fits");
    collect(collection.most, folder);
    const kvcc::ActivationsReader reader(folder);
    for (const AblatePoint& point : open) {
      const int64_t there = reader.settings().samples;
      if (point.samples >= there) {
        fit(point, folder);
        continue;
      }
      const std::string part = activations(point);
      kvcc::subset_activations(reader, point.samples, part);
      fit(point, part);
      fs::remove_all(part);
    }
    if (!o_.keep) fs::remove_all(folder);
  }

  void collect(const AblatePoint& most, const std::string& folder) {
    std::vector<std::string> a{o_.model,
                               "-o",
                               folder,
                               "--samples",
                               std::to_string(most.samples),
                               "--seqlen",
                               std::to_string(most.seqlen),
                               "--seed",
                               std::to_string(most.seed),
                               "--acts-dtype",
                               o_.acts_dtype,
                               "--threads",
                               std::to_string(common_.threads),
                               "--cache-dir",
                               common_.cache_dir,
                               "--resume"};
    append_text(a, text_of(most.domain));
    append(a, "--max-memory", o_.max_memory);
    if (o_.beyond_context) a.push_back("--beyond-context");
    chain_stage("collect", a, common_);
  }

  void fit(const AblatePoint& point, const std::string& folder) {
    for (size_t scheme = 0; scheme < schemes_.size(); ++scheme) fs::remove(artifact(point, scheme));
    // Several schemes at once read the activations once; the name of one scheme is spelt out.
    std::vector<std::string> a{
        folder,   "--threads", std::to_string(common_.threads),
        "--json", "-o",        schemes_.size() == 1 ? artifact(point, 0) : o_.output + "/fits/" + point_name(point)};
    for (const std::string& scheme : schemes_) append(a, "--scheme", scheme);
    chain_stage("fit", a, common_);
  }

  std::vector<std::string> evaluation_arguments(size_t i) const {
    const int64_t seqlen = o_.eval_seqlen > 0 ? o_.eval_seqlen : plan_.base.seqlen;
    std::vector<std::string> a{o_.model,
                               "--dataset",
                               o_.evaluations[i],
                               "--windows",
                               std::to_string(o_.windows),
                               "--seqlen",
                               std::to_string(seqlen),
                               "--seed",
                               std::to_string(kEvalSeed),
                               "--bos",
                               o_.text.bos,
                               "--json"};
    if (o_.beyond_context) a.push_back("--beyond-context");
    return a;
  }

  /// All artifacts side by side; the journal keeps what windows and artifacts are done.
  void evaluate(size_t i) {
    std::vector<std::string> a = evaluation_arguments(i);
    kvcc::cli::TextOptions text;
    text.datasets = {o_.evaluations[i]};
    kvcc::Sha256 key;
    key.update(KVCC_VERSION).update(weights_sha256_).update(description(text).dump());
    for (const std::string& argument : a) key.update("\n").update(argument);
    const std::string name = o_.output + "/eval/" + key.hex().substr(0, 16);
    kvcc::make_folder(o_.output + "/eval");
    kvcc::Sha256 artifacts;
    for (const AblatePoint& point : plan_.points) {
      for (size_t scheme = 0; scheme < schemes_.size(); ++scheme) {
        const std::string path = artifact(point, scheme);
        append(a, "--codebook", path);
        artifacts.update(kvcc::read_codebook(path).content_sha256).update("\n");
      }
    }
    const std::string content = artifacts.hex();
    Json document = kvcc::cli::read_record(name + ".json");
    if (document.value("artifacts", "") != content) {
      a.insert(a.end(), {"--journal", name + ".journal", "--resume", "--threads", std::to_string(common_.threads),
                         "--cache-dir", common_.cache_dir});
      document = stage_document("eval", chain_stage("eval", a, common_).output);
      document["artifacts"] = content;
      kvcc::write_text_file(name + ".json", document.dump(1) + "\n");
    }
    evaluations_.push_back(std::move(document));
  }

  void report() const {
    kvcc::cli::Ablation ablation{o_, plan_, schemes_, {}, {}, evaluations_};
    for (const AblatePoint& point : plan_.points) {
      ablation.artifacts.emplace_back();
      ablation.books.emplace_back();
      for (size_t scheme = 0; scheme < schemes_.size(); ++scheme) {
        ablation.artifacts.back().push_back(artifact(point, scheme));
        ablation.books.back().push_back(kvcc::read_codebook(artifact(point, scheme)));
      }
    }
    const Json document = ablation_json(ablation);
    if (!o_.html.empty()) {
      kvcc::write_text_file(o_.html, kvcc::ablation_html(document));
      spdlog::info("{}: the plots", o_.html);
    }
    if (common_.json) {
      kvcc::cli::print_json(document);
    } else {
      std::fputs(kvcc::cli::ablation_tables(document).c_str(), stdout);
    }
  }

  void print_plan() const {
    Json document{{"model", o_.model}, {"schemes", schemes_}, {"fits", plan_.points.size() * schemes_.size()}};
    std::vector<std::vector<std::string>> rows{{"collect", "samples", "tokens", "fits"}};
    for (const AblateCollection& collection : plan_.collections) {
      const AblatePoint& most = collection.most;
      const std::string text =
          most.domain > 0 ? o_.domains[most.domain - 1] : (o_.text.is_given() ? "the text given" : "wikitext-2");
      rows.push_back({fmt::format("{}, seed {}", text, most.seed), fmt::format("{} of {}", most.samples, most.seqlen),
                      std::to_string(most.samples * most.seqlen),
                      std::to_string(collection.points.size() * schemes_.size())});
      document["collections"].push_back({{"text", text},
                                         {"seed", most.seed},
                                         {"samples", most.samples},
                                         {"seqlen", most.seqlen},
                                         {"fits", collection.points.size() * schemes_.size()}});
    }
    const auto passes = o_.windows * static_cast<int64_t>(1 + plan_.points.size() * schemes_.size());
    for (const std::string& evaluation : o_.evaluations) {
      document["evaluations"].push_back({{"dataset", evaluation}, {"forward_passes", passes}});
    }
    if (common_.json) return kvcc::cli::print_json(document);
    fmt::print("{}{} evaluation texts, {} forward passes each\n", kvcc::cli::table(rows), o_.evaluations.size(),
               passes);
  }

  const AblateOptions o_;
  const Common& common_;
  const kvcc::cli::AblatePlan plan_;
  std::vector<std::string> schemes_;
  std::string weights_sha256_;
  std::vector<Json> evaluations_;
};

}  // namespace

int main(int argc, char** argv) {
  AblateOptions options;
  using namespace kvcc::cli;
  return run(
      argc, argv, "ablate",
      "Perplexity, KL and stability of codebooks against samples, length, text and seed; what is done is kept, with or "
      "without --resume",
      kJson | kForce | kThreads | kDryRun | kCacheDir | kResume, [&](CLI::App& app) { define(app, options); },
      [&](const Common& common) { return Ablate(options, common).run(); });
}
