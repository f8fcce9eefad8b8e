// What a fitted tensor of vector codebooks loses on the samples, fitted and held out.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "calib/fit/parallel.h"
#include "calib/fit/vector_fit.h"

namespace kvcc {

void VectorFit::measure(const LayerActivations& a, int tensor, const Scheme& scheme, std::span<const float> coded,
                        TensorVectors& out) const {
  const bool key = tensor == 0;
  const std::span<const float> x = key ? a.key : a.value, grad = key ? a.key_grad : a.value_grad;
  if (coded.empty()) coded = x;
  const int heads = shape_.kv_heads, dim = dim_of(tensor);
  const int64_t width = int64_t{heads} * dim;
  const std::shared_ptr<const TensorCodec> codec = make_codec(out.quantiser);
  struct Sums {
    double predicted = 0;
    std::vector<double> weighted, error, energy;
  };
  const auto samples = static_cast<int64_t>(a.starts.size()) - 1, used = samples - settings_.held_out;
  std::vector<Sums> sums(samples);
  parallel_for(static_cast<int>(samples), settings_.threads, [&](int s) {
    Sums& sum = sums[s];
    for (auto* v : {&sum.weighted, &sum.error, &sum.energy}) v->resize(heads);
    const int64_t all = a.starts[s + 1] - a.starts[s];
    const int64_t first = std::min<int64_t>(scheme.sink, all), tokens = all - first;
    const int64_t at = (a.starts[s] + first) * width;
    std::vector<float> decoded(tokens * width);
    codec->round_trip(coded.subspan(at, decoded.size()), decoded, 1, "layer " + std::to_string(a.layer), first);
    for (int64_t t = 0; t < tokens; ++t) {
      double product = 0;
      for (int64_t i = 0; i < width; ++i) {
        const double value = x[at + t * width + i], e = double{decoded[t * width + i]} - coded[at + t * width + i];
        const double g = grad.empty() ? 1 : grad[at + t * width + i];
        product += g * e;
        sum.weighted[i / dim] += g * g * e * e;
        sum.error[i / dim] += e * e;
        sum.energy[i / dim] += value * value;
      }
      sum.predicted += product * product;
    }
  });
  const auto mean = [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t s = begin; s < end; ++s) sum += sums[s].predicted;
    return end > begin && !grad.empty() ? 0.5 * sum / static_cast<double>(a.starts[end] - a.starts[begin])
                                        : std::numeric_limits<double>::quiet_NaN();
  };
  out.predicted_fitted = mean(0, used);
  out.predicted_held_out = mean(used, samples);
  constexpr double kNoError = 200;  // decibels
  for (int h = 0; h < heads; ++h) {
    double weighted = 0, error = 0, energy = 0;
    for (const Sums& sum : sums) {
      weighted += sum.weighted[h];
      error += sum.error[h];
      energy += sum.energy[h];
    }
    out.weighted_sse.push_back(static_cast<float>(weighted));
    const double ratio = error > 0 ? 10 * std::log10(energy / error) : kNoError;
    out.sqnr_db.push_back(static_cast<float>(std::clamp(ratio, -kNoError, kNoError)));
  }
}

}  // namespace kvcc
