#include "formats/store/subset.h"

#include <algorithm>

#include "formats/core/error.h"

namespace kvcc {

void subset_activations(const ActivationsReader& from, int64_t samples, const std::string& output) {
  ActivationsSettings settings = from.settings();
  if (samples < 1 || samples > settings.samples) {
    throw Error(ErrorKind::usage, output, std::to_string(samples) + " samples",
                "1 to " + std::to_string(settings.samples));
  }
  if (!settings.sources.empty()) throw bad_input(output, "merged activations have no order of samples");
  const auto count = static_cast<size_t>(samples);
  for (size_t s = 0; s < count; ++s) {
    if (from.stated_sample(static_cast<int>(s)) == static_cast<int>(s)) continue;
    throw bad_input(output, "samples were left out of the run", "all of the first " + std::to_string(samples));
  }
  settings.samples = samples;
  settings.samples_asked = 0;
  settings.offsets.resize(count);
  settings.sample_sha256.resize(count);
  if (!settings.lengths.empty()) settings.lengths.resize(count);
  const bool one_length = std::all_of(settings.lengths.begin(), settings.lengths.end(),
                                      [&](int64_t length) { return length == settings.seqlen; });
  if (one_length) settings.lengths.clear();
  if (!settings.parts.empty()) {
    settings.sample_part.resize(count);
    for (ActivationsPart& part : settings.parts) part.tokens = 0;
    for (size_t s = 0; s < count; ++s) {
      settings.parts[static_cast<size_t>(settings.sample_part[s])].tokens += settings.length(static_cast<int64_t>(s));
    }
  }
  ActivationsWriter writer(output, settings, true, false);
  for (int s = 0; s < samples; ++s) {
    for (int layer = 0; layer < settings.model.shape.layers; ++layer) {
      check_interrupt();
      if (writer.has(s, layer)) continue;
      writer.adopt(s, layer, from.shard_file(s, layer), from.shard_entry(s, layer), false);
    }
  }
  writer.finish();
}

}  // namespace kvcc
