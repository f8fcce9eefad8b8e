// kvcc calibrate: collect, fit, and on request compile and evaluate, with good defaults. A chain of the other verbs:
// every stage reads and writes files only, so what is done is not done again.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "calib/cli/artifact_name.h"
#include "calib/cli/ranked.h"
#include "calib/cli/stage_chain.h"
#include "calib/cli/text_options.h"
#include "calib/report/html_report.h"
#include "codegen/build/cxx.h"
#include "codegen/build/nvcc.h"
#include "datasets/datasets.h"
#include "formats/cli/output.h"
#include "formats/cli/program.h"
#include "formats/core/effective_bits.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/json.h"
#include "formats/core/text.h"
#include "formats/store/codebook.h"

namespace {

using kvcc::cli::chain_stage;
using kvcc::cli::Common;
using kvcc::cli::read_record;
using kvcc::cli::stage_document;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct Options {
  std::string model, output, archs;
  std::vector<std::string> schemes;
  bool evaluate = false, beyond_context = false;
  // collect
  kvcc::cli::TextOptions text;
  std::string dtype = "f32", acts_dtype = "f32", recompute = "auto", on_nonfinite = "stop", max_memory;
  int64_t samples = 16, seqlen = 2048, seed = 0;
  // eval
  std::string eval_dataset, eval_ids, html;
  std::vector<std::string> eval_text;
  int64_t windows = 8, eval_seqlen = 2048;
};

void define(CLI::App& app, Options& o) {
  app.add_option("MODEL", o.model, "Hugging Face directory or .gguf file")->required();
  app.add_option("-o,--output", o.output,
                 "NAME.kvcb; with several schemes NAME.SCHEME.kvcb each (default: MODEL's name, in this folder)");
  app.add_option("--scheme", o.schemes,
                 "scheme to fit, may be repeated (default: kvcc-2 and kvcc-3; with --compile kvcc-nuq4-1%-sink1)");
  app.add_option("--compile", o.archs, "compile kernels for these architectures, e.g. sm_80,sm_90,cpu");
  CLI::Option* evaluate = app.add_flag("--eval", o.evaluate, "evaluate perplexity, KL and top-1 agreement");
  kvcc::cli::define_text(app, o.text, "sample", "wikitext-2");
  app.add_option("--samples", o.samples, "calibration samples")->capture_default_str();
  app.add_option("--seqlen", o.seqlen, "tokens a sample")->capture_default_str();
  app.add_option("--seed", o.seed, "seed of the sampling")->capture_default_str();
  app.add_option("--dtype", o.dtype, "arithmetic of collecting: f32, or bf16 where the processor has it")
      ->capture_default_str();
  app.add_option("--acts-dtype", o.acts_dtype, "stored activations: f32 or bf16")->capture_default_str();
  app.add_option("--recompute", o.recompute, "auto, on or off")->capture_default_str();
  app.add_option("--on-nonfinite", o.on_nonfinite, "stop or skip")->capture_default_str();
  app.add_option(
      "--max-memory", o.max_memory,
      "memory collecting may take, e.g. 8GiB: weights stay in their files, and layers run twice, to keep to it");
  app.add_flag("--beyond-context", o.beyond_context,
               "allow more tokens a sample or window than the model's context; its RoPE is used unchanged");
  app.add_option("--windows", o.windows, "evaluation windows; 0: all of the text (of the model's own samples: 8)")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30).description(""))
      ->needs(evaluate);
  app.add_option("--eval-seqlen", o.eval_seqlen, "tokens a window")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 24).description(""))
      ->needs(evaluate);
  CLI::Option* dataset = app.add_option("--eval-dataset", o.eval_dataset,
                                        "evaluation text: a data set or a file, as --dataset of kvcc eval has it "
                                        "(default: wikitext-2:evaluation; with --dataset self: self)")
                             ->needs(evaluate);
  CLI::Option* text = app.add_option("--eval-text", o.eval_text, "evaluation text files")->needs(evaluate);
  CLI::Option* ids = app.add_option("--eval-ids", o.eval_ids, "evaluation token ids, .npy")->needs(evaluate);
  dataset->excludes(text)->excludes(ids);
  text->excludes(ids);
  app.add_option("--html", o.html, "also write the evaluation as a report to look at, one HTML file")->needs(evaluate);
}

/// Whether a record has what the table is made from.
bool is_evaluation(const Json& record) {
  const auto results = record.find("results");
  if (results == record.end() || !results->is_array()) return false;
  return std::all_of(results->begin(), results->end(), [](const Json& row) {
    return row.is_object() && row.contains("scheme") && row.value("codebook", Json("")).is_string();
  });
}

void append(std::vector<std::string>& to, const std::string& option, const std::string& value) {
  if (value.empty()) return;
  to.push_back(option);
  to.push_back(value);
}

