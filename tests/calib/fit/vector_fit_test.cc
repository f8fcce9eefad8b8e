// Transforms, and the whole fit of vector codebooks on made layers.
#include "calib/fit/vector_fit.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "formats/core/effective_bits.h"
#include "formats/core/error.h"
#include "tests/calib/fit/fit_support.h"

namespace kvcc {
namespace {

using ::testing::HasSubstr;

UnitRows rows_of(const MadeLayer& layer, const std::vector<uint8_t>& fitted) {
  const int size = layer.heads * layer.dim;
  return {layer.samples * layer.seqlen, size, size, layer.key.data(), layer.key_grad.data(), fitted};
}

std::vector<uint8_t> without_first(const MadeLayer& layer) {
  std::vector<uint8_t> fitted(layer.samples * layer.seqlen, 1);
  for (size_t t = 0; t < fitted.size(); t += layer.seqlen) fitted[t] = 0;
  return fitted;
}

TEST(FisherTransform, WhitensTheMetricAndDecorrelates) {
  const MadeLayer layer = made_layer(6, 200);
  const std::vector<uint8_t> fitted = without_first(layer);
  const UnitRows rows = rows_of(layer, fitted);
  const std::vector<float> weights = token_weights(rows);
  double mean = 0;
  for (int64_t t = 0; t < rows.tokens; ++t) mean += fitted[t] ? weights[t] : 0;
  EXPECT_NEAR(mean / (6 * 199), 1, 1e-4) << "weights are relative";
  const UnitTransform t = fisher_transform(rows, weights, {Rotation::fklt_layer, 0, 0.0}, "made");
  const int n = rows.size;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      double product = 0;
      for (int k = 0; k < n; ++k) product += double{t.inverse[i * n + k]} * t.forward[k * n + j];
      EXPECT_NEAR(product, i == j, 1e-4) << "inverse";
    }
  }
  // forward^T forward is the metric: the mean of g g^T of tokens divided by the root of their weight.
  std::vector<double> metric(n * n), covariance(n * n), z(n);
  double total = 0;
  int64_t count = 0;
  for (int64_t row = 0; row < rows.tokens; ++row) {
    if (!fitted[row] || !(weights[row] > 0)) continue;
    ++count;
    total += weights[row];
    for (int i = 0; i < n; ++i) {
      z[i] = 0;
      for (int j = 0; j < n; ++j) {
        metric[i * n + j] += double{layer.key_grad[row * n + i]} * layer.key_grad[row * n + j] / double{weights[row]};
        z[i] += double{t.forward[i * n + j]} * (double{layer.key[row * n + j]} - t.mean[j]);
      }
    }
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) covariance[i * n + j] += weights[row] * z[i] * z[j];
    }
  }
  double energy = 0;
  for (int i = 0; i < n; ++i) energy += covariance[i * n + i] / total;
  for (int i = 0; i < n; ++i) {
    if (i > 0) {
      EXPECT_LE(covariance[i * n + i], covariance[(i - 1) * n + i - 1] * 1.001) << "sorted by energy";
    }
    for (int j = 0; j < n; ++j) {
      double product = 0;
      for (int k = 0; k < n; ++k) product += double{t.forward[k * n + i]} * t.forward[k * n + j];
      const double wanted = metric[i * n + j] / static_cast<double>(count);
      EXPECT_NEAR(product, wanted,
                  1e-3 * std::sqrt(metric[i * n + i] * metric[j * n + j]) / static_cast<double>(count));
      if (i != j) {
        EXPECT_NEAR(covariance[i * n + j] / total, 0, 1e-3 * energy) << i << " " << j;
      }
    }
  }
}

TEST(FisherTransform, TempersTheWeightsOfMeanAndCovarianceAlone) {
  const MadeLayer layer = made_layer(6, 200);
  const std::vector<uint8_t> fitted = without_first(layer);
  const UnitRows rows = rows_of(layer, fitted);
  const std::vector<float> weights = token_weights(rows);
  const UnitTransform plain = fisher_transform(rows, weights, {Rotation::fklt_layer, 0, 0.1, 1.0}, "made");
  const UnitTransform half = fisher_transform(rows, weights, {Rotation::fklt_layer, 0, 0.1, 0.5}, "made");
  std::vector<double> mean(rows.size);
  double total = 0;
  for (int64_t t = 0; t < rows.tokens; ++t) {
    if (!fitted[t]) continue;
    total += std::sqrt(weights[t]);
    for (int i = 0; i < rows.size; ++i) mean[i] += std::sqrt(weights[t]) * layer.key[t * rows.size + i];
  }
  for (int i = 0; i < rows.size; ++i) {
    EXPECT_NEAR(half.mean[i], mean[i] / total, 1e-4);
    for (int j = 0; j < rows.size; ++j) {  // forward^T forward is the metric, whatever the directions
      double a = 0, b = 0;
      for (int k = 0; k < rows.size; ++k) {
        a += double{plain.forward[k * rows.size + i]} * plain.forward[k * rows.size + j];
        b += double{half.forward[k * rows.size + i]} * half.forward[k * rows.size + j];
      }
      EXPECT_NEAR(a, b, 1e-3 * (std::abs(a) + 1e-4));
    }
  }
  EXPECT_NE(plain.mean, half.mean);
}

