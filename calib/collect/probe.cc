#include "calib/collect/probe.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <tuple>

#include "calib/collect/sample_pass.h"
#include "calib/model/decoder.h"
#include "calib/model/errors.h"

namespace kvcc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostTokens = 2048;  // a longer sample's time follows from shorter ones
constexpr double kWarm = 2.0;         // seconds from which on what happens once in a run is not seen any more

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Layers that cost the same.
std::tuple<bool, bool, bool> kind_of(const DecoderConfig& c, int layer) {
  const LayerKind& kind = c.kinds.at(static_cast<size_t>(layer));
  return {kind.attends, kind.sliding, kind.experts};
}

/// As few of the first layers as have one of each kind that is neither the first with a cache (whose input has no
/// gradient) nor the last of them (whose time can't be told from the loss').
int layers_to_run(const DecoderConfig& c) {
  const int all = static_cast<int>(c.layers), first = c.cached_layers().front();
  std::set<std::tuple<bool, bool, bool>> wanted, seen;
  for (int l = first + 1; l < all; ++l) wanted.insert(kind_of(c, l));
  int count = first + 1;
  while (count < all && seen.size() < wanted.size()) seen.insert(kind_of(c, count++));
  return std::min(all, count + 1);
}

struct LayerTimes {
  std::vector<double> forward, backward;  ///< [layers], seconds; the last one's backward is that of the loss too
  double total = 0;
};

LayerTimes time_sample(const Decoder& decoder, const SamplePass& kind, const std::vector<int32_t>& ids) {
  LayerTimes times;
  const auto layers = static_cast<size_t>(decoder.layers());
  times.backward.resize(layers, 0);
  size_t left = layers;
  const Clock::time_point start = Clock::now();
  Clock::time_point before = start;
  SamplePass pass = kind;
  pass.sample = "the probe";
  pass.done = [](int, const LayerActs&) {};
  pass.progress = [&](int units) {
    const double took = seconds_since(before);
    before = Clock::now();
    if (units == 1) {
      times.forward.push_back(took);
    } else {
      times.backward.at(--left) = took;
    }
  };
  run_sample(decoder, ids, pass);
  times.total = seconds_since(start);
  return times;
}

/// A sample through the whole model, whose first layers `decoder` has.
double sample_seconds(const Decoder& decoder, const SamplePass& pass, const std::vector<int32_t>& ids) {
  const DecoderConfig& c = decoder.config();
  LayerTimes times = time_sample(decoder, pass, ids);
  if (times.total < kWarm) times = time_sample(decoder, pass, ids);
  const int run = decoder.layers(), first = c.cached_layers().front();
  std::map<std::tuple<bool, bool, bool>, std::pair<double, int>> of_kind;  // seconds, layers
  for (int l = first + 1; l < run - 1; ++l) {
    auto& [seconds, count] = of_kind[kind_of(c, l)];
    seconds += times.forward[l] + times.backward[l];
    ++count;
  }
  double sample = times.total;
  for (int l = run; l < static_cast<int>(c.layers); ++l) {
    const auto found = of_kind.find(kind_of(c, l));
    if (found != of_kind.end()) sample += found->second.first / found->second.second;
  }
  return sample;
}

/// Of a sample of `length` tokens: a T + b T^2, by two shorter ones.
double by_length(double half, double whole, double most, double length) {
  const double square = std::max(0.0, (whole / most - half / (most / 2)) / (most / 2));
  return (whole / most + square * (length - most)) * length;
}

}  // namespace

double estimate_seconds(const ModelFiles& files, const ActivationsSettings& settings, const CollectOptions& options,
                        const CollectPlan& plan, const std::vector<int32_t>& ids) {
  return with_torch_errors([&] {
    at::set_num_threads(options.threads);
    const int all = static_cast<int>(files.config.layers), run = layers_to_run(files.config);
    const Clock::time_point start = Clock::now();
    const Decoder decoder(files, DecoderOptions{plan.streamed, options.bf16, run, options.device});
    const double loading = seconds_since(start) * all / run;
    SamplePass pass;
    pass.fisher = settings.fisher;
    pass.recompute = plan.recompute;
    const auto length = static_cast<double>(ids.size());
    double sample = 0;
    if (ids.size() <= kMostTokens) {
      sample = sample_seconds(decoder, pass, ids);
    } else {
      const double half = sample_seconds(decoder, pass, {ids.begin(), ids.begin() + kMostTokens / 2});
      const double whole = sample_seconds(decoder, pass, {ids.begin(), ids.begin() + kMostTokens});
      sample = by_length(half, whole, kMostTokens, length);
    }
    return loading + sample * static_cast<double>(settings.tokens()) / length;
  });
}

}  // namespace kvcc