/// One calibration: names of its files, and the stages.
class Calibration {
 public:
  /// `run`: without ranks, as each stage's program meets the others itself.
  Calibration(const Options& options, const kvcc::cli::RankedRun& run, bool threads_given)
      : o_(options), run_(run), common_(run.common), threads_given_(threads_given) {
    // kvcc compile emits no units of vector codebooks: the CPU runtime has them built in.
    if (o_.schemes.empty() && !o_.archs.empty()) o_.schemes = {"kvcc-nuq4-1%-sink1"};
    if (o_.schemes.empty()) o_.schemes = {"kvcc-2", "kvcc-3"};
    for (std::string& scheme : o_.schemes) {
      const kvcc::Scheme parsed = kvcc::parse_scheme(scheme);
      if (parsed.needs_rotations())
        throw kvcc::Error(kvcc::ErrorKind::usage, "--scheme " + scheme, "rotations that no artifact holds",
                          "a scheme of static scales or codebooks",
                          "kvcc eval MODEL --scheme " + scheme + " makes them from --calibration");
      if (!parsed.needs_calibration())
        throw kvcc::Error(kvcc::ErrorKind::usage, "--scheme " + scheme, "nothing to calibrate for it",
                          "a scheme with statistics of the model", "kvcc eval MODEL --scheme " + scheme);
      if (parsed.is_vector() && !o_.archs.empty())
        throw kvcc::Error(kvcc::ErrorKind::usage, "--compile", "with --scheme " + scheme,
                          "a scheme of scalar levels such as kvcc-nuq4-1%-sink1",
                          "units of vector codebooks are built into the CPU runtime, and kvcc compile emits none");
      scheme = kvcc::short_name(parsed);
    }
    if (run_.first()) check_evaluation();
    if (!o_.html.empty() && run_.first()) {
      kvcc::cli::check_replaced(o_.html, {"<!doctype html>", "content=\"kvcc "}, "--html");
      kvcc::AtomicFile{o_.html};  // says now what is wrong with the name
    }
    if (run_.first()) check_archs();
    if (!fs::exists(o_.model))
      throw kvcc::bad_input(o_.model, "no such file or folder", "a .gguf file or a Hugging Face directory");
    fs::path name = o_.output.empty() ? fs::path(o_.model).lexically_normal() : fs::path(o_.output);
    if (name.filename().empty()) name = name.parent_path();
    if (o_.output.empty()) name = name.filename();
    if (name.extension() == ".kvcb" || name.extension() == ".gguf") name.replace_extension();
    base_ = name.string();
    if (name.has_parent_path() && !common_.dry_run) kvcc::make_folder(name.parent_path().string());
    for (const std::string& scheme : o_.schemes)
      artifacts_.push_back(kvcc::cli::artifact_name(base_ + ".kvcb", scheme, o_.schemes.size() > 1));
  }

  int run() {
    try {
      collect();
      if (common_.dry_run) return 0;
      fit();
      if (!run_.first()) return 0;  // the rest is rank 0's
      if (!o_.archs.empty()) compile();
      if (o_.evaluate) evaluate();
      write_html();
    } catch (const kvcc::cli::StageFailed& failed) {
      return report_failure(failed, common_);
    }
    print();
    return 0;
  }

 private:
  // The options of later stages are checked before hours of the earlier ones.

  /// For collect and fit; "": theirs to choose, as they know how many ranks share the machine.
  std::string threads() const { return run_.launch.alone() || threads_given_ ? std::to_string(common_.threads) : ""; }

  bool calibrates_on_self() const { return o_.text.datasets.size() == 1 && o_.text.datasets[0] == "self"; }

  void check_evaluation() {
    if (!o_.evaluate) return;
    std::vector<std::string> files = o_.eval_text;
    if (!o_.eval_ids.empty()) files.push_back(o_.eval_ids);
    for (const std::string& file : files)
      if (!fs::is_regular_file(file)) throw kvcc::bad_input(file, "no such file", "evaluation text or token ids");
    eval_dataset_ = o_.eval_dataset;
    if (eval_dataset_.empty() && files.empty()) eval_dataset_ = calibrates_on_self() ? "self" : "wikitext-2:evaluation";
    if (!eval_dataset_.empty() && eval_dataset_ != "self") {
      eval_sha256_ = fs::is_regular_file(eval_dataset_)
                         ? kvcc::sha256_file(eval_dataset_)
                         : kvcc::resolve_dataset(eval_dataset_, common_.cache_dir).sha256;
    }
  }

