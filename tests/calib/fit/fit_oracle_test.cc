// The fit against a naive one: normalise with the reference codec, exact k-means on all points.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

#include "formats/codec/tails.h"
#include "tests/calib/fit/fit_support.h"

namespace kvcc {
namespace {

struct Points {
  std::vector<double> y, w;
};

/// Normalised inliers of a head (or of all: head -1) and their weights, element by element.
Points naive_points(const MadeLayer& layer, const Scheme& scheme, const TensorFit& fit, bool key, int head) {
  const int dim = key ? layer.dim : layer.value_dim, n = layer.heads * dim;
  const auto& x = key ? layer.key : layer.value;
  const auto& g = key ? layer.key_grad : layer.value_grad;
  const int tail = outliers_per_tail(scheme.sparse, n);
  Points points;
  for (int64_t row = 0; row < layer.samples * layer.seqlen; ++row) {
    if (!scheme.first_in_kmeans && row % layer.seqlen == 0) continue;
    RowTails tails;
    float scale = 0, zero = 0;
    if (!key) {
      split_tails(std::span(x).subspan(row * n, n), tail, tails);
      const TokenRange range = token_range(tails.low, tails.high);
      scale = half_to_float(range.scale);
      zero = half_to_float(range.zero);
    }
    for (int c = 0; c < n; ++c) {
      if (head >= 0 && c / dim != head) continue;
      const float v = x[row * n + c];
      if (key) {
        scale = fit.scale[c];
        zero = fit.zero[c];
        if (!fit.threshold_lower.empty() && outside_thresholds(v, fit.threshold_lower[c], fit.threshold_upper[c])) {
          continue;
        }
        if (fit.threshold_lower.empty() && std::fabs(normalise(v, scale, zero)) > 1.0001f) continue;  // a first token
      } else if (std::find(tails.columns.begin(), tails.columns.end(), c) != tails.columns.end()) {
        continue;
      }
      const double gradient = g[row * n + c], s = scale;
      const double f = scheme.weight == FitWeight::none ? 1 : gradient * gradient;
      points.y.push_back(std::min(1.0f, std::max(-1.0f, normalise(v, scale, zero))));
      points.w.push_back(scheme.weight == FitWeight::fs2 ? f * s * s : f);
    }
  }
  return points;
}

double objective(const Points& points, const float* levels, int count) {
  double sum = 0;
  for (size_t i = 0; i < points.y.size(); ++i) {
    double best = 1e30;
    for (int j = 0; j < count; ++j) best = std::min(best, std::fabs(points.y[i] - static_cast<double>(levels[j])));
    sum += points.w[i] * best * best;
  }
  return sum;
}

void check(const MadeLayer& layer, const Scheme& scheme) {
  const LayerFit fit = fit_layer(layer.view(), std::vector<Scheme>{scheme}, 2).front();
  for (const bool key : {true, false}) {
    const TensorFit& tensor = key ? fit.key : fit.value;
    for (int h = 0; h < layer.heads; ++h) {
      const bool shared = scheme.codebook == CodebookScope::layer;
      const Points points = naive_points(layer, scheme, tensor, key, shared ? -1 : h);
      const int count = tensor.table.count(h);
      const double exact = kmeans_1d(points.y, points.w, std::vector<int>{count}).front().objective;
      const double own = objective(points, tensor.table.head(h), count);
      // Levels are stored in single precision: rounding costs the square of 6e-8 at most.
      double weight = 0;
      for (const double w : points.w) weight += w;
      ASSERT_LE(own, exact * (1 + tensor.fit_gap_bound[h] + 1e-6) + weight * 1e-14)
          << to_string(scheme) << " key " << key << " head " << h;
      ASSERT_GE(own, exact * (1 - 1e-6) - weight * 1e-14);
      ASSERT_LT(tensor.fit_gap_bound[h], 1e-4f);
    }
  }
}

TEST(FitOracle, EveryCombinationReachesTheOptimum) {
  const MadeLayer layer = made_layer(3, 60);
  for (const char* widths : {"k=nuq2@prerope/channel,v=nuq4@token", "k=nuq5@prerope/channel,v=nuq3@token"}) {
    for (const char* sparse : {"0%", "1%", "8%"}) {
      for (const char* weight : {"none", "f", "fs2"}) {
        for (const char* codebook : {"layer", "head"}) {
          for (const char* first : {"first-thresholds=in,first-kmeans=in", "first-thresholds=in,first-kmeans=out",
                                    "first-thresholds=out,first-kmeans=in", "first-thresholds=out,first-kmeans=out"}) {
            check(layer, parse_scheme(std::string(widths) + ",sparse=" + sparse + ",codebook=" + codebook +
                                      ",weight=" + weight + "," + first));
          }
        }
      }
    }
  }
}

TEST(FitOracle, LargeDataWithHeavyFirstTokensStayWithinTheirBound) {
  const MadeLayer layer = made_layer(4, 5000, 3);  // 120,000 keys a head: bins hold several points
  for (const char* text :
       {"kvcc-nuq4-1%-sink1", "kvquant-nuq4-1%", "kvquant-nuq2", "k=nuq6@prerope/channel,v=nuq1@token"}) {
    check(layer, parse_scheme(text));
  }
}

TEST(FitOracle, WeightedErrorIsThatOfEncodeAndDecode) {
  const MadeLayer layer = made_layer();
  for (const char* text : {"kvcc-nuq3-1%-sink1", "kvquant-nuq2"}) {
    const Scheme scheme = parse_scheme(text);
    const LayerFit fit = fit_layer(layer.view(), std::vector<Scheme>{scheme}).front();
    for (const bool key : {true, false}) {
      const TensorFit& tensor = key ? fit.key : fit.value;
      const auto &x = key ? layer.key : layer.value, &g = key ? layer.key_grad : layer.value_grad;
      const int dim = key ? layer.dim : layer.value_dim, n = layer.heads * dim;
      const ChannelQuantiser channels{
          layer.heads, dim, tensor.table, tensor.scale, tensor.zero, tensor.threshold_lower, tensor.threshold_upper};
      const TokenQuantiser tokens{layer.heads, dim, tensor.table, outliers_per_tail(scheme.sparse, n)};
      std::vector<double> weighted(layer.heads), error(layer.heads), energy(layer.heads), outliers(layer.heads);
      double quantised = 0;
      for (int64_t row = 0; row < layer.samples * layer.seqlen; ++row) {
        if (row % layer.seqlen < scheme.sink) continue;
        quantised += dim;
        EncodedToken token;
        std::vector<float> back(n);
        const auto in = std::span(x).subspan(row * n, n);
        key ? encode(channels, in, token) : encode(tokens, in, token);
        key ? decode(channels, token, back) : decode(tokens, token, back);
        for (const SparseEntry& entry : token.sparse) outliers[entry.column / dim] += 1;
        for (int c = 0; c < n; ++c) {
          const double e = static_cast<double>(in[c]) - back[c],
                       f = static_cast<double>(g[row * n + c]) * g[row * n + c];
          weighted[c / dim] += f * e * e;
          error[c / dim] += e * e;
          energy[c / dim] += static_cast<double>(in[c]) * in[c];
        }
      }
      for (int h = 0; h < layer.heads; ++h) {
        EXPECT_NEAR(tensor.weighted_sse[h] / weighted[h], 1.0, 1e-6);
        EXPECT_NEAR(tensor.sqnr_db[h], 10 * std::log10(energy[h] / error[h]), 1e-4);
        EXPECT_FLOAT_EQ(tensor.outlier_fraction[h], static_cast<float>(outliers[h] / quantised));
      }
    }
  }
}

TEST(FitOracle, StatisticsAreThoseOfAllTokens) {
  const MadeLayer layer = made_layer();
  const TensorFit fit = fit_one(layer, default_scheme(), true);
  const double rows = 120;
  for (int c = 0; c < 12; ++c) {
    double sum = 0, squares = 0, fisher = 0, least = 1e9, most = -1e9;
    for (int64_t row = 0; row < 120; ++row) {
      const double v = layer.key[row * 12 + c], g = layer.key_grad[row * 12 + c];
      sum += v;
      squares += v * v;
      fisher += g * g;
      least = std::min(least, v);
      most = std::max(most, v);
    }
    EXPECT_EQ(fit.min[c], static_cast<float>(least));
    EXPECT_EQ(fit.max[c], static_cast<float>(most));
    EXPECT_NEAR(fit.mean[c], sum / rows, 1e-5);
    EXPECT_NEAR(fit.variance[c] / (squares / rows - sum / rows * sum / rows), 1.0, 1e-5);
    EXPECT_NEAR(fit.fisher[c] / (fisher / rows), 1.0, 1e-6);
  }
  for (int h = 0; h < 2; ++h) {
    double first = 0, all = 0;
    for (int64_t row = 0; row < 120; ++row) {
      for (int c = h * 6; c < h * 6 + 6; ++c) {
        const double f = static_cast<double>(layer.key_grad[row * 12 + c]) * layer.key_grad[row * 12 + c];
        all += f;
        first += row % 40 == 0 ? f : 0;
      }
    }
    EXPECT_NEAR(fit.first_token_share[h], first / all, 1e-6);
  }
}

/// Every array of a fit, for comparison bit for bit.
std::vector<std::vector<float>> arrays_of(const TensorFit& t) {
  return {t.table.levels,
          t.scale,
          t.zero,
          t.threshold_lower,
          t.threshold_upper,
          t.outlier_fraction,
          t.weighted_sse,
          t.sqnr_db,
          t.fit_gap_bound,
          t.min,
          t.max,
          t.mean,
          t.variance,
          t.fisher,
          t.first_token_share};
}

TEST(FitOracle, F41SameForAnyThreadsAndAnySchemesBesideIt) {
  const MadeLayer layer = made_layer(5, 300);
  const std::vector<Scheme> schemes{parse_scheme("kvcc-nuq4-1%-sink1"), parse_scheme("kvcc-nuq2-1%-sink1"),
                                    parse_scheme("kvquant-nuq3-1%-sink1"), parse_scheme("kvcc-nuq5-1%-sink1"),
                                    parse_scheme("k=int2@prerope/channel,v=nuq2@token,sparse=2%")};
  const std::vector<LayerFit> together = fit_layer(layer.view(), schemes, 1);
  for (const int threads : {2, 3, 16}) {
    const std::vector<LayerFit> again = fit_layer(layer.view(), schemes, threads);
    for (size_t i = 0; i < schemes.size(); ++i) {
      EXPECT_EQ(arrays_of(again[i].key), arrays_of(together[i].key)) << threads;
      EXPECT_EQ(arrays_of(again[i].value), arrays_of(together[i].value)) << threads;
    }
  }
  for (size_t i = 0; i < schemes.size(); ++i) {
    const LayerFit alone = fit_layer(layer.view(), std::vector<Scheme>{schemes[i]}, 2).front();
    EXPECT_EQ(arrays_of(alone.key), arrays_of(together[i].key)) << to_string(schemes[i]);
    EXPECT_EQ(arrays_of(alone.value), arrays_of(together[i].value)) << to_string(schemes[i]);
  }
}

TEST(FitOracle, MoreBitsAreNotWorseAndFittedIsNotWorseThanUniform) {
  const MadeLayer layer = made_layer(4, 400);
  std::vector<Scheme> schemes;
  for (int bits = 1; bits <= 6; ++bits) {
    const std::string b = std::to_string(bits);
    for (const char* grid : {"nuq", "int"}) {
      schemes.push_back(parse_scheme("k=" + (grid + b) + "@prerope/channel,v=" + grid + b +
                                     "@token,sparse=1%,sink=1,codebook=head,weight=fs2"));
    }
  }
  const std::vector<LayerFit> fits = fit_layer(layer.view(), schemes, 2);
  for (size_t i = 0; i < fits.size(); i += 2) {
    for (int h = 0; h < 2; ++h) {
      EXPECT_LE(fits[i].key.weighted_sse[h], fits[i + 1].key.weighted_sse[h] * 1.001f);
      EXPECT_LE(fits[i].value.weighted_sse[h], fits[i + 1].value.weighted_sse[h] * 1.001f);
      if (i >= 2) {
        EXPECT_LE(fits[i].key.weighted_sse[h], fits[i - 2].key.weighted_sse[h]);
      }
    }
  }
}

}  // namespace
}  // namespace kvcc
