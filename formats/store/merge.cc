#include "formats/store/merge.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/paths.h"
#include "formats/store/activations_manifest.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;

auto order(const ActivationsSource& s) { return std::tie(s.text_sha256, s.text_flavour, s.seed, s.text_name); }

/// A sample with all that its place among the others goes by.
struct Candidate {
  std::string ids_sha256, shards_sha256;
  ActivationsSource source;
  int64_t offset = 0, length = 0;
  int stated = 0;
  MergePlan::Sample from;
  auto key() const { return std::tuple(ids_sha256, shards_sha256, order(source), offset, stated); }
};

/// What all runs must agree in: the settings without text, seed and samples, which merging is there to join.
ActivationsSettings common_part(ActivationsSettings settings) {
  settings.text_sha256 = settings.text_flavour = "";
  settings.samples = settings.seed = 0;
  settings.offsets.clear();
  settings.sample_sha256.clear();
  settings.lengths.clear();
  settings.sources.clear();
  settings.parts.clear();
  settings.sample_part.clear();
  return settings;
}

/// The run that a sample is of; of a run on several texts its own text.
ActivationsSource source_of(const ActivationsSettings& settings, size_t sample) {
  if (!settings.sources.empty()) return settings.sources.at(static_cast<size_t>(settings.sample_source.at(sample)));
  if (settings.parts.empty()) {
    return {settings.text_name, settings.text_sha256, settings.text_flavour, settings.seed};
  }
  const ActivationsPart& part = settings.parts.at(static_cast<size_t>(settings.sample_part.at(sample)));
  return {part.text_name, part.text_sha256, part.text_flavour, settings.seed};
}

Candidate candidate(const MergePlan& plan, int input, int sample) {
  const ActivationsReader& reader = plan.readers[static_cast<size_t>(input)];
  const ActivationsSettings& settings = reader.settings();
  const auto at = static_cast<size_t>(sample);
  Candidate out;
  out.from = {input, sample};
  out.ids_sha256 = settings.sample_sha256.at(at);
  out.offset = settings.offsets.at(at);
  out.stated = reader.stated_sample(sample);
  out.length = settings.length(sample);
  out.source = source_of(settings, at);
  Sha256 hash;
  for (int layer = 0; layer < settings.model.shape.layers; ++layer) {
    hash.update(reader.shard_entry(sample, layer).sha256);
  }
  out.shards_sha256 = hash.hex();
  return out;
}

std::string name_of(const MergePlan& plan, const Candidate& sample) {
  return fmt::format("{} sample {}", plan.inputs[static_cast<size_t>(sample.from.input)], sample.from.number);
}

void treat_duplicates(MergePlan& plan, std::vector<Candidate>& samples, Duplicates duplicates) {
  if (duplicates == Duplicates::keep) return;
  std::vector<Candidate> kept;
  std::vector<std::string> pairs;
  for (Candidate& sample : samples) {
    if (kept.empty() || kept.back().ids_sha256 != sample.ids_sha256) {
      kept.push_back(std::move(sample));
      continue;
    }
    plan.dropped.push_back(name_of(plan, sample));
    pairs.push_back(fmt::format("{} is {}", name_of(plan, sample), name_of(plan, kept.back())));
  }
  if (duplicates == Duplicates::refuse && !pairs.empty()) {
    const size_t shown = std::min<size_t>(pairs.size(), 5);
    std::string text = fmt::format("{}", fmt::join(pairs.begin(), pairs.begin() + static_cast<long>(shown), "; "));
    if (pairs.size() > shown) text += fmt::format("; and {} more", pairs.size() - shown);
    throw bad_input(plan.inputs[static_cast<size_t>(samples.front().from.input)],
                    fmt::format("samples of the same tokens: {}", text), "each text once",
                    "--duplicates drop keeps one of each, --duplicates keep counts them all");
  }
  samples = std::move(kept);
}

/// The one value of all, or `several`.
template <typename T, typename Get>
T common_value(const std::vector<ActivationsSource>& sources, T several, Get get) {
  const T first = get(sources.front());
  const bool same = std::all_of(sources.begin(), sources.end(), [&](const auto& s) { return get(s) == first; });
  return same ? first : several;
}

void set_sources(ActivationsSettings& settings, const std::vector<Candidate>& samples) {
  const auto before = [](const ActivationsSource& a, const ActivationsSource& b) { return order(a) < order(b); };
  std::set<ActivationsSource, decltype(before)> distinct(before);
  for (const Candidate& sample : samples) distinct.insert(sample.source);
  settings.sources.assign(distinct.begin(), distinct.end());
  settings.samples = static_cast<int64_t>(samples.size());
  for (auto* list : {&settings.sample_source, &settings.sample_number}) list->clear();
  settings.offsets.clear();
  settings.sample_sha256.clear();
  settings.lengths.clear();
  settings.parts.clear();
  settings.sample_part.clear();
  const bool one_length =
      std::all_of(samples.begin(), samples.end(), [&](const Candidate& s) { return s.length == settings.seqlen; });
  for (const Candidate& sample : samples) {
    if (!one_length) settings.lengths.push_back(sample.length);
    const auto source = std::find(settings.sources.begin(), settings.sources.end(), sample.source);
    settings.sample_source.push_back(static_cast<int>(source - settings.sources.begin()));
    settings.sample_number.push_back(sample.stated);
    settings.offsets.push_back(sample.offset);
    settings.sample_sha256.push_back(sample.ids_sha256);
  }
  std::set<std::string> names, hashes;
  for (const ActivationsSource& source : settings.sources) {
    names.insert(source.text_name);
    hashes.insert(source.text_sha256);
  }
  settings.text_name = fmt::format("{}", fmt::join(names, ", "));
  settings.text_sha256 =
      hashes.size() == 1 ? *hashes.begin() : sha256_hex(fmt::format("{}\n", fmt::join(hashes, "\n")));
  settings.text_flavour =
      common_value<std::string>(settings.sources, "mixed", [](const auto& source) { return source.text_flavour; });
  settings.seed = common_value<int64_t>(settings.sources, -1, [](const auto& source) { return source.seed; });
}