TEST(FisherTransform, GroupsChannelsThatBelongTogether) {
  // Channels 0, 5, 2, 7 are one signal; so are 1, 4, 3, 6.
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const int n = 8, tokens = 500;
  std::vector<float> x, grad;
  for (int t = 0; t < tokens; ++t) {
    const float a = normal(random), b = normal(random);
    for (int c = 0; c < n; ++c) {
      const bool first = c == 0 || c == 5 || c == 2 || c == 7;
      x.push_back((first ? a : b) * (c % 3 == 0 ? -1.0f : 1.0f) + 0.2f * normal(random));
      grad.push_back(normal(random));
    }
  }
  const std::vector<uint8_t> fitted(tokens, 1);
  const UnitRows rows{tokens, n, n, x.data(), grad.data(), fitted};
  const UnitTransform t = fisher_transform(rows, token_weights(rows), {Rotation::none, 4, 0.1}, "made");
  ASSERT_EQ(t.order.size(), 8u);
  std::vector<uint16_t> group(t.order.begin(), t.order.begin() + 4);
  std::sort(group.begin(), group.end());
  EXPECT_TRUE(group == (std::vector<uint16_t>{0, 2, 5, 7}) || group == (std::vector<uint16_t>{1, 3, 4, 6}));
  for (int i = 0; i < n; ++i) {
    for (int c = 0; c < n; ++c) {
      const bool own =
          std::find(t.order.begin() + i / 4 * 4, t.order.begin() + i / 4 * 4 + 4, c) != t.order.begin() + i / 4 * 4 + 4;
      if (!own) {
        EXPECT_EQ(t.forward[i * n + c], 0) << "a group mixes its own channels alone";
      }
    }
  }
}

std::vector<LayerVectors> fitted(const MadeLayer& layer, const std::vector<Scheme>& schemes, int threads = 1,
                                 int64_t held_out = 1) {
  VectorFitSettings settings;
  settings.held_out = held_out;
  settings.threads = threads;
  VectorFit fit({1, layer.heads, layer.heads, layer.dim, layer.value_dim}, schemes, settings);
  fit.tabulate(0, layer.view());
  fit.allocate();
  return fit.fit(0, layer.view());
}

/// vq of made layers, whose transforms' share of the bits is small only because nothing else is counted.
Scheme vector_scheme(double budget, const char* rotation = "fklt-layer") {
  const std::string turn = rotation;
  const std::string each = turn == "none" ? "{}-width=2" : "{}-rotate=" + turn;
  const auto of = [&](const char* tensor) {
    std::string text = each;
    return text.replace(0, 2, tensor);
  };
  return parse_scheme("k=vq8@prerope/tensor,v=vq8@tensor,sink=1,weight=f,budget=" + std::to_string(budget) + "," +
                      of("k") + "," + of("v"));
}

double codes(const LayerVectors& fit) {
  double bits = 0, elements = 0;
  for (const TensorVectors* tensor : {&fit.key, &fit.value}) {
    bits = std::accumulate(tensor->quantiser.bits.begin(), tensor->quantiser.bits.end(), bits);
    elements += tensor->quantiser.heads * tensor->quantiser.dim;
  }
  return bits / elements;
}

TEST(VectorFit, MoreBitsLoseLessAndKeepToTheBudget) {
  const MadeLayer layer = made_layer(4, 150);
  for (const char* rotation : {"fklt-layer", "fklt-head", "none"}) {
    const std::vector<LayerVectors> fits =
        fitted(layer, {vector_scheme(1, rotation), vector_scheme(2, rotation), vector_scheme(3.5, rotation)});
    double before = INFINITY;
    for (size_t i = 0; i < fits.size(); ++i) {
      const double budget = std::vector<double>{1, 2, 3.5}[i];
      EXPECT_LE(codes(fits[i]), budget);
      EXPECT_GE(codes(fits[i]), budget - 0.25) << rotation << " " << budget;
      const double predicted = fits[i].key.predicted_fitted + fits[i].value.predicted_fitted;
      EXPECT_LT(predicted, before);
      EXPECT_GT(fits[i].key.predicted_held_out, 0);
      before = predicted;
    }
    EXPECT_EQ(fits[0].key.order.size(), std::string(rotation) == "none" ? 12u : 0u);
  }
}

/// Fours of 8 bits hold 2 bits a coordinate, so that of 3.9 the last half of the coordinates could take no more than 2.
TEST(VectorFit, ManyBitsAreSpentInPairs) {
  const MadeLayer layer = made_layer(4, 150);
  const LayerVectors fit = fitted(layer, {vector_scheme(3.9)})[0];
  EXPECT_GE(codes(fit), 3.6);
  EXPECT_LE(codes(fit), 3.9);
  EXPECT_FALSE(VectorFit::together(vector_scheme(3.9), vector_scheme(3.4)));
  EXPECT_TRUE(VectorFit::together(vector_scheme(3.9), vector_scheme(3.8)));
}

