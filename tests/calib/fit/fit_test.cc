// The fit of a layer: what it decides on small cases, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formats/core/error.h"
#include "tests/calib/fit/fit_support.h"

namespace kvcc {
namespace {

std::string message_of(const MadeLayer& layer, const Scheme& scheme) {
  try {
    fit_layer(layer.view(), std::vector<Scheme>{scheme});
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Fit, ThresholdsAreQuantilesWithoutTheFirstTokens) {
  MadeLayer layer = made_layer(2, 102);  // 202 rows without the first tokens
  for (int64_t row = 0, rank = 0; row < 204; ++row) {
    const bool first = row % 102 == 0;
    for (int c = 0; c < 12; ++c) layer.key[row * 12 + c] = first ? 1e3f : static_cast<float>((rank * 37) % 202);
    rank += first ? 0 : 1;
  }
  Scheme scheme = default_scheme();
  const TensorFit out = fit_one(layer, scheme, true);
  for (int c = 0; c < 12; ++c) {  // 0.005 * 201 = 1.005
    EXPECT_FLOAT_EQ(out.threshold_lower[c], 1.005f);
    EXPECT_FLOAT_EQ(out.threshold_upper[c], 199.995f);
    EXPECT_FLOAT_EQ(out.scale[c], 99.495f);
    EXPECT_FLOAT_EQ(out.zero[c], 100.5f);
  }
  scheme.first_in_thresholds = true;
  EXPECT_GT(fit_one(layer, scheme, true).threshold_upper[0], 201.0f);
  scheme = default_scheme("k=nuq3@prerope/channel,v=nuq3@token,sparse=0%,sink=1");
  const TensorFit dense = fit_one(layer, scheme, true);
  EXPECT_TRUE(dense.threshold_lower.empty());
  EXPECT_EQ(dense.scale[3], 100.5f);
  EXPECT_EQ(dense.zero[3], 100.5f);
  EXPECT_EQ(dense.outlier_fraction[0], 0.0f);
}

TEST(Fit, OutlierFractionIsMeasuredWithoutSinks) {
  const MadeLayer layer = made_layer(4, 401);
  const LayerFit fit = fit_layer(layer.view(), std::vector<Scheme>{default_scheme()}).front();
  for (const float fraction : fit.key.outlier_fraction) EXPECT_NEAR(fraction, 0.01f, 0.003f);
  double sum = 0;
  for (const float fraction : fit.value.outlier_fraction) sum += fraction / 2;
  EXPECT_NEAR(sum, 2.0 / 10, 1e-6);  // one of each tail of 10 channels
}

TEST(Fit, F32ConstantChannels) {
  MadeLayer layer = made_layer();
  for (int64_t row = 0; row < layer.samples * layer.seqlen; ++row) {
    layer.key[row * 12 + 2] = 0.7f;
    layer.key[row * 12 + 9] = 0.0f;
  }
  const Scheme scheme = default_scheme();
  const TensorFit fit = fit_one(layer, scheme, true);
  EXPECT_EQ(fit.scale[2], kLeastScale);
  EXPECT_EQ(fit.zero[2], 0.7f);
  EXPECT_EQ(fit.variance[2], 0.0f);
  const ChannelQuantiser q{2, 6, fit.table, fit.scale, fit.zero, fit.threshold_lower, fit.threshold_upper};
  std::vector<float> back(layer.key.size());
  round_trip(q, layer.key, back);
  for (int64_t row = 0; row < layer.samples * layer.seqlen; ++row) {
    EXPECT_EQ(back[row * 12 + 2], 0.7f);
    EXPECT_LE(std::fabs(back[row * 12 + 9]), kLeastScale);
  }
  // They have no say in the levels: the same channels replaced by others of theirs give the same codebook as without.
  Scheme plain = scheme;
  plain.weight = FitWeight::none;
  const TensorFit unweighted = fit_one(layer, plain, true);
  for (int h = 0; h < 2; ++h) {
    for (int j = 0; j < 8; ++j) EXPECT_NE(unweighted.table.head(h)[j], 0.0f);  // no level spent on the mass at 0
  }
  std::fill(layer.key.begin(), layer.key.end(), 0.0f);
  std::fill(layer.value.begin(), layer.value.end(), -2.0f);
  const LayerFit constant = fit_layer(layer.view(), std::vector<Scheme>{scheme}).front();
  for (const TensorFit* tensor : {&constant.key, &constant.value}) {
    EXPECT_EQ(tensor->distinct, (std::vector<uint32_t>{1, 1}));
    EXPECT_EQ(tensor->table.levels, std::vector<float>(16, 0.0f));
  }
  EXPECT_EQ(constant.value.sqnr_db[0], 200.0f);
}

TEST(Fit, F28FewerDistinctValuesThanCodes) {
  MadeLayer layer = made_layer();
  for (size_t i = 0; i < layer.key.size(); ++i) layer.key[i] = static_cast<float>(static_cast<int>(i * 7 % 5) - 2);
  const TensorFit fit = fit_one(layer, default_scheme("k=nuq4@prerope/channel,v=nuq4@token,sparse=0%"), true);
  EXPECT_EQ(fit.distinct, (std::vector<uint32_t>{5, 5}));
  for (int j = 0; j < 16; ++j) EXPECT_EQ(fit.table.levels[j], std::min(-1.0f + 0.5f * static_cast<float>(j), 1.0f));
  EXPECT_EQ(fit.fit_gap_bound[0], 0.0f);
  EXPECT_EQ(fit.sqnr_db[0], 200.0f);
  EXPECT_EQ(fit.weighted_sse[0], 0.0f);
}

TEST(Fit, ZeroGradientsFallBackToEqualWeights) {
  MadeLayer layer = made_layer();
  std::fill(layer.key_grad.begin(), layer.key_grad.begin() + 1, 0.0f);
  std::fill(layer.key_grad.begin(), layer.key_grad.end(), 0.0f);
  Scheme none = default_scheme();
  none.weight = FitWeight::none;
  const TensorFit zero = fit_one(layer, default_scheme(), true), equal = fit_one(layer, none, true);
  EXPECT_EQ(zero.table.levels, equal.table.levels);
  EXPECT_EQ(zero.first_token_share, (std::vector<float>{0, 0}));
  // With one head's gradients zero, only that head falls back; in a codebook of the whole layer it has no say.
  MadeLayer half = made_layer();
  for (size_t i = 0; i < half.key_grad.size(); ++i) half.key_grad[i] *= i % 12 < 6 ? 0.0f : 1.0f;
  const TensorFit heads = fit_one(half, default_scheme(), true);
  for (int j = 0; j < 8; ++j) {
    EXPECT_EQ(heads.table.head(0)[j], equal.table.head(0)[j]);
    EXPECT_NE(heads.table.head(1)[j], equal.table.head(1)[j]);
  }
  Scheme layerwide = default_scheme();
  layerwide.codebook = CodebookScope::layer;
  const TensorFit shared = fit_one(half, layerwide, true);
  for (int j = 0; j < 8; ++j) {
    EXPECT_EQ(shared.table.head(0)[j], heads.table.head(1)[j]);
    EXPECT_EQ(shared.table.head(1)[j], heads.table.head(1)[j]);
  }
}

TEST(Fit, WithoutGradientsWeightsAreOne) {
  MadeLayer layer = made_layer();
  layer.key_grad.clear();
  layer.value_grad.clear();
  Scheme none = default_scheme(), f = default_scheme();
  none.weight = FitWeight::none;
  f.weight = FitWeight::f;
  for (const bool key : {true, false}) {
    const TensorFit a = fit_one(layer, none, key), b = fit_one(layer, f, key);
    EXPECT_EQ(a.table.levels, b.table.levels);
    EXPECT_EQ(a.fisher, std::vector<float>(a.fisher.size(), 0.0f));
    EXPECT_GT(a.weighted_sse[0], 0.0f);
  }
}

TEST(Fit, GridsThatNeedNoDataAndFullPrecision) {
  const MadeLayer layer = made_layer();
  Scheme crossed = default_scheme("k=nuq2@prerope/channel,v=nuq2@token,sparse=10%");  // no text has it; the fit does
  std::swap(crossed.key.axis, crossed.value.axis);
  const std::vector<Scheme> schemes{default_scheme("k=int3@prerope/channel,v=nf3@token,sparse=1%,sink=1"),
                                    default_scheme("k=nf2@prerope/token,v=int1@token"), default_scheme("fp"),
                                    default_scheme("k=int4@postrope/token,v=nuq8@token"), crossed};
  const std::vector<LayerFit> fits = fit_layer(layer.view(), schemes, 2);
  for (int h = 0; h < 2; ++h) {
    EXPECT_EQ(std::vector<float>(fits[0].key.table.head(h), fits[0].key.table.head(h) + 8), integer_levels(3));
    EXPECT_EQ(std::vector<float>(fits[0].value.table.head(h), fits[0].value.table.head(h) + 8), normal_float_levels(3));
  }
  EXPECT_EQ(fits[0].key.scale.size(), 12u);
  EXPECT_EQ(fits[0].key.threshold_upper.size(), 12u);
  EXPECT_TRUE(fits[0].value.scale.empty());
  EXPECT_GT(fits[0].key.sqnr_db[0], 5.0f);
  EXPECT_TRUE(fits[1].key.scale.empty());
  EXPECT_EQ(fits[2].key.table.bits, (std::vector<uint8_t>{16, 16}));
  EXPECT_TRUE(fits[2].key.table.levels.empty());
  EXPECT_EQ(fits[2].key.min.size(), 12u);
  EXPECT_EQ(fits[3].key.table.levels.size(), 32u);
  EXPECT_EQ(fits[3].key.weighted_sse[0], 0.0f);  // after RoPE: not measured
  EXPECT_EQ(fits[3].value.table.stride, 256);
  EXPECT_TRUE(fits[4].key.scale.empty());
  EXPECT_EQ(fits[4].value.scale.size(), 10u);
  for (const Axis axis : {Axis::channel, Axis::token}) {
    Scheme rotated = default_scheme();
    rotated.key.site = Site::post_rope;
    rotated.key.axis = axis;
    EXPECT_NE(message_of(layer, rotated).find("keys fitted after RoPE"), std::string::npos);
  }
}

TEST(Fit, F36F25NonFiniteInputsAreRefusedWithTheirPlace) {
  MadeLayer layer = made_layer();
  layer.key[(40 + 3) * 12 + 6 + 5] = std::nanf("");
  layer.value[3] = std::nanf("");  // the key is named first, whatever the threads
  EXPECT_NE(message_of(layer, default_scheme()).find("layer 7 key, head 1, sample 1, token 3, channel 5: NaN"),
            std::string::npos);
  layer = made_layer();
  layer.value_grad[2 * 10 + 4] = -std::numeric_limits<float>::infinity();
  const std::string message = message_of(layer, default_scheme());
  EXPECT_NE(message.find("layer 7 value gradient, head 0, sample 0, token 2, channel 4"), std::string::npos);
  EXPECT_NE(message.find("expects squared gradients"), std::string::npos);
}

TEST(Fit, F17OverflowOfTheStoredPrecisionIsRefused) {
  MadeLayer layer = made_layer();
  layer.key[17 * 12 + 1] = 1e5f;
  EXPECT_NE(message_of(layer, default_scheme()).find("layer 7 key, sample 0, token 17, head 0, channel 1: 100000"),
            std::string::npos);
  layer = made_layer();
  for (int c = 0; c < 10; ++c) layer.value[55 * 10 + c] = c % 2 ? 1e6f : -1e6f;
  EXPECT_NE(message_of(layer, default_scheme()).find("layer 7 value, sample 1, token 15"), std::string::npos);
}

TEST(Fit, SamplesOfOneTokenAreRefusedWhenTheFirstIsLeftOut) {
  const MadeLayer layer = made_layer(50, 1);
  EXPECT_NE(message_of(layer, default_scheme()).find("samples of 1 token"), std::string::npos);
  Scheme in = default_scheme();
  in.first_in_kmeans = in.first_in_thresholds = true;
  in.sink = 0;
  EXPECT_EQ(message_of(layer, in), "no error");
}

TEST(Fit, QNormGivesDecodedInliersTheirMoments) {  // METHODS.md 2.3
  const MadeLayer layer = made_layer(4, 300);
  for (const char* text : {"kvquant-nuq2-1%-qnorm", "kvquant-nuq2-1%-qnorm-head-fs2-sink1"}) {
    const Scheme scheme = parse_scheme(text);
    Scheme without = scheme;
    without.qnorm = false;
    for (const bool key : {true, false}) {
      const TensorFit fit = fit_one(layer, scheme, key), plain = fit_one(layer, without, key);
      EXPECT_EQ(fit.table.levels, plain.table.levels) << "codes are the same";
      EXPECT_TRUE(plain.norm_scale.empty());
      ASSERT_EQ(fit.norm_scale.size(), 2u);
      EXPECT_EQ(fit.norm_scale[0] == fit.norm_scale[1], scheme.codebook == CodebookScope::layer);
      // The keys' inliers and what they decode to, written down again.
      if (!key) continue;
      for (int part = 0; part < (scheme.codebook == CodebookScope::layer ? 1 : 2); ++part) {
        double count = 0, sum[2] = {}, squares[2] = {};
        for (int64_t row = 0; row < layer.samples * layer.seqlen; ++row) {
          if (!scheme.first_in_kmeans && row % layer.seqlen == 0) continue;
          for (int i = 0; i < 12; ++i) {
            if (scheme.codebook == CodebookScope::head && i / 6 != part) continue;
            const float x = layer.key[row * 12 + i];
            if (x < fit.threshold_lower[i] || x > fit.threshold_upper[i]) continue;
            const float y = normalise(x, fit.scale[i], fit.zero[i]);
            const float* levels = fit.table.head(i / 6);
            const double q = levels[nearest_level(levels, 4, y)] * fit.norm_scale[i / 6] + fit.norm_offset[i / 6];
            count += 1;
            sum[0] += y, squares[0] += static_cast<double>(y) * y;
            sum[1] += q, squares[1] += q * q;
          }
        }
        EXPECT_NEAR(sum[1] / count, sum[0] / count, 1e-5);
        const auto variance = [&](int i) { return squares[i] / count - sum[i] / count * sum[i] / count; };
        EXPECT_NEAR(variance(1), variance(0), 1e-5);
        EXPECT_NE(fit.norm_scale[part], 1);
      }
    }
  }
}

TEST(Fit, CappedKeysKeepAFixedNumberOfOutliers) {
  const MadeLayer layer = made_layer(3, 100);
  const Scheme scheme = parse_scheme("kvquant-nuq3-20%-cap-sink1"), plain = parse_scheme("kvquant-nuq3-20%-sink1");
  const TensorFit fit = fit_one(layer, scheme, true), free = fit_one(layer, plain, true);
  EXPECT_EQ(fit.table.levels, free.table.levels);
  EXPECT_EQ(fit.threshold_upper, free.threshold_upper);
  const double kept = 2.0 * outliers_per_tail(0.2, 12) / 12;
  EXPECT_NEAR((fit.outlier_fraction[0] + fit.outlier_fraction[1]) / 2.0, kept, 1e-6);
  EXPECT_NE(fit.sqnr_db, free.sqnr_db);
}

TEST(Fit, F40LargeOffsetsCostNothing) {
  const MadeLayer layer = made_layer(4, 200);
  MadeLayer moved = layer;
  for (size_t i = 0; i < moved.key.size(); ++i) moved.key[i] += 1024.0f;
  const TensorFit a = fit_one(layer, default_scheme(), true), b = fit_one(moved, default_scheme(), true);
  for (int h = 0; h < 2; ++h) EXPECT_NEAR(b.weighted_sse[h] / a.weighted_sse[h], 1.0f, 0.03f);
  for (int c = 0; c < 12; ++c) {
    EXPECT_NEAR(b.mean[c] - a.mean[c], 1024.0f, 0.01f);
    EXPECT_NEAR(b.variance[c] / a.variance[c], 1.0f, 1e-3f);
  }
}

}  // namespace
}  // namespace kvcc
