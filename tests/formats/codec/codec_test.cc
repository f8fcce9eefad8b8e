// The reference codec on small cases whose answer is known.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formats/codec/reference.h"
#include "formats/codec/tails.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

LevelTable table_of(const std::vector<std::vector<float>>& heads) {
  LevelTable table;
  table.heads = static_cast<int>(heads.size());
  for (const auto& levels : heads) table.stride = std::max(table.stride, static_cast<int>(levels.size()));
  for (const auto& levels : heads) {
    int bits = 0;
    while ((1 << bits) < static_cast<int>(levels.size())) ++bits;
    table.bits.push_back(static_cast<uint8_t>(bits));
    table.levels.insert(table.levels.end(), levels.begin(), levels.end());
    table.levels.resize(static_cast<size_t>(table.bits.size()) * table.stride, std::nanf(""));
  }
  return table;
}

ChannelQuantiser unit_channels(const std::vector<float>& levels, int dim) {
  return {1, dim, table_of({levels}), std::vector<float>(dim, 1.0f), std::vector<float>(dim, 0.0f), {}, {}};
}

template <typename Quantiser>
std::string message_of(const Quantiser& q, const std::vector<float>& x) {
  try {
    EncodedToken token;
    encode(q, x, token, "layer 7 key, token 3");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::bad_input);
    return e.what();
  }
  return "no error";
}

TEST(NearestLevel, TieGoesToTheLowerIndex) {
  const std::vector<float> levels{-1.0f, -0.5f, 0.5f, 1.0f};
  const std::vector<float> y{-0.75f, std::nextafter(-0.75f, 0.0f), 0.0f, std::nextafter(0.0f, 1.0f), 0.75f, 9.0f,
                             -9.0f};
  const std::vector<uint32_t> wanted{0, 1, 1, 2, 2, 3, 0};
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(nearest_level(levels.data(), 4, y[i]), wanted[i]) << y[i];
}

TEST(NearestLevel, RepeatedLevelsTakeTheLowestIndex) {  // F28: fewer distinct values than codes
  const std::vector<float> levels{-0.25f, 0.5f, 0.5f, 0.5f};
  EXPECT_EQ(nearest_level(levels.data(), 4, 0.5f), 1u);
  EXPECT_EQ(nearest_level(levels.data(), 4, 0.125f), 0u);
  EXPECT_EQ(nearest_level(levels.data(), 4, 7.0f), 3u);  // beyond the last boundary: same value, another index
  EXPECT_EQ(nearest_level(levels.data(), 4, std::nanf("")), 0u);
}

TEST(ChannelCodec, StrictThresholdsAndClampedCodes) {
  ChannelQuantiser q = unit_channels({-1.0f, -0.25f, 0.25f, 1.0f}, 5);
  q.threshold_lower.assign(5, -1.0f);
  q.threshold_upper.assign(5, 1.0f);
  const std::vector<float> x{-1.0f, 1.0f, 1.0009765625f, -3.0f, 0.3f};
  EncodedToken token;
  encode(q, x, token);
  EXPECT_EQ(token.codes, (std::vector<uint8_t>{0, 3, 3, 0, 2}));
  ASSERT_EQ(token.sparse.size(), 2u);  // the thresholds themselves are inliers
  EXPECT_EQ(token.sparse[0].column, 2);
  EXPECT_EQ(token.sparse[1].column, 3);
  std::vector<float> back(5);
  decode(q, token, back);
  EXPECT_EQ(back, (std::vector<float>{-1.0f, 1.0f, 1.0009765625f, -3.0f, 0.25f}));
}

TEST(ChannelCodec, F32ConstantChannelDecodesToItself) {
  ChannelQuantiser q = unit_channels(integer_levels(2), 3);
  q.scale.assign(3, kLeastScale);
  q.zero = {0.7f, 0.0f, -123.5f};
  q.threshold_lower = q.threshold_upper = q.zero;
  const std::vector<float> x = q.zero;
  EncodedToken token;
  encode(q, x, token);
  EXPECT_TRUE(token.sparse.empty());
  std::vector<float> back(3);
  decode(q, token, back);
  EXPECT_EQ(back[0], 0.7f);
  EXPECT_LE(std::fabs(back[1]), kLeastScale);
  EXPECT_EQ(back[2], -123.5f);
}