  void check_archs() {
    if (o_.archs.empty()) return;
    const kvcc::codegen::Archs archs = kvcc::codegen::parse_archs(o_.archs);
    // Without a compiler the rest is still worth having (DESIGN.md, "Failure").
    const auto warn = [](const kvcc::Error& error) { spdlog::warn("kernels will not be compiled: {}", error.what()); };
    try {
      if (!archs.gpu.empty()) kvcc::codegen::check_archs(kvcc::codegen::find_nvcc(), archs.gpu);
      if (archs.cpu) kvcc::codegen::find_cxx();
      compile_ = true;
    } catch (const kvcc::codegen::NoNvcc& error) {
      warn(error);
    } catch (const kvcc::codegen::NoCxx& error) {
      warn(error);
    }
  }

  void collect() {
    std::vector<std::string> a{o_.model,
                               "-o",
                               base_ + ".acts",
                               "--samples",
                               std::to_string(o_.samples),
                               "--seqlen",
                               std::to_string(o_.seqlen),
                               "--seed",
                               std::to_string(o_.seed),
                               "--dtype",
                               o_.dtype,
                               "--acts-dtype",
                               o_.acts_dtype,
                               "--recompute",
                               o_.recompute,
                               "--on-nonfinite",
                               o_.on_nonfinite,
                               "--cache-dir",
                               common_.cache_dir};
    append(a, "--threads", threads());
    if (o_.beyond_context) a.push_back("--beyond-context");
    append(a, "--max-memory", o_.max_memory);
    append_text(a, o_.text);
    a.push_back(common_.force ? "--force" : "--resume");
    if (common_.dry_run) a.push_back("--dry-run");
    if (common_.json) a.push_back("--json");
    const kvcc::cli::StageResult result = chain_stage("collect", a, common_);
    if (common_.dry_run) std::fputs(result.output.c_str(), stdout);
  }

  void fit() {
    std::vector<std::string> a{base_ + ".acts", "-o", o_.schemes.size() == 1 ? base_ + ".kvcb" : base_, "--json"};
    append(a, "--threads", threads());
    for (const std::string& scheme : o_.schemes) append(a, "--scheme", scheme);
    a.push_back(common_.force ? "--force" : "--resume");
    const kvcc::cli::StageResult result = chain_stage("fit", a, common_);
    if (!run_.first()) return;
    const Json document = stage_document("fit", result.output);
    // A fit that was skipped keeps the seconds of the run that did it.
    Json record = read_record(base_ + ".fit.json");
    for (const Json& row : document.at("results")) {
      const std::string sha = row.at("content_sha256");
      if (!row.value("skipped", false)) record[sha] = row.at("fit_seconds");
    }
    kvcc::write_if_different(base_ + ".fit.json", record.dump(1) + "\n");
    fit_seconds_ = record;
    for (const std::string& artifact : artifacts_) books_.push_back(kvcc::read_codebook(artifact));
  }

  void compile() {
    for (const std::string& artifact : artifacts_) {
      const std::string folder = fs::path(artifact).replace_extension().string() + ".kernels";
      std::vector<std::string> a{
          artifact,      "--arch",          o_.archs, "-o", folder, "--threads", std::to_string(common_.threads),
          "--cache-dir", common_.cache_dir, "--json"};
      if (compile_) {
        kernels_.push_back(stage_document("compile", chain_stage("compile", a, common_).output));
        kernels_.back()["folder"] = folder;
      } else {
        spdlog::warn(
            "no kernels of {}: no compiler; their sources can be had with: kvcc compile {} --arch {} -o {} "
            "--emit-only",
            artifact, artifact, o_.archs, folder);
        kernels_.push_back(Json::object());
      }
    }
  }

  std::string evaluation_key(const std::vector<std::string>& arguments) const {
    kvcc::Sha256 key;
    key.update(KVCC_VERSION);
    for (const std::string& argument : arguments) key.update(argument).update("\n");
    for (const kvcc::Codebook& book : books_) key.update(book.content_sha256).update("\n");
    if (!o_.eval_ids.empty()) key.update(kvcc::sha256_file(o_.eval_ids));
    for (const std::string& file : o_.eval_text) key.update(kvcc::sha256_file(file));
    return key.hex();
  }

  void evaluate() {
    std::vector<std::string> a{
        o_.model,    "--windows", std::to_string(o_.windows), "--seqlen", std::to_string(o_.eval_seqlen), "--bos",
        o_.text.bos, "--json"};
    append(a, "--dataset", eval_dataset_);
    if (o_.beyond_context) a.push_back("--beyond-context");
    append(a, "--ids", o_.eval_ids);
    for (const std::string& file : o_.eval_text) append(a, "--text", file);
    for (const std::string& artifact : artifacts_) append(a, "--codebook", artifact);
    std::vector<std::string> identity = a;
    if (!eval_sha256_.empty()) identity.push_back(eval_sha256_);
    const std::string key = evaluation_key(identity);
    const std::string path = base_ + ".eval.json";
    evaluation_ = read_record(path);
    if (!common_.force && is_evaluation(evaluation_) && evaluation_.value("key", Json()) == key) {
      spdlog::info("eval: {} is up to date", path);
      return;
    }
    a.insert(a.end(), {"--threads", std::to_string(common_.threads), "--cache-dir", common_.cache_dir});
    evaluation_ = stage_document("eval", chain_stage("eval", a, common_).output);
    evaluation_["key"] = key;
    kvcc::write_text_file(path, evaluation_.dump(1) + "\n");
  }

