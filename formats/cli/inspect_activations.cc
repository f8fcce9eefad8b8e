#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "formats/cli/inspect_parts.h"
#include "formats/cli/output.h"
#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/store/activations.h"
#include "formats/store/model_json.h"

namespace kvcc::cli {
namespace {

using nlohmann::ordered_json;

/// Of an activations folder that much is read without --samples.
constexpr uint64_t kReadAtOnce = uint64_t{1} << 30;

/// How many samples of the folder are read for its statistics.
int64_t samples_to_read(const InspectOptions& options, const ActivationsReader& reader, uint64_t bytes) {
  const int64_t all = reader.settings().samples;
  if (options.samples == 0) return all;
  if (options.samples > 0) return std::min(options.samples, all);
  const uint64_t each = std::max<uint64_t>(1, bytes / static_cast<uint64_t>(all));
  return std::clamp<int64_t>(static_cast<int64_t>(kReadAtOnce / each), 1, all);
}

}  // namespace

void inspect_activations(const InspectOptions& options, const Common& common) {
  if (!options.activations.empty()) {
    throw Error(ErrorKind::usage, "--activations", options.path + " is no artifact", "a .kvcb");
  }
  const ActivationsReader reader(options.path);
  const ActivationsSettings& settings = reader.settings();
  uint64_t bytes = 0;
  for (const auto& [key, entry] : reader.shards()) bytes += entry.bytes;
  const int64_t samples = samples_to_read(options, reader, bytes);
  ReportData data;
  {
    Progress progress("read", static_cast<uint64_t>(settings.model.shape.layers), common.quiet);
    data = activations_report(reader, samples, common.threads, [&] { progress.advance(); });
  }
  if (!data.rotated_problem.empty()) spdlog::warn("no ranges after RoPE: {}", data.rotated_problem);
  write_report(options, data, bytes);
  const std::vector<HeadReport> heads = select_heads(data.heads, options.filter);
  if (options.csv) {
    fmt::print("{}", heads_csv(heads));
    return;
  }
  if (common.json) {
    ordered_json document;
    document["path"] = options.path;
    document["bytes"] = bytes;
    document["kind"] = "activations";
    document["content_sha256"] = reader.content_sha256();
    document["model"] = to_json(settings.model);
    document["text"] = {
        {"name", settings.text_name}, {"sha256", settings.text_sha256}, {"flavour", settings.text_flavour}};
    document["tokenizer_sha256"] = settings.tokenizer_sha256;
    document["bos"] = settings.bos;
    document["samples"] = settings.samples;
    document["samples_asked"] = std::max(settings.samples, settings.samples_asked);
    document["samples_read"] = samples;
    document["seqlen"] = settings.seqlen;
    document["tokens"] = settings.tokens();
    if (const std::string sources = sources_json(settings); !sources.empty()) {
      document["sources"] = ordered_json::parse(sources);
    }
    document["seed"] = settings.seed;
    document["offsets"] = settings.offsets;
    document["compute_dtype"] = settings.compute_dtype;
    document["acts_dtype"] = settings.acts_dtype;
    document["fisher"] = settings.fisher;
    document["layer_index"] = settings.layer_index;
    document["shards"] = reader.shards().size();
    document["warnings"] = warnings_json(data);
    document["layers"] = layers_json(heads);
    print_json(document);
    return;
  }
  const TextStyle style = text_style();
  print_path(options.path);
  print_line("folder", fmt::format("activations, {} shards, {}", reader.shards().size(), human_bytes(bytes)), style);
  print_line("content", reader.content_sha256(), style);
  print_model(settings.model, style);
  print_line(
      "text",
      fmt::format("{} ({}, sha256 {})", settings.text_name, settings.text_flavour, short_hash(settings.text_sha256)),
      style);
  print_line("samples",
             fmt::format("{} of {}{} tokens, seed {}, bos {}", settings.samples,
                         settings.lengths.empty() ? "" : "at most ", settings.seqlen, settings.seed, settings.bos),
             style);
  print_line("stored",
             fmt::format("{}, computed in {}, {} Fisher gradients", settings.acts_dtype, settings.compute_dtype,
                         settings.fisher ? "with" : "without"),
             style);
  if (samples < settings.samples) {
    print_line("statistics",
               fmt::format("of the first {} of {} samples; --samples 0 reads them all", samples, settings.samples),
               style);
  }
  fmt::print("\n");
  print_heads(options, data, heads, style);
}

}  // namespace kvcc::cli
