#include "kernels/reference/attention.h"

#include <cmath>

namespace kvcc::reference {

Sums key_scores(std::span<const float> key, std::span<const float> query, int heads, int head_dim, int group,
                const RopeTable& rope, float multiplier) {
  const int64_t tokens = static_cast<int64_t>(key.size()) / heads / head_dim;
  Sums sums;
  sums.value.resize(int64_t{heads} * group * tokens);
  sums.magnitude.resize(sums.value.size());
  std::vector<double> turned(head_dim), size(head_dim);
  const int half = rope.rotary / 2;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      const float* k = key.data() + (t * heads + h) * head_dim;
      for (int d = 0; d < head_dim; ++d) {
        turned[d] = k[d];
        size[d] = std::fabs(turned[d]);
      }
      for (int i = 0; i < half; ++i) {
        const int a = rope.interleaved ? 2 * i : i, b = rope.interleaved ? 2 * i + 1 : i + half;
        const double c = rope.cosine[t * half + i], s = rope.sine[t * half + i];
        turned[a] = k[a] * c - k[b] * s;
        turned[b] = k[b] * c + k[a] * s;
        size[a] = std::fabs(k[a] * c) + std::fabs(k[b] * s);
        size[b] = std::fabs(k[b] * c) + std::fabs(k[a] * s);
      }
      for (int g = 0; g < group; ++g) {
        const float* q = query.data() + (int64_t{h} * group + g) * head_dim;
        double sum = 0, magnitude = 0;
        for (int d = 0; d < head_dim; ++d) {
          sum += q[d] * turned[d];
          magnitude += std::fabs(q[d]) * size[d];
        }
        sums.value[(int64_t{h} * group + g) * tokens + t] = multiplier * sum;
        sums.magnitude[(int64_t{h} * group + g) * tokens + t] = std::fabs(multiplier) * magnitude;
      }
    }
  }
  return sums;
}

Sums value_mix(std::span<const float> value, std::span<const float> weights, int heads, int head_dim, int group) {
  const int64_t tokens = static_cast<int64_t>(value.size()) / heads / head_dim;
  Sums sums;
  sums.value.assign(int64_t{heads} * group * head_dim, 0.0);
  sums.magnitude = sums.value;
  for (int64_t row = 0; row < int64_t{heads} * group; ++row) {
    for (int64_t t = 0; t < tokens; ++t) {
      const double w = weights[row * tokens + t];
      const float* v = value.data() + (t * heads + row / group) * head_dim;
      for (int d = 0; d < head_dim; ++d) {
        sums.value[row * head_dim + d] += w * v[d];
        sums.magnitude[row * head_dim + d] += std::fabs(w * v[d]);
      }
    }
  }
  return sums;
}

}  // namespace kvcc::reference