TEST(TokenCodec, ConstantRowsAndRowsOfMixedZeros) {
  const TokenQuantiser q{1, 6, table_of({integer_levels(3)}), 1};
  for (const float value : {0.5f, 0.0f, -0.0f, -7.0f}) {
    std::vector<float> x(6, value), back(6);
    EncodedToken token;
    encode(q, x, token);
    EXPECT_EQ(token.range.scale, kLeastHalfScale);
    EXPECT_EQ(token.sparse.size(), 2u);
    decode(q, token, back);
    for (const float v : back) EXPECT_NEAR(v, value, 6e-8);
  }
  // Ends that are zeros of different sign must not give a scale of -0.
  std::vector<float> x{0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f}, back(6);
  round_trip(q, x, back);
  for (const float v : back) EXPECT_NEAR(v, 0.0f, 6e-8);
}

TEST(TokenCodec, TailsAreExactInNumberUnderTies) {
  for (const int tail : {1, 2, 3}) {
    const TokenQuantiser q{2, 5, table_of({integer_levels(2), integer_levels(4)}), tail};
    const std::vector<float> x{1, 1, 1, 1, 1, 2, 2, 2, 2, 2};
    EncodedToken token;
    encode(q, x, token);
    std::vector<int> columns;
    for (const SparseEntry& entry : token.sparse) columns.push_back(entry.column);
    std::vector<int> wanted;  // ties by index: the lowest indices first, the highest last
    for (int i = 0; i < tail; ++i) wanted.push_back(i);
    for (int i = 10 - tail; i < 10; ++i) wanted.push_back(i);
    EXPECT_EQ(columns, wanted);
  }
}

TEST(TokenCodec, NoTailNeedsNoOutliers) {
  const TokenQuantiser q{1, 4, table_of({integer_levels(2)}), 0};
  EncodedToken token;
  encode(q, std::vector<float>{-3, -1, 1, 3}, token);
  EXPECT_TRUE(token.sparse.empty());
  EXPECT_EQ(half_to_float(token.range.scale), 3.0f);
  EXPECT_EQ(half_to_float(token.range.zero), 0.0f);
  EXPECT_EQ(token.codes, (std::vector<uint8_t>{0, 1, 2, 3}));
}

TEST(TokenCodec, TailsThatLeaveNothingAreRefused) {
  const TokenQuantiser q{1, 4, table_of({integer_levels(2)}), 2};
  EncodedToken token;
  EXPECT_THROW(encode(q, std::vector<float>{1, 2, 3, 4}, token), Error);
  EXPECT_THROW(check_tails(70000, 1, "value"), Error);
}

TEST(Codec, F36NonFiniteValuesAreRefusedWithTheirPlace) {
  const ChannelQuantiser channels{
      2,  3, table_of({integer_levels(2), integer_levels(2)}), std::vector<float>(6, 1.0f), std::vector<float>(6, 0.0f),
      {}, {}};
  const TokenQuantiser tokens{2, 3, table_of({integer_levels(2), integer_levels(2)}), 0};
  std::vector<float> x{1, 2, 3, 4, 5, 6};
  x[4] = std::nanf("");
  EXPECT_NE(message_of(channels, x).find("layer 7 key, token 3, head 1, channel 1: NaN"), std::string::npos);
  EXPECT_NE(message_of(tokens, x).find("head 1, channel 1: NaN"), std::string::npos);
  x[4] = -std::numeric_limits<float>::infinity();
  EXPECT_NE(message_of(tokens, x).find("head 1, channel 1: -infinity"), std::string::npos);
}

