#include "calib/eval/key_errors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvcc {

void KeyErrors::add(int layer, const at::Tensor& exact, const at::Tensor& quantised) {
  const int64_t tokens = exact.size(0);
  if (tokens == 0) return;
  const at::Tensor a = exact.to(at::kDouble), b = quantised.to(at::kDouble);
  const at::Tensor error = (a - b).square().sum(-1);  // [T, H]
  const at::Tensor length = (a.norm(2, -1) - b.norm(2, -1)).square();
  const at::Tensor order = error.argsort(/*stable=*/true, 0, /*descending=*/true);
  const at::Tensor errors = error.gather(0, order).cumsum(0).sum(1), lengths = length.gather(0, order).cumsum(0).sum(1);
  for (size_t k = 0; k < kWorstPercents.size(); ++k) {
    const auto worst = static_cast<int64_t>(std::ceil(kWorstPercents[k] / 100 * static_cast<double>(tokens)));
    const int64_t last = std::clamp<int64_t>(worst, 1, tokens) - 1;
    magnitude[layer * kWorstPercents.size() + k] += lengths[last].item<double>();
    total[layer * kWorstPercents.size() + k] += errors[last].item<double>();
  }
}

void KeyErrors::add(const KeyErrors& other) {
  for (size_t i = 0; i < total.size(); ++i) {
    magnitude[i] += other.magnitude.at(i);
    total[i] += other.total.at(i);
  }
}

double KeyErrors::magnitude_share(int64_t layer, size_t percent) const {
  const size_t i = static_cast<size_t>(layer) * kWorstPercents.size() + percent;
  return total[i] > 0 ? magnitude[i] / total[i] : std::numeric_limits<double>::quiet_NaN();
}

double KeyErrors::magnitude_share(size_t percent) const {
  double sum = 0;
  int64_t counted = 0;
  for (int64_t layer = 0; layer < static_cast<int64_t>(total.size() / kWorstPercents.size()); ++layer) {
    const double share = magnitude_share(layer, percent);
    if (!std::isfinite(share)) continue;
    sum += share;
    ++counted;
  }
  return counted > 0 ? sum / static_cast<double>(counted) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace kvcc
