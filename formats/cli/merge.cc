// kvcc merge: activations of several runs as one folder.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <utility>

#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/store/activations_manifest.h"
#include "formats/store/merge.h"

namespace {

using kvcc::cli::Common;
using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> inputs;
  std::string output, duplicates = "refuse";
  bool copy = false;
};

Json description(const kvcc::MergePlan& plan, const Options& options) {
  const kvcc::ActivationsSettings& settings = plan.settings;
  Json document{
      {"inputs", options.inputs},    {"output", options.output},
      {"samples", settings.samples}, {"tokens", settings.tokens()},
      {"bytes", plan.bytes},         {"disk_bytes", kvcc::merge_disk_bytes(plan, options.output, options.copy)},
      {"dropped", plan.dropped}};
  document["sources"] = Json::array();
  for (size_t i = 0; i < settings.sources.size(); ++i) {
    Json source = kvcc::source_json(settings.sources[i]);
    source["samples"] = std::count(settings.sample_source.begin(), settings.sample_source.end(), static_cast<int>(i));
    document["sources"].push_back(std::move(source));
  }
  return document;
}

int merge(const Options& options, const Common& common) {
  static const std::map<std::string, kvcc::Duplicates> kRules = {
      {"refuse", kvcc::Duplicates::refuse}, {"drop", kvcc::Duplicates::drop}, {"keep", kvcc::Duplicates::keep}};
  const kvcc::MergePlan plan = kvcc::plan_merge(options.inputs, kRules.at(options.duplicates));
  Json document = description(plan, options);
  const auto summary = [&](const char* verb) {
    const auto disk = document["disk_bytes"].get<uint64_t>();
    return fmt::format("{} {}: {} samples of {} tokens, {}, of which {} take new space{}\n", verb, options.output,
                       plan.settings.samples, plan.settings.seqlen, kvcc::human_bytes(plan.bytes),
                       disk == 0 ? "none" : kvcc::human_bytes(disk),
                       plan.dropped.empty() ? "" : fmt::format("; {} duplicates left out", plan.dropped.size()));
  };
  if (common.dry_run) {
    if (common.json) {
      kvcc::cli::print_json(document);
    } else {
      fmt::print("{}", summary("would write"));
    }
    return 0;
  }
  for (const std::string& name : plan.dropped) spdlog::info("left out, as its tokens are there already: {}", name);
  kvcc::MergeReport report;
  {
    kvcc::cli::Progress progress("merge", plan.samples.size() * plan.settings.model.shape.layers, common.quiet);
    report = kvcc::merge_activations(plan, options.output,
                                     {kRules.at(options.duplicates), options.copy, common.resume, common.force},
                                     [&] { progress.advance(); });
  }
  document["linked"] = report.linked;
  document["copied"] = report.copied;
  document["kept"] = report.kept;
  document["content_sha256"] = report.content_sha256;
  if (common.json) {
    kvcc::cli::print_json(document);
  } else {
    fmt::print("{}{} shards linked, {} copied, {} kept; sha256 {}\n", summary("wrote"), report.linked, report.copied,
               report.kept, report.content_sha256);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvcc::cli;
  Options options;
  const auto define = [&](CLI::App& app) {
    app.add_option("FOLDER", options.inputs, "Activations folders (NAME.acts) of one model, two or more")
        ->required()
        ->expected(2, 1'000'000);
    app.add_option("-o,--output", options.output, "Folder to write")->required();
    app.add_option("--duplicates", options.duplicates,
                   "Samples of the same tokens: refuse, drop (keep one of each) or keep (count them all)")
        ->check(CLI::IsMember({"refuse", "drop", "keep"}).description(""))
        ->capture_default_str();
    app.add_flag("--copy", options.copy, "Copy shards; without it they are hard links where the file system has them");
  };
  return run(argc, argv, "merge", "Join activations of runs over other text or from other machines",
             kJson | kResume | kForce | kDryRun, define, [&](const Common& common) { return merge(options, common); });
}