TEST(Codec, F17OverflowOfTheStoredPrecisionIsRefused) {
  ChannelQuantiser channels = unit_channels(integer_levels(2), 2);
  channels.threshold_lower.assign(2, -1.0f);
  channels.threshold_upper.assign(2, 1.0f);
  EXPECT_NE(message_of(channels, {0.0f, 70000.0f}).find("channel 1: 70000"), std::string::npos);
  EXPECT_EQ(message_of(channels, {0.0f, 65519.0f}), "no error");  // rounds to 65504
  const TokenQuantiser dense{1, 3, table_of({integer_levels(2)}), 0};
  EXPECT_NE(message_of(dense, {-80000.0f, 0.0f, 80000.0f}).find("fp16"), std::string::npos);
  const TokenQuantiser sparse{1, 3, table_of({integer_levels(2)}), 1};
  EXPECT_NE(message_of(sparse, {-80000.0f, 0.0f, 1.0f}).find("channel 0: -80000"), std::string::npos);
  std::vector<float> out(2);
  EXPECT_THROW(round_to_record(std::vector<float>{1.0f, 1e6f}, out, "sink"), Error);
  EXPECT_THROW(round_to_record(std::vector<float>{1.0f, std::nanf("")}, out, "sink"), Error);
  round_to_record(std::vector<float>{1.0f, 0.1f}, out, "sink");
  EXPECT_EQ(out[1], 0.0999755859375f);
}

TEST(Codec, RoundTripNamesTheFirstBadTokenForAnyThreads) {
  const TokenQuantiser q{1, 4, table_of({integer_levels(2)}), 0};
  std::vector<float> x(4 * 100, 1.0f), out(x.size());
  x[4 * 70 + 2] = std::nanf("");
  x[4 * 30 + 1] = std::numeric_limits<float>::infinity();
  for (const int threads : {1, 2, 7}) {
    try {
      round_trip(q, x, out, threads, "layer 2 value");
      FAIL() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.place(), "layer 2 value, token 30, head 0, channel 1");
    }
  }
}

TEST(Codec, DecodeRefusesCodesAndColumnsThatDoNotExist) {
  const TokenQuantiser q{1, 4, table_of({integer_levels(2)}), 0};
  EncodedToken token;
  encode(q, std::vector<float>{-3, -1, 1, 3}, token);
  std::vector<float> back(4);
  token.codes[2] = 4;
  EXPECT_THROW(decode(q, token, back), Error);
  token.codes[2] = 3;
  token.sparse.push_back({4, 0});
  EXPECT_THROW(decode(q, token, back), Error);
}

TEST(Codec, ShapesThatDisagreeAreRefused) {
  ChannelQuantiser q = unit_channels(integer_levels(2), 4);
  std::vector<float> out(8);
  EXPECT_THROW(round_trip(q, std::vector<float>(7), out), Error);
  q.scale.pop_back();
  EXPECT_THROW(round_trip(q, std::vector<float>(8), out), Error);
}

TEST(Levels, IntegerGridIsUniformAndSymmetric) {
  EXPECT_EQ(integer_levels(1), (std::vector<float>{-1, 1}));
  EXPECT_EQ(integer_levels(2), (std::vector<float>{-1, static_cast<float>(-1.0 / 3), static_cast<float>(1.0 / 3), 1}));
  for (int bits = 1; bits <= 8; ++bits) {
    const std::vector<float> levels = integer_levels(bits);
    ASSERT_EQ(levels.size(), size_t{1} << bits);
    for (size_t j = 0; j < levels.size(); ++j) EXPECT_EQ(levels[j], -levels[levels.size() - 1 - j]);
  }
  EXPECT_THROW(integer_levels(9), Error);
}

TEST(Levels, NormalFloatMatchesThePublishedGrids) {  // METHODS.md 5.4
  const std::vector<std::vector<float>> wanted{
      {-1, 0, .337915f, 1},
      {-1, -.478629f, -.217142f, 0, .160930f, .337915f, .562617f, 1},
      {-1, -.696193f, -.525073f, -.394917f, -.284441f, -.184773f, -.091050f, 0, .079580f, .160930f, .246112f, .337915f,
       .440710f, .562617f, .722957f, 1}};
  for (int bits = 2; bits <= 4; ++bits) {
    const std::vector<float> levels = normal_float_levels(bits);
    ASSERT_EQ(levels.size(), wanted[bits - 2].size());
    for (size_t j = 0; j < levels.size(); ++j) EXPECT_NEAR(levels[j], wanted[bits - 2][j], 6e-7) << bits << " " << j;
  }
  EXPECT_EQ(normal_float_levels(8).size(), 256u);
  EXPECT_THROW(normal_float_levels(1), Error);
}

}  // namespace
}  // namespace kvcc