  /// Also of an evaluation that was up to date.
  void write_html() const {
    if (o_.html.empty()) return;
    Json document = evaluation_;
    document.erase("key");
    kvcc::write_text_file(o_.html, kvcc::evaluation_html(document));
    spdlog::info("{}: the report", o_.html);
  }

  /// The evaluation's row of an artifact, or null.
  Json evaluation_row(size_t i) const {
    if (!evaluation_.contains("results")) return nullptr;
    for (const Json& row : evaluation_.at("results"))
      if (row.value("codebook", "") == artifacts_[i]) return row;
    return nullptr;
  }

  void print() const {
    Json document{{"schema_version", 1}, {"model", o_.model}, {"activations", base_ + ".acts"}};
    document["results"] = Json::array();
    std::vector<std::vector<std::string>> rows{
        {"scheme", "bits", "effective", "perplexity", "dNLL", "KL", "top-1", "fit s", "artifact"}};
    const auto number = [](const Json& row, const char* key, const char* format) -> std::string {
      if (!row.is_object() || !row.contains(key) || !row[key].is_number()) return "-";
      char text[64];
      std::snprintf(text, sizeof text, format, row[key].get<double>());
      return text;
    };
    if (evaluation_.contains("results"))
      for (const Json& row : evaluation_.at("results"))
        if (row.at("scheme") == "fp") {
          document["full_precision"] = row;
          rows.push_back({"fp", "16", "16", number(row, "perplexity", "%.4f"), "0", "0", "1", "-", "-"});
        }
    for (size_t i = 0; i < artifacts_.size(); ++i) {
      const kvcc::Codebook& book = books_[i];
      const Json row = evaluation_row(i);
      const kvcc::EffectiveBitsQuery query = kvcc::bits_query(book);
      Json result{{"scheme", o_.schemes[i]},
                  {"codebook", artifacts_[i]},
                  {"content_sha256", book.content_sha256},
                  {"nominal_bits", kvcc::nominal_bits(book.scheme)},
                  {"effective_bits", kvcc::effective_bits(book.scheme, book.model.shape, query).total}};
      for (const char* key : {"nll", "perplexity", "dnll", "kl", "kl_se", "top1_agreement"})
        if (row.is_object() && row.contains(key)) result[key] = row[key];
      if (fit_seconds_.contains(book.content_sha256)) result["fit_seconds"] = fit_seconds_[book.content_sha256];
      result["artifact_bytes"] = fs::file_size(artifacts_[i]);
      if (i < kernels_.size() && kernels_[i].contains("folder")) result["kernels"] = kernels_[i]["folder"];
      rows.push_back({o_.schemes[i], number(result, "nominal_bits", "%g"), number(result, "effective_bits", "%.3f"),
                      number(result, "perplexity", "%.4f"), number(result, "dnll", "%.4f"),
                      number(result, "kl", "%.4f"), number(result, "top1_agreement", "%.4f"),
                      number(result, "fit_seconds", "%.1f"), kvcc::human_bytes(fs::file_size(artifacts_[i]))});
      document["results"].push_back(std::move(result));
    }
    if (common_.json)
      kvcc::cli::print_json(document);
    else
      std::fputs(kvcc::cli::table(rows).c_str(), stdout);
  }

  Options o_;
  const kvcc::cli::RankedRun& run_;
  const Common& common_;
  bool threads_given_;
  std::string base_, eval_dataset_, eval_sha256_;
  bool compile_ = false;  ///< asked for, and there is an nvcc
  std::vector<std::string> artifacts_;
  std::vector<kvcc::Codebook> books_;
  std::vector<Json> kernels_;
  Json fit_seconds_ = Json::object(), evaluation_ = Json::object();
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const CLI::App* parsed = nullptr;
  using namespace kvcc::cli;
  return run(
      argc, argv, "calibrate",
      "collect, fit, and on request compile and evaluate a model; what is done is kept, with or without --resume",
      kJson | kForce | kThreads | kDryRun | kCacheDir | kResume,
      [&](CLI::App& app) {
        define(app, options);
        parsed = &app;
      },
      [&](const Common& common) {
        RankedRun ranked{kvcc::read_launch(), nullptr, common};
        if (!ranked.first()) ranked.common.quiet = true;
        return Calibration(options, ranked, parsed->count("--threads") > 0).run();
      });
}
