// What keys tell of values, and the fit of what they do not.
#include "calib/fit/key_regression.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <span>
#include <string>

#include "calib/fit/vector_fit.h"
#include "formats/codec/key_prediction.h"
#include "formats/codec/vector_codec.h"
#include "tests/calib/fit/fit_support.h"

namespace kvcc {
namespace {

TEST(KeyRegression, LeavesNothingThatKeysTell) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const int k = 6, n = 4, tokens = 900;
  std::vector<float> keys, values, weights;
  const std::vector<float> map = {1, 0, -2, 0, 0, 0.5f, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 1, -1, 2};
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < k; ++i) keys.push_back(normal(random) + 5);
    for (int i = 0; i < n; ++i) {
      float v = 0.3f * normal(random) - 7;
      for (int j = 0; j < k; ++j) v += map[i * k + j] * keys[t * k + j];
      values.push_back(v);
    }
    weights.push_back(t % 3 == 0 ? 0 : std::exp(normal(random)));
    if (t % 3 == 0) values.back() = 1e6f;  // has no part
  }
  const std::vector<float> found = regress_on_keys({keys.data(), k, k}, {values.data(), n, n}, weights);
  ASSERT_EQ(found.size(), map.size());
  for (size_t i = 0; i < map.size(); ++i) EXPECT_NEAR(found[i], map[i], 0.06) << i;
  // The rest of every value has no weighted covariance with any key: that is what least squares is.
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < k; ++j) {
      double total = 0, mean_key = 0, mean_rest = 0, product = 0;
      for (int t = 0; t < tokens; ++t) {
        if (weights[t] == 0) continue;
        double rest = values[t * n + i];
        for (int c = 0; c < k; ++c) rest -= double{found[i * k + c]} * keys[t * k + c];
        total += weights[t];
        mean_key += double{weights[t]} * keys[t * k + j];
        mean_rest += weights[t] * rest;
        product += weights[t] * rest * keys[t * k + j];
      }
      EXPECT_NEAR(product / total - mean_key / total * (mean_rest / total), 0, 1e-3) << i << " " << j;
    }
  }
}

TEST(KeyRegression, NothingToLearnFromTellsNothing) {
  const std::vector<float> keys(20, 3.0f), values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, weights(10, 1.0f), none(10, 0.0f);
  for (const float v : regress_on_keys({keys.data(), 2, 2}, {values.data(), 1, 1}, weights)) EXPECT_EQ(v, 0);
  for (const float v : regress_on_keys({keys.data(), 2, 2}, {values.data(), 1, 1}, none)) EXPECT_EQ(v, 0);
}

TEST(KeyPrediction, IsTheProductUnitByUnit) {
  const KeyPrediction prediction{2, 3, 2, {1, 2, 3, 4, 5, 6, -1, 0, 1, 0, 10, 0}};
  const std::vector<float> keys = {1, 1, 1, 2, 3, 4, 0, 0, 1, 1, 0, 0};
  const std::vector<float> expected = {6, 15, 2, 30, 3, 6, -1, 0};
  for (const int threads : {1, 2, 7}) {
    std::vector<float> out(8);
    prediction.predict(keys, out, threads);
    EXPECT_EQ(out, expected) << threads;
  }
}

/// A layer whose values are nearly a linear map of its keys.
MadeLayer telling_layer() {
  MadeLayer layer = made_layer(4, 150);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  const int k = layer.heads * layer.dim, n = layer.heads * layer.value_dim;
  std::vector<float> map(n * k);
  for (float& m : map) m = normal(random);
  for (int64_t t = 0; t < 600; ++t) {
    for (int i = 0; i < n; ++i) {
      float v = 0.1f * normal(random);
      for (int j = 0; j < k; ++j) v += map[i * k + j] * layer.key[t * k + j];
      layer.value[t * n + i] = v;
    }
  }
  return layer;
}

LayerVectors fit_vectors(const MadeLayer& layer, const char* predict, int threads) {
  const Scheme scheme = parse_scheme(
      std::string(
          "k=vq8@prerope/tensor,v=vq8@tensor,sink=1,weight=f,budget=2.5,k-rotate=fklt-layer,v-rotate=fklt-layer,") +
      "v-predict=" + predict);
  VectorFitSettings settings;
  settings.held_out = 1;
  settings.threads = threads;
  VectorFit fit({1, layer.heads, layer.heads, layer.dim, layer.value_dim}, std::span(&scheme, 1), settings);
  fit.tabulate(0, layer.view());
  fit.allocate();
  return fit.fit(0, layer.view())[0];
}

TEST(VectorFit, ValuesThatKeysTellCostLess) {
  const MadeLayer layer = telling_layer();
  const LayerVectors plain = fit_vectors(layer, "none", 2), told = fit_vectors(layer, "key", 2);
  EXPECT_TRUE(plain.value.from_key.empty() && plain.key.from_key.empty() && told.key.from_key.empty());
  ASSERT_EQ(told.value.from_key.size(), static_cast<size_t>(layer.heads * layer.value_dim) * layer.heads * layer.dim);
  EXPECT_LT(told.value.predicted_held_out, 0.5 * plain.value.predicted_held_out);
}

TEST(VectorFit, PredictedLossIsThatOfWhatTheCacheGivesBack) {
  const MadeLayer layer = telling_layer();
  const LayerVectors fit = fit_vectors(layer, "key", 1);
  const int k = layer.heads * layer.dim, n = layer.heads * layer.value_dim;
  std::vector<float> keys(layer.key.size()), told(layer.value.size());
  make_codec(fit.key.quantiser)->round_trip(layer.key, keys, 1, "key");
  KeyPrediction{1, k, n, fit.value.from_key}.predict(keys, told, 1);
  std::vector<float> rest = layer.value, decoded(rest.size());
  for (size_t i = 0; i < rest.size(); ++i) rest[i] -= told[i];
  make_codec(fit.value.quantiser)->round_trip(rest, decoded, 1, "value");
  double sum = 0;
  for (int64_t t = 450; t < 600; ++t) {
    if (t % 150 == 0) continue;  // the sink
    double product = 0;
    for (int i = 0; i < n; ++i) {
      const int64_t at = t * n + i;
      product += double{layer.value_grad[at]} * (double{decoded[at]} + told[at] - layer.value[at]);
    }
    sum += product * product;
  }
  EXPECT_NEAR(fit.value.predicted_held_out, sum / 2 / 150, 1e-3 * sum / 2 / 150);
}

TEST(VectorFit, PredictionDependsOnNoThreads) {
  const MadeLayer layer = telling_layer();
  const LayerVectors one = fit_vectors(layer, "key", 1), five = fit_vectors(layer, "key", 5);
  EXPECT_EQ(one.value.from_key, five.value.from_key);
  EXPECT_EQ(one.value.quantiser.vectors, five.value.quantiser.vectors);
  EXPECT_EQ(one.value.quantiser.bits, five.value.quantiser.bits);
}

}  // namespace
}  // namespace kvcc
