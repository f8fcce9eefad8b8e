#include "calib/cli/eval_subjects.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "calib/cli/text_source.h"
#include "calib/eval/geometry.h"
#include "calib/eval/simulated_cache.h"
#include "formats/cli/output.h"
#include "formats/core/error.h"

namespace kvcc::cli {
namespace {

std::vector<std::vector<int32_t>> calibration_windows(const EvalSettings& settings, const ModelFiles& files,
                                                      const Common& common) {
  TextOptions text;
  text.bos = settings.text.bos;
  if (settings.calibration.ends_with(".npy")) {
    text.ids = settings.calibration;
  } else if (!settings.calibration.empty()) {
    text.datasets = {settings.calibration};
  }
  TextSource source(files, text, common, "wikitext-2");
  MixedSamples samples = source.cut(settings.calibration_samples, settings.seqlen);
  source.sample_self(samples, settings.seqlen, static_cast<uint64_t>(settings.seed));
  return std::move(samples.ids);
}

Scheme with_exact_tokens(const EvalSettings& settings, Scheme scheme) {
  if (settings.sink >= 0) scheme.sink = static_cast<int>(settings.sink);
  if (settings.tail >= 0) scheme.residual = static_cast<int>(settings.tail);
  return scheme;
}

/// Whether a preset goes with the model's geometry; of those that --schemes-all names, others are left out.
bool fits(const CacheShape& shape, const Scheme& scheme, const std::string& name) {
  try {
    codec_of(scheme, shape, CacheTensor::key, 0);
    codec_of(scheme, shape, CacheTensor::value, 0);
    return true;
  } catch (const Error& error) {
    spdlog::warn("{} is left out: {}", name, error.what());
    return false;
  }
}

void add_codebooks(std::vector<EvalSubject>& subjects, const EvalSettings& settings, const ModelFiles& files,
                   const ModelInfo& model, const std::string& weights_sha256) {
  for (const std::string& path : settings.codebooks) {
    Codebook codebook = read_codebook(path);
    check_geometry(path, codebook, model, files.config.cached_layers());
    if (codebook.model.weights_sha256 != model.weights_sha256) {
      spdlog::warn("{}: made from other weights ({}) of the same geometry as {}", path, codebook.model.name,
                   model.name);
    }
    if (const std::string& of = codebook.provenance.quantised_weights; !of.empty() && of != weights_sha256) {
      spdlog::warn("{}: fitted to quantised weights {} that it is not run on", path, of.substr(0, 12));
    }
    const Scheme scheme = with_exact_tokens(settings, codebook.scheme);
    std::string name = short_name(codebook.scheme);
    subjects.push_back({scheme, std::move(codebook), nullptr, path, std::move(name)});
  }
}

void add_schemes(std::vector<EvalSubject>& subjects, const EvalSettings& settings, const ModelInfo& model) {
  std::vector<std::string> names = settings.schemes;
  if (settings.all_schemes) {
    for (const std::string& name : preset_names()) names.push_back(name);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const Scheme scheme = parse_scheme(names[i]);
    const bool turns = scheme.needs_rotations() && (i < settings.schemes.size() || !settings.calibration.empty());
    if (scheme.needs_calibration() && !turns) {
      if (i >= settings.schemes.size()) continue;
      throw Error(ErrorKind::usage, "--scheme " + names[i], "needs statistics of the model",
                  "a scheme that works on-line, such as int4",
                  fmt::format("kvcc calibrate '{}' --scheme '{}' makes a codebook; then --codebook FILE",
                              settings.model, names[i]));
    }
    if (scheme.is_full()) continue;  // always there
    const Scheme exact = with_exact_tokens(settings, scheme);
    if (i >= settings.schemes.size() && !turns && !fits(model.shape, exact, names[i])) continue;
    const auto there = std::find_if(subjects.begin(), subjects.end(),
                                    [&](const auto& subject) { return !subject.codebook && subject.scheme == exact; });
    if (there == subjects.end()) {
      subjects.push_back({exact, std::nullopt, nullptr, "", short_name(scheme)});
    } else if (i < settings.schemes.size()) {
      spdlog::warn("--scheme {}: the same as {}, which is there already; it is run once", names[i], there->name);
    }
  }
}

}  // namespace

std::vector<EvalSubject> eval_subjects(const EvalSettings& settings, const ModelFiles& files, const ModelInfo& model,
                                       const std::string& weights_sha256) {
  std::vector<EvalSubject> subjects;
  add_codebooks(subjects, settings, files, model, weights_sha256);
  add_schemes(subjects, settings, model);
  return subjects;
}

void add_rotations(std::vector<EvalSubject>& subjects, const EvalSettings& settings, const ModelFiles& files,
                   const Common& common) {
  std::vector<std::pair<Scheme, std::shared_ptr<const SpectralRotations>>> made;
  std::vector<std::vector<int32_t>> windows;
  for (EvalSubject& subject : subjects) {
    if (!subject.scheme.needs_rotations()) continue;
    Scheme alike = subject.scheme;
    alike.sink = alike.residual = 0;
    const auto there = std::find_if(made.begin(), made.end(), [&](const auto& one) { return one.first == alike; });
    if (there != made.end()) {
      subject.rotations = there->second;
      continue;
    }
    if (windows.empty()) windows = calibration_windows(settings, files, common);
    Progress progress("rotations", windows.size(), common.quiet);
    subject.rotations =
        make_rotations(files, subject.scheme, windows, common.threads, [&](uint64_t done) { progress.set(done); });
    made.emplace_back(alike, subject.rotations);
  }
}

}  // namespace kvcc::cli
