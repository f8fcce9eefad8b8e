#include "calib/fit/excess.h"

#include <cmath>

namespace kvcc {
namespace {

constexpr double kPrior = 16;  ///< groups whose ratios are the model's, beside a tensor's own

}  // namespace

Excess::Excess(std::span<const HeldOutRatio> ratios) {
  std::map<int, Mean> levels;
  for (const HeldOutRatio& r : ratios) {
    if (r.bits != 0) continue;
    Mean& level = levels[r.tensor];
    level.sum += r.logarithm;
    level.count += 1;
  }
  const auto own = [&](const HeldOutRatio& r) { return r.logarithm - levels[r.tensor].of(0); };
  for (const HeldOutRatio& r : ratios) {
    Mean& mean = places_[{r.width, r.place, r.bits}];
    mean.sum += own(r);
    mean.count += 1;
  }
  for (const HeldOutRatio& r : ratios) {
    Mean& mean = tensors_[{r.tensor, r.width, r.bits}];
    mean.sum += own(r) - places_[{r.width, r.place, r.bits}].of(0);
    mean.count += 1;
  }
}

double Excess::factor(int tensor, int width, int place, int bits) const {
  double logarithm = 0;
  if (const auto found = places_.find({width, place, bits}); found != places_.end()) logarithm += found->second.of(0);
  if (const auto found = tensors_.find({tensor, width, bits}); found != tensors_.end()) {
    logarithm += found->second.of(kPrior);
  }
  return std::exp(logarithm);
}

}  // namespace kvcc