TEST(VectorFit, PredictionIsTheDefinition) {
  const MadeLayer layer = made_layer(3, 60);
  const LayerVectors fit = fitted(layer, {vector_scheme(2)})[0];
  const auto codec = make_codec(fit.key.quantiser);
  std::vector<float> decoded = layer.key;
  codec->round_trip(layer.key, decoded, 1, "key");
  double sums[2] = {0, 0};
  const int n = layer.heads * layer.dim;
  for (int64_t t = 0; t < 180; ++t) {
    if (t % 60 == 0) continue;  // the sink
    double product = 0;
    for (int i = 0; i < n; ++i) {
      product += double{layer.key_grad[t * n + i]} * (double{decoded[t * n + i]} - layer.key[t * n + i]);
    }
    sums[t < 120 ? 0 : 1] += product * product;
  }
  EXPECT_NEAR(fit.key.predicted_fitted, sums[0] / 2 / 120, 1e-9 * sums[0]);
  EXPECT_NEAR(fit.key.predicted_held_out, sums[1] / 2 / 60, 1e-9 * sums[1]);
}

/// The coordinates of a Karhunen-Loeve transform come in the order of their variances.
TEST(VectorFit, EnergiesFall) {
  const MadeLayer layer = made_layer(3, 60);
  for (const char* rotation : {"fklt-layer", "fklt-head"}) {
    const LayerVectors fit = fitted(layer, {vector_scheme(2, rotation)})[0];
    const VectorQuantiser& q = fit.key.quantiser;
    const int n = layer.heads * layer.dim;
    ASSERT_EQ(fit.key.energy.size(), static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      EXPECT_GT(fit.key.energy[i], 0);
      if (i % q.size() > 0) {
        EXPECT_LE(fit.key.energy[i], fit.key.energy[i - 1] * 1.0001f) << rotation << " " << i;
      }
    }
  }
}

TEST(VectorFit, F41DependsOnNeitherThreadsNorCompany) {
  const MadeLayer layer = made_layer(3, 90);
  const std::vector<LayerVectors> alone = fitted(layer, {vector_scheme(2)}, 1);
  for (const int threads : {2, 5}) {
    const std::vector<LayerVectors> more = fitted(layer, {vector_scheme(3), vector_scheme(2)}, threads);
    EXPECT_EQ(more[1].key.quantiser.vectors, alone[0].key.quantiser.vectors);
    EXPECT_EQ(more[1].value.quantiser.forward, alone[0].value.quantiser.forward);
    EXPECT_EQ(more[1].value.quantiser.bits, alone[0].value.quantiser.bits);
    EXPECT_EQ(more[1].key.predicted_held_out, alone[0].key.predicted_held_out);
  }
}

TEST(VectorFit, WithoutGradientsItIsTheKltOfTheElements) {
  MadeLayer layer = made_layer(3, 60);
  layer.key_grad.clear();
  layer.value_grad.clear();
  Scheme scheme = vector_scheme(2);
  scheme.weight = FitWeight::none;
  const LayerVectors fit = fitted(layer, {scheme})[0];
  EXPECT_TRUE(std::isnan(fit.key.predicted_fitted));
  const int n = layer.heads * layer.dim;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      EXPECT_NEAR(fit.key.quantiser.forward[i * n + j], fit.key.quantiser.inverse[j * n + i], 1e-5) << "orthogonal";
    }
  }
}

TEST(VectorFit, F36NamesWhatIsNotFinite) {
  MadeLayer layer = made_layer(3, 20);
  layer.value[25 * 10 + 7] = NAN;
  try {
    fitted(layer, {vector_scheme(2)});
    FAIL() << "NaN was fitted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("layer 7 value, head 1, token 25, channel 2"));
  }
}

TEST(VectorFit, RefusesSamplesOfOneTokenAndNothingToFit) {
  EXPECT_THROW(fitted(made_layer(3, 1), {vector_scheme(2)}), Error);
  EXPECT_THROW(fitted(made_layer(2, 20), {vector_scheme(2)}, 1, 2), Error);
}

TEST(VectorFit, UnitsThatNoGradientReachesTakeNoBits) {
  MadeLayer layer = made_layer(3, 40);
  layer.key_grad.assign(layer.key_grad.size(), 0.0f);
  const LayerVectors fit = fitted(layer, {vector_scheme(1)})[0];
  EXPECT_EQ(std::accumulate(fit.key.quantiser.bits.begin(), fit.key.quantiser.bits.end(), 0), 0);
  EXPECT_GT(std::accumulate(fit.value.quantiser.bits.begin(), fit.value.quantiser.bits.end(), 0), 10);
}

}  // namespace
}  // namespace kvcc
