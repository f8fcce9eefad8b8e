// Every expected number is worked out by hand beside it.
#include "formats/core/effective_bits.h"

#include <gtest/gtest.h>

#include <vector>

#include "formats/core/error.h"

namespace kvcc {
namespace {

const CacheShape kSmolLm2 = {30, 9, 3, 64, 64};  // 192 key and 192 value elements a token and layer
constexpr double kTight = 1e-12;

TEST(EffectiveBits, FullPrecisionCountsSixteen) {
  const EffectiveBits bits = effective_bits(parse_scheme("fp"), kSmolLm2);
  EXPECT_EQ(bits.total, 16);
  EXPECT_EQ(bits.constant_bytes, 0);
  EXPECT_EQ(nominal_bits(parse_scheme("fp")), 16);
}

TEST(EffectiveBits, OnlinePerToken) {
  // Scale and zero-point, 32 bits a token, for 192 elements of each tensor: 4 + 32 / 192.
  const EffectiveBits bits = effective_bits(parse_scheme("int4"), kSmolLm2);
  EXPECT_NEAR(bits.total, 4 + 32.0 / 192, kTight);
  EXPECT_EQ(bits.constant_bytes, 0);
  EXPECT_EQ(bits.sparse, 0);
}

TEST(EffectiveBits, StaticKeysHaveNoOnlineScale) {
  // Only values carry 32 bits a token: 32 / 384. Constants: key scale and zero 2 * 192 f32, and no fitted levels.
  const EffectiveBits bits = effective_bits(parse_scheme("int4-channel-prerope"), kSmolLm2);
  EXPECT_NEAR(bits.codes + bits.scales, 4 + 32.0 / 384, kTight);
  EXPECT_EQ(bits.constant_bytes, 30 * 2 * 192 * 4);
}

TEST(EffectiveBits, OurDefault) {
  const EffectiveBits bits = effective_bits(parse_scheme("kvcc-nuq4-1%-sink1"), kSmolLm2);
  EXPECT_NEAR(bits.codes, 4, kTight);
  EXPECT_NEAR(bits.scales, 32.0 / 384, kTight);
  // Keys: 1 % of 192 elements at 16 + 16 bits, and a 32-bit row pointer a token. Values: one outlier a tail.
  EXPECT_NEAR(bits.sparse, (0.01 * 192 * 32 + 32 + 2 * 1 * 32) / 384, kTight);
  // One token of 32,768 at 16 bits.
  EXPECT_NEAR(bits.exceptions, (16 - bits.codes - bits.scales - bits.sparse) / 32768, kTight);
  // f32 of 30 layers: 3 heads * 16 levels for each of K and V; scale, zero and two thresholds of 192 channels.
  EXPECT_EQ(bits.constant_bytes, 30 * 4 * (2 * 3 * 16 + 4 * 192));
  EXPECT_NEAR(bits.constants, 8.0 * bits.constant_bytes / (30.0 * 384 * (1 << 20)), kTight);
  EXPECT_NEAR(bits.total, 4.493753, 1e-6);
  EXPECT_EQ(nominal_bits(parse_scheme("kvcc-nuq4-1%-sink1")), 4);
}

TEST(EffectiveBits, MeasuredOutliersReplaceTheNominalFraction) {
  const Scheme scheme = parse_scheme("kvcc-nuq3-1%");
  const double nominal = effective_bits(scheme, kSmolLm2).sparse;
  const double measured = effective_bits(scheme, kSmolLm2, {.key_outlier_fraction = 0.013}).sparse;
  EXPECT_NEAR(measured - nominal, 0.003 * 192 * 32 / 384, kTight);
}

TEST(EffectiveBits, ContextAndAmortisation) {
  const Scheme scheme = parse_scheme("k=int4@postrope/token,v=int4@token,sink=4,residual=28");
  const double quantised = 4 + 32.0 / 192;
  // 32 tokens of 2,048 at 16 bits.
  EXPECT_NEAR(effective_bits(scheme, kSmolLm2, {.context = 2048}).total, quantised + (16 - quantised) * 32 / 2048,
              kTight);
  EXPECT_NEAR(effective_bits(scheme, kSmolLm2, {.context = 16}).total, 16, kTight) << "all tokens are exceptions";
  const EffectiveBits little = effective_bits(parse_scheme("kvcc-nuq4"), kSmolLm2, {.amortise = 1024});
  const EffectiveBits much = effective_bits(parse_scheme("kvcc-nuq4"), kSmolLm2, {.amortise = 2048});
  EXPECT_NEAR(little.constants, 2 * much.constants, kTight);
}

TEST(EffectiveBits, UnequalWidthsAndHeadDims) {
  // Keys 2 heads * 8 at 3 bits, values 2 heads * 4 at 2 bits: 24 elements.
  const CacheShape shape = {1, 2, 2, 8, 4};
  const Scheme scheme = parse_scheme("k=nuq3@prerope/channel,v=nuq2@token");
  const EffectiveBits bits = effective_bits(scheme, shape);
  EXPECT_NEAR(bits.codes, (16 * 3 + 8 * 2) / 24.0, kTight);
  EXPECT_NEAR(bits.scales, 32 / 24.0, kTight);
  EXPECT_EQ(bits.constant_bytes, 4 * (2 * 8 + 2 * 4 + 2 * 16));
  EXPECT_EQ(nominal_bits(scheme), 2.5);
}

TEST(EffectiveBits, CappedKeysNeedNoRowPointer) {
  // One outlier of each end for keys and for values, 32 bits each, of 384 elements.
  EXPECT_NEAR(effective_bits(parse_scheme("kvquant-nuq3-1%-cap"), kSmolLm2).sparse, 2 * 2 * 32 / 384.0, kTight);
  // Q-Norm: a scale and an offset a head and tensor.
  EXPECT_EQ(effective_bits(parse_scheme("kvquant-nuq2-qnorm"), kSmolLm2).constant_bytes -
                effective_bits(parse_scheme("kvquant-nuq2"), kSmolLm2).constant_bytes,
            30 * 2 * 3 * 2 * 4);
}

TEST(EffectiveBits, VectorCodebooksCountTheirCodesAndConstants) {
  const Scheme scheme = parse_scheme("kvcc-2");
  EXPECT_NEAR(effective_bits(scheme, kSmolLm2).total, 2.05, kTight) << "its budget, until it is fitted";
  const double elements = 30.0 * 384;
  const EffectiveBits bits = effective_bits(scheme, kSmolLm2, {.code_bits = 2, .vector_bytes = 1 << 22});
  EXPECT_NEAR(bits.codes, 2, kTight);
  EXPECT_NEAR(bits.exceptions, 14.0 / 32768, kTight);
  EXPECT_NEAR(bits.constants, 8.0 * (1 << 22) / elements / (1 << 20), kTight);
  EXPECT_NEAR(bits.total, bits.codes + bits.exceptions + bits.constants, kTight);
}

TEST(EffectiveBits, RefusesNonsense) {
  EXPECT_THROW(effective_bits(parse_scheme("int4"), CacheShape{}), Error);
  EXPECT_THROW(effective_bits(parse_scheme("int4"), kSmolLm2, {.context = 0}), Error);
  EXPECT_THROW(effective_bits(parse_scheme("int4"), kSmolLm2, {.amortise = 0}), Error);
}

TEST(EffectiveBits, MeanFractionOfNoneIsNotZero) {
  EXPECT_EQ(mean_outlier_fraction({}), -1.0);
  EXPECT_DOUBLE_EQ(mean_outlier_fraction(std::vector<float>{0.25f, 0.5f}), 0.375);
}

}  // namespace
}  // namespace kvcc
