// Made activations and a naive fit to compare with.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "calib/fit/fit.h"
#include "calib/fit/kmeans1d.h"

namespace kvcc {

struct MadeLayer {
  int64_t samples = 3, seqlen = 40;
  int heads = 2, dim = 6, value_dim = 5;
  std::vector<float> key, key_grad, value, value_grad;

  LayerActivations view() const {
    std::vector<int64_t> starts;
    for (int64_t s = 0; s <= samples; ++s) starts.push_back(s * seqlen);
    return {starts, heads, dim, value_dim, key, key_grad, value, value_grad, 7};
  }
};

/// Channels of different offset and width, heavy first tokens, gradients of very unequal size.
inline MadeLayer made_layer(int64_t samples = 3, int64_t seqlen = 40, uint32_t seed = 1) {
  MadeLayer layer;
  layer.samples = samples;
  layer.seqlen = seqlen;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::vector<float>& x, std::vector<float>& g, int dim) {
    for (int64_t row = 0; row < samples * seqlen; ++row) {
      const bool first = row % seqlen == 0;
      for (int c = 0; c < layer.heads * dim; ++c) {
        x.push_back((first ? 8.0f : 1.0f) * normal(random) * (1 + c % 3) + 2.0f * (c % 4) - 3);
        g.push_back((first ? 20.0f : 1.0f) * normal(random) * std::exp(normal(random)));
      }
    }
  };
  fill(layer.key, layer.key_grad, layer.dim);
  fill(layer.value, layer.value_grad, layer.value_dim);
  return layer;
}

inline Scheme default_scheme(const char* text = "kvcc-nuq3-1%-sink1") { return parse_scheme(text); }

inline TensorFit fit_one(const MadeLayer& layer, const Scheme& scheme, bool key) {
  const LayerFit fit = fit_layer(layer.view(), std::vector<Scheme>{scheme}).front();
  return key ? fit.key : fit.value;
}

}  // namespace kvcc
