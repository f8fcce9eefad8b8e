// The interface of codecs: packing, the window of exact tokens, errors.
#include "formats/codec/tensor_codec.h"

#include <algorithm>

#include "formats/core/error.h"
#include "tests/formats/codec/chain.h"

namespace kvcc {
namespace {

LevelTable mixed_table() {  // 2 heads at 2 and 3 bits
  LevelTable table{2, 8, {}, {2, 3}};
  for (const int bits : {2, 3}) {
    std::vector<float> levels = integer_levels(bits);
    levels.resize(8, levels.back());
    table.levels.insert(table.levels.end(), levels.begin(), levels.end());
  }
  return table;
}

ChannelQuantiser channels(bool sparse) {
  ChannelQuantiser q{2, 5, mixed_table(), {}, std::vector<float>(10, 0.5f), {}, {}};
  for (int i = 0; i < 10; ++i) q.scale.push_back(1.0f + static_cast<float>(i));
  if (sparse) {
    q.threshold_lower.assign(10, -2.0f);
    q.threshold_upper.assign(10, 2.5f);
  }
  return q;
}

TEST(TensorCodec, QuantisersOfArtifactsAreCodecs) {
  const std::vector<float> x = made_rows(70, 2, 5, 1);
  std::vector<float> expected(x.size());
  for (const bool sparse : {false, true}) {
    const int64_t outliers = round_trip(channels(sparse), x, expected);
    EXPECT_EQ(outliers > 0, sparse);
    const auto codec = make_codec(channels(sparse));
    EXPECT_TRUE(same_bits(expect_chain(*codec, x), expected));
    std::vector<float> out(x.size());
    EXPECT_EQ(codec->round_trip(x, out, 2, "key"), outliers);
  }
  for (const int tail : {0, 1, 3}) {
    const TokenQuantiser q{2, 5, mixed_table(), tail};
    round_trip(q, x, expected);
    EXPECT_TRUE(same_bits(expect_chain(*make_codec(q), x), expected)) << tail;
  }
  round_to_record(x, expected, "half");
  EXPECT_TRUE(same_bits(expect_chain(*make_half_codec(2, 5), x), expected));
}

TEST(TensorCodec, CappedOutliersAreAFixedNumberOfEachEnd) {
  ChannelQuantiser q = channels(true);
  q.tail = 2;
  const std::vector<float> x = made_rows(50, 2, 5, 9);
  const auto codec = make_codec(q);
  const std::vector<float> decoded = expect_chain(*codec, x);
  std::vector<float> out(x.size());
  EXPECT_EQ(codec->round_trip(x, out, 2, "key"), 50 * 4);
  for (int t = 0; t < 50; ++t) {
    // Exact: the two least and greatest of (x - zero) / scale, whatever the thresholds say.
    std::vector<std::pair<float, int>> order;
    for (int i = 0; i < 10; ++i) order.push_back({(x[t * 10 + i] - q.zero[i]) / q.scale[i], i});
    std::sort(order.begin(), order.end());
    for (const int place : {0, 1, 8, 9}) {
      const int i = t * 10 + order[place].second;
      EXPECT_EQ(decoded[i], round_to_half(x[i]));
    }
    for (int place = 2; place < 8; ++place) {
      const int i = order[place].second;
      EXPECT_LE(std::fabs(decoded[t * 10 + i] - q.zero[i]), q.scale[i]) << "within the grid";
    }
  }
}

TEST(TensorCodec, QNormMovesWhatCodesDecodeTo) {
  TokenQuantiser q{2, 5, mixed_table(), 1}, normed = q;
  const std::vector<float> scale = {1.25f, 0.5f}, offset = {0.125f, -0.25f};
  apply_qnorm(normed.table, scale, offset);
  const std::vector<float> x = made_rows(20, 2, 5, 10);
  CodedTokens plain, moved;
  make_codec(q)->encode(x, plain, "value");
  make_codec(normed)->encode(x, moved, "value");
  for (size_t p = 0; p < plain.size(); ++p) EXPECT_EQ(plain[p].values, moved[p].values) << plain[p].name;
  const std::vector<float> decoded = expect_chain(*make_codec(normed), x);
  for (int t = 0; t < 20; ++t) {
    for (int i = 0; i < 10; ++i) {
      const uint16_t* columns = moved[4].values.data() + 2 * t;
      if (columns[0] == i || columns[1] == i) continue;
      const int h = i / 5;
      const float level = fused_multiply_add(q.table.head(h)[moved[h].values[t * 5 + i % 5]], scale[h], offset[h]);
      EXPECT_EQ(decoded[t * 10 + i],
                decode_element(level, half_to_float(moved[2].values[t]), half_to_float(moved[3].values[t])));
    }
  }
}

TEST(TensorCodec, PackedBitsAreLowFirstAndPartsStartAtBytes) {
  const CodedTokens coded{{"codes", 3, {1, 2, 3}}, {"scale", 16, {0x1234}}, {"empty", 4, {}}};
  EXPECT_EQ(pack(coded), (std::vector<uint8_t>{0b11010001, 0, 0x34, 0x12}));
}

TEST(TensorCodec, DamagedBytesAreRefused) {
  const auto codec = make_codec(channels(true));
  CodedTokens coded;
  codec->encode(made_rows(3, 2, 5, 2), coded, "made");
  std::vector<uint8_t> bytes = pack(coded);
  EXPECT_NO_THROW(unpack(*codec, 3, bytes, "made"));
  EXPECT_THROW(unpack(*codec, 3, std::span(bytes).first(bytes.size() - 1), "made"), Error);
  EXPECT_THROW(unpack(*codec, 2, bytes, "made"), Error);
  bytes.push_back(0);
  EXPECT_THROW(unpack(*codec, 3, bytes, "made"), Error);
  bytes.pop_back();
  bytes[3] |= 0x80;  // 15 codes of 2 bits are 30 bits
  EXPECT_THROW(unpack(*codec, 3, bytes, "made"), Error);
}

TEST(TensorCodec, WindowOfExactTokens) {
  // Tokens alone: all but the sinks and the last `residual`.
  EXPECT_EQ(coded_end(100, 4, 32, 1), 68);
  EXPECT_EQ(coded_end(20, 4, 32, 1), 4);
  EXPECT_EQ(coded_end(2, 4, 0, 1), 2);
  // KIVI with groups of 32 and residual 128: the first T - T mod 128.
  EXPECT_EQ(coded_end(127, 0, 128, 32), 0);
  EXPECT_EQ(coded_end(128, 0, 128, 32), 128);
  EXPECT_EQ(coded_end(300, 0, 128, 32), 256);
  // KVarN: tiles of 128 after 128 sinks, the incomplete one exact.
  EXPECT_EQ(coded_end(383, 128, 0, 128), 256);
  EXPECT_EQ(coded_end(384, 128, 128, 128), 384);
  for (const int64_t block : {1, 32, 48}) {
    for (int64_t tokens = 1, last = 0; tokens < 400; ++tokens) {
      const int64_t end = coded_end(tokens, 5, 64, block);
      EXPECT_GE(end, last);
      EXPECT_LE(end, tokens);
      EXPECT_EQ((end - std::min<int64_t>(5, tokens)) % block, 0);
      last = end;
    }
  }
}

TEST(TensorCodec, ErrorsNameTheToken) {
  std::vector<float> x = made_rows(4, 2, 5, 3);
  x[2 * 10 + 7] = std::nanf("");
  for (const auto& codec : {make_codec(channels(false)), make_codec(TokenQuantiser{2, 5, mixed_table(), 0})}) {
    try {
      codec->round_trip(x, x, 1, "layer 3 key", 100);
      FAIL() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.place(), "layer 3 key, token 102, head 1, channel 2");
    }
  }
}

}  // namespace
}  // namespace kvcc