dev_t device_of(const std::string& folder) {
  struct stat info = {};
  return ::stat(nearest_existing(folder).c_str(), &info) == 0 ? info.st_dev : 0;
}

}  // namespace

MergePlan plan_merge(const std::vector<std::string>& inputs, Duplicates duplicates) {
  if (inputs.size() < 2) throw Error(ErrorKind::usage, "merge", "fewer than two folders", "A.acts B.acts …");
  MergePlan plan;
  plan.inputs = inputs;
  for (const std::string& input : inputs) plan.readers.emplace_back(input);
  plan.settings = plan.readers.front().settings();
  const ActivationsSettings wanted = common_part(plan.settings);
  std::vector<Candidate> samples;
  int64_t missing = 0;  // that the runs were asked for and did not get
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ActivationsSettings& settings = plan.readers[i].settings();
    const std::vector<std::string> differences =
        settings_difference(wanted, common_part(settings), "in " + inputs.front(), "here");
    if (!differences.empty()) {
      throw bad_input(inputs[i],
                      fmt::format("cannot be joined with {}: {}", inputs.front(), fmt::join(differences, "; ")),
                      "runs of one model, tokenizer, length and type", "collect it again with the same settings");
    }
    plan.settings.model.name = std::min(plan.settings.model.name, settings.model.name);
    missing += std::max<int64_t>(0, settings.samples_asked - settings.samples);
    for (int s = 0; s < settings.samples; ++s) samples.push_back(candidate(plan, static_cast<int>(i), s));
  }
  std::sort(samples.begin(), samples.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(a.key(), a.from.input, a.from.number) < std::tuple(b.key(), b.from.input, b.from.number);
  });
  treat_duplicates(plan, samples, duplicates);
  plan.settings.samples_asked = 0;
  set_sources(plan.settings, samples);
  if (missing > 0) plan.settings.samples_asked = plan.settings.samples + missing;
  for (const Candidate& sample : samples) {
    plan.samples.push_back(sample.from);
    const ActivationsReader& reader = plan.readers[static_cast<size_t>(sample.from.input)];
    for (int layer = 0; layer < plan.settings.model.shape.layers; ++layer) {
      plan.bytes += reader.shard_entry(sample.from.number, layer).bytes;
    }
  }
  return plan;
}

uint64_t merge_disk_bytes(const MergePlan& plan, const std::string& output, bool copy) {
  const dev_t device = device_of(output);
  std::vector<bool> links;
  for (const std::string& input : plan.inputs) links.push_back(!copy && device_of(input) == device);
  uint64_t bytes = 0;
  for (const MergePlan::Sample& sample : plan.samples) {
    if (links[static_cast<size_t>(sample.input)]) continue;
    for (int layer = 0; layer < plan.settings.model.shape.layers; ++layer) {
      bytes += plan.readers[static_cast<size_t>(sample.input)].shard_entry(sample.number, layer).bytes;
    }
  }
  return bytes;
}

MergeReport merge_activations(const MergePlan& plan, const std::string& output, const MergeOptions& options,
                              const std::function<void()>& done) {
  std::error_code error;
  for (const std::string& input : plan.inputs) {
    if (fs::equivalent(input, output, error)) {
      throw Error(ErrorKind::usage, output, "is one of the folders to join", "another folder for the result");
    }
    if (lies_in(output, input)) {
      throw Error(ErrorKind::usage, output, "lies in " + input + ", one of the folders to join",
                  "a folder outside of them");
    }
  }
  check_disk_space(output, merge_disk_bytes(plan, output, options.copy),
                   "free some space, or write to the file system of the inputs, where links take none");
  MergeReport report;
  {
    ActivationsWriter writer(output, plan.settings, options.resume, options.force);
    const int layers = plan.settings.model.shape.layers;
    for (size_t s = 0; s < plan.samples.size(); ++s) {
      const MergePlan::Sample& from = plan.samples[s];
      const ActivationsReader& reader = plan.readers[static_cast<size_t>(from.input)];
      for (int layer = 0; layer < layers; ++layer) {
        check_interrupt();
        if (writer.has(static_cast<int>(s), layer)) {
          ++report.kept;
        } else {
          const bool linked = writer.adopt(static_cast<int>(s), layer, reader.shard_file(from.number, layer),
                                           reader.shard_entry(from.number, layer), options.copy);
          ++(linked ? report.linked : report.copied);
        }
        if (done) done();
      }
    }
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      if (ActivationsReader(plan.inputs[i]).content_sha256() == plan.readers[i].content_sha256()) continue;
      throw bad_input(plan.inputs[i], "changed while it was read", "", "merge again when nothing writes it");
    }
    writer.finish();
  }
  report.content_sha256 = ActivationsReader(output).content_sha256();
  return report;
}

}  // namespace kvcc
