#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>

namespace kvcc::reference {
namespace {

struct Turn {
  double cosine, sine;
};

/// turn(t, i): the rotation of pair i at position t.
template <class TurnAt>
Sums scores(std::span<const float> key, std::span<const float> query, int heads, int head_dim, int group, int rotary,
            bool interleaved, float multiplier, const TurnAt& turn_at) {
  const int64_t tokens = static_cast<int64_t>(key.size()) / heads / head_dim;
  Sums sums;
  sums.value.resize(int64_t{heads} * group * tokens);
  sums.magnitude.resize(sums.value.size());
  std::vector<double> turned(head_dim), size(head_dim);
  std::vector<Turn> turn(rotary / 2);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int i = 0; i < rotary / 2; ++i) turn[i] = turn_at(t, i);
    for (int h = 0; h < heads; ++h) {
      const float* k = key.data() + (t * heads + h) * head_dim;
      for (int d = 0; d < head_dim; ++d) {
        turned[d] = k[d];
        size[d] = std::fabs(turned[d]);
      }
      for (int i = 0; i < rotary / 2; ++i) {
        const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + rotary / 2;
        const auto [c, s] = turn[i];
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

}  // namespace

Sums key_scores(std::span<const float> key, std::span<const float> query, int heads, int head_dim, int group,
                const RopeTable& rope, float multiplier) {
  const int half = rope.rotary / 2;
  return scores(key, query, heads, head_dim, group, rope.rotary, rope.interleaved, multiplier, [&](int64_t t, int i) {
    return Turn{rope.cosine[t * half + i], rope.sine[t * half + i]};
  });
}

Sums key_scores(std::span<const float> key, std::span<const float> query, int heads, int head_dim, int group,
                const Rotation& rope, float multiplier) {
  const int rotary = static_cast<int>(rope.frequencies.size()) * 2;
  return scores(key, query, heads, head_dim, group, rotary, rope.interleaved, multiplier, [&](int64_t t, int i) {
    const double angle = static_cast<double>(t) * rope.frequencies[i];
    return Turn{std::cos(angle) * rope.factor, std::sin(angle) * rope.factor};
  });
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

AttentionSums attention(std::span<const float> key, std::span<const float> value, std::span<const float> query,
                        const AttentionShape& shape, const Rotation& rope) {
  const int64_t tokens = static_cast<int64_t>(key.size()) / shape.heads / shape.key_dim;
  const int64_t rows = int64_t{shape.heads} * shape.group, dim = shape.value_dim;
  const int64_t first = shape.window > 0 ? std::max<int64_t>(0, tokens - shape.window) : 0;
  const Sums score = key_scores(key, query, shape.heads, shape.key_dim, shape.group, rope, shape.multiplier);
  AttentionSums out;
  out.value.assign(rows * dim, 0.0);
  out.magnitude = out.sensitivity = out.value;
  out.peak.assign(rows, 0.0);
  out.sum.assign(rows, 0.0);
  std::vector<double> weight(tokens);
  for (int64_t row = 0; row < rows && first < tokens; ++row) {
    const double* s = score.value.data() + row * tokens;
    const double* size = score.magnitude.data() + row * tokens;
    const auto value_at = [&](int64_t t, int64_t d) {
      return static_cast<double>(value[(t * shape.heads + row / shape.group) * dim + d]);
    };
    out.peak[row] = *std::max_element(s + first, s + tokens);
    for (int64_t t = first; t < tokens; ++t) out.sum[row] += weight[t] = std::exp(s[t] - out.peak[row]);
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t i = row * dim + d;
      for (int64_t t = first; t < tokens; ++t) {
        out.value[i] += weight[t] / out.sum[row] * value_at(t, d);
        out.magnitude[i] += weight[t] / out.sum[row] * std::fabs(value_at(t, d));
      }
      for (int64_t t = first; t < tokens; ++t) {
        out.sensitivity[i] += weight[t] / out.sum[row] * size[t] * std::fabs(value_at(t, d) - out.value[i]);
      }
    }
  }
  return out;
}

}  // namespace kvcc::reference
