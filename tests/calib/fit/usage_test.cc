// Statistics of a fit beside its codebooks, against plain loops over the same data.
#include "calib/fit/usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "calib/fit/quantiles.h"
#include "formats/codec/tails.h"
#include "tests/calib/fit/fit_support.h"

namespace kvcc {
namespace {

/// The first row that is of the second half: by samples, or by tokens of one sample.
int64_t second_half(const MadeLayer& layer) {
  return layer.samples > 1 ? (layer.samples + 1) / 2 * layer.seqlen : (layer.seqlen + 1) / 2;
}

struct Counts {
  std::map<int, int64_t> bins, codes;
  int64_t elements = 0, coded = 0;
};

/// Histogram and codes of a head, element by element with encode() of the reference codec.
Counts plain_counts(const MadeLayer& layer, const Scheme& scheme, bool key, const TensorFit& fit, int head) {
  const int dim = key ? layer.dim : layer.value_dim, n = layer.heads * dim;
  const std::vector<float>& x = key ? layer.key : layer.value;
  const bool channel = (key ? scheme.key : scheme.value).axis == Axis::channel;
  Counts counts;
  EncodedToken token;
  for (int64_t row = 0; row < layer.samples * layer.seqlen; ++row) {
    if (row % layer.seqlen < scheme.sink) continue;
    const std::span<const float> values(x.data() + row * n, static_cast<size_t>(n));
    float scale = 0, zero = 0;
    if (channel) {
      encode(
          ChannelQuantiser{layer.heads, dim, fit.table, fit.scale, fit.zero, fit.threshold_lower, fit.threshold_upper},
          values, token);
    } else {
      encode(TokenQuantiser{layer.heads, dim, fit.table, outliers_per_tail(scheme.sparse, n)}, values, token);
      scale = half_to_float(token.range.scale);
      zero = half_to_float(token.range.zero);
    }
    for (int i = head * dim; i < (head + 1) * dim; ++i) {
      if (channel && fit.scale[i] == kLeastScale) continue;
      const float y = channel ? normalise(values[i], fit.scale[i], fit.zero[i]) : normalise(values[i], scale, zero);
      ++counts.bins[std::clamp(static_cast<int>(std::floor((y + 2.0f) * 32)), 0, kUsageBins - 1)];
      ++counts.elements;
      const bool sparse = std::any_of(token.sparse.begin(), token.sparse.end(),
                                      [&](const SparseEntry& entry) { return entry.column == i; });
      if (sparse) continue;
      ++counts.codes[token.codes[i]];
      ++counts.coded;
    }
  }
  return counts;
}

class Usages : public ::testing::TestWithParam<const char*> {};

TEST_P(Usages, AreWhatTheReferenceCodecStores) {
  MadeLayer layer = made_layer(3, 400);
  for (int64_t row = 0; row < 3 * 400; ++row) layer.key[row * 12 + 4] = 0.7f;  // a constant channel
  const Scheme scheme = parse_scheme(GetParam());
  for (const bool key : {true, false}) {
    const TensorFit fit = fit_one(layer, scheme, key);
    for (int head = 0; head < layer.heads; ++head) {
      const Counts counts = plain_counts(layer, scheme, key, fit, head);
      for (int b = 0; b < kUsageBins; ++b) {
        const auto found = counts.bins.find(b);
        const double wanted = found == counts.bins.end() ? 0 : double(found->second) / double(counts.elements);
        // An element on an edge may be counted on either side.
        EXPECT_NEAR(fit.histogram[head * kUsageBins + b], wanted, 1.5 / double(counts.elements)) << GetParam() << b;
      }
      for (int c = 0; c < fit.table.count(head); ++c) {
        const auto found = counts.codes.find(c);
        const double wanted = found == counts.codes.end() ? 0 : double(found->second) / double(counts.coded);
        EXPECT_FLOAT_EQ(fit.code_use[head * fit.table.stride + c], static_cast<float>(wanted)) << GetParam() << c;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, Usages,
                         ::testing::Values("kvcc-nuq3-1%-sink1", "kvcc-nuq4", "kvquant-nuq2-1%", "int4-channel-prerope",
                                           "k=int8@prerope/channel,v=nuq2@token,sparse=5%",
                                           "k=int3@prerope/token,v=nuq5@token,sparse=2%,sink=2"));

TEST(Statistics, HeldOutOutliersAreOfTheOtherHalfsQuantiles) {
  for (const int64_t samples : {1, 2, 5}) {
    const MadeLayer layer = made_layer(samples, 120);
    const TensorFit fit = fit_one(layer, default_scheme(), true);
    const int64_t rows = samples * layer.seqlen, middle = second_half(layer);
    for (int head = 0; head < layer.heads; ++head) {
      int64_t outside = 0, all = 0;
      for (int c = head * layer.dim; c < (head + 1) * layer.dim; ++c) {
        std::vector<float> halves[2];
        for (int64_t row = 0; row < rows; ++row) {
          if (row % layer.seqlen != 0) halves[row < middle ? 0 : 1].push_back(layer.key[row * 12 + c]);
        }
        for (const int half : {0, 1}) {
          const Ends ends = quantile_ends(halves[1 - half], 0.01);
          for (const float x : halves[half]) {
            outside += x < static_cast<float>(ends.lower) || x > static_cast<float>(ends.upper);
            ++all;
          }
        }
      }
      EXPECT_GT(outside, 0);
      EXPECT_FLOAT_EQ(fit.held_out_outliers[head], static_cast<float>(double(outside) / double(all))) << samples;
    }
  }
  EXPECT_TRUE(fit_one(made_layer(2, 120), default_scheme("kvcc-nuq3"), true).held_out_outliers.empty());
  EXPECT_TRUE(fit_one(made_layer(2, 120), default_scheme(), false).held_out_outliers.empty()) << "per token";
  EXPECT_TRUE(fit_one(made_layer(1, 2), default_scheme(), true).held_out_outliers.empty()) << "nothing to hold out";
}

TEST(Statistics, DriftIsTheMoveOfMeansInDeviations) {
  MadeLayer layer = made_layer(4, 50);
  for (int64_t row = 100; row < 200; ++row) {
    for (int c = 0; c < 6; ++c) layer.key[row * 12 + c] += 3;  // head 0 alone, in the second half
  }
  const TensorFit fit = fit_one(layer, default_scheme(), true);
  for (int head = 0; head < 2; ++head) {
    double sum = 0;
    for (int c = head * 6; c < head * 6 + 6; ++c) {
      double mean[2] = {}, square = 0, all = 0;
      for (int64_t row = 0; row < 200; ++row) {
        if (row % 50 == 0) continue;
        const double x = layer.key[row * 12 + c];
        mean[row < 100 ? 0 : 1] += x / 98;
        all += x / 196;
        square += x * x / 196;
      }
      sum += (mean[0] - mean[1]) * (mean[0] - mean[1]) / (square - all * all);
    }
    EXPECT_NEAR(fit.drift[head], std::sqrt(sum / 6), 1e-4);
  }
  EXPECT_GT(fit.drift[0], 0.8);
  EXPECT_LT(fit.drift[1], 0.3);
}

TEST(Statistics, TheHeaviestTokenAndSampleAreFoundBeyondFirstTokens) {
  MadeLayer layer = made_layer(3, 40);
  layer.key_grad[(2 * 40 + 0) * 12 + 7] = 1e6f;   // a first token: does not count
  layer.key_grad[(1 * 40 + 17) * 12 + 8] = 2000;  // head 1
  const TensorFit fit = fit_one(layer, default_scheme(), true);
  EXPECT_EQ(fit.heaviest_sample[1], 1u);
  EXPECT_EQ(fit.token_sample[1], 1u);
  EXPECT_EQ(fit.token_position[1], 17u);
  double total = 0, of_sample = 0;
  for (int64_t row = 0; row < 120; ++row) {
    for (int c = 6; c < 12 && row % 40 != 0; ++c) {
      const double mass = double(layer.key_grad[row * 12 + c]) * layer.key_grad[row * 12 + c];
      total += mass;
      of_sample += row / 40 == 1 ? mass : 0;
    }
  }
  EXPECT_NEAR(fit.sample_share[1], of_sample / total, 1e-6);
  EXPECT_NEAR(fit.token_share[1], 4e6 / total, 1e-3);
  EXPECT_GT(fit.token_share[1], 0.9);
  EXPECT_LT(fit.token_share[0], 0.5);
  MadeLayer without = layer;
  without.key_grad.clear();
  without.value_grad.clear();
  EXPECT_TRUE(
      fit_one(without, default_scheme("k=nuq3@prerope/channel,v=nuq3@token,weight=none"), true).token_share.empty());
}

TEST(Statistics, DoNotDependOnThreads) {
  const MadeLayer layer = made_layer(4, 300);
  const std::vector<Scheme> schemes = {default_scheme(), default_scheme("int4-channel-prerope")};
  const auto one = fit_layer(layer.view(), schemes, 1), many = fit_layer(layer.view(), schemes, 5);
  for (size_t i = 0; i < schemes.size(); ++i) {
    EXPECT_EQ(one[i].key.histogram, many[i].key.histogram);
    EXPECT_EQ(one[i].value.code_use, many[i].value.code_use);
    EXPECT_EQ(one[i].key.held_out_outliers, many[i].key.held_out_outliers);
    EXPECT_EQ(one[i].key.drift, many[i].key.drift);
  }
}

}  // namespace
}  // namespace kvcc
