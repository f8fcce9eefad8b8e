// The exactness chain of a codec: simulated values, encode and decode, and the packed bytes agree bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "formats/codec/tensor_codec.h"

namespace kvcc {

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// [T, H, D] as keys look: channels and tokens of different scales, an offset for some channels, heavy tails.
inline std::vector<float> made_rows(int64_t tokens, int heads, int dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> channel(heads * dim), offset(heads * dim), x;
  for (int i = 0; i < heads * dim; ++i) {
    channel[i] = std::exp(normal(random) * 0.7f);
    offset[i] = i % 5 == 0 ? 4 * normal(random) : 0;
  }
  for (int64_t t = 0; t < tokens; ++t) {
    const float token = std::exp(normal(random) * 0.5f) * (t % 37 == 5 ? 6.0f : 1.0f);
    for (int i = 0; i < heads * dim; ++i) x.push_back(token * (channel[i] * normal(random) + offset[i]));
  }
  return x;
}

/// Checks the chain and the parts that the codec announces; gives what the codec makes of x.
inline std::vector<float> expect_chain(const TensorCodec& codec, std::span<const float> x) {
  const int64_t tokens = static_cast<int64_t>(x.size()) / (codec.heads() * codec.dim());
  CodedTokens coded;
  codec.encode(x, coded, "made");
  std::vector<float> decoded(x.size()), simulated(x.size()), unpacked(x.size());
  codec.decode(coded, decoded);
  for (const int threads : {1, 3}) {
    codec.round_trip(x, simulated, threads, "made");
    EXPECT_TRUE(same_bits(decoded, simulated)) << threads << " threads";
  }
  simulated.assign(x.begin(), x.end());
  codec.round_trip(simulated, simulated, 2, "made");
  EXPECT_TRUE(same_bits(decoded, simulated)) << "in place";

  const std::vector<uint8_t> bytes = pack(coded);
  const CodedTokens back = unpack(codec, tokens, bytes, "made");
  codec.decode(back, unpacked);
  EXPECT_TRUE(same_bits(decoded, unpacked));
  size_t wanted = 0;
  for (const CodedPart& part : coded) wanted += (part.values.size() * part.bits + 7) / 8;
  EXPECT_EQ(bytes.size(), wanted);
  const std::vector<PartShape> parts = codec.parts(tokens);
  EXPECT_EQ(parts.size(), coded.size());
  for (size_t p = 0; p < std::min(parts.size(), coded.size()); ++p) {
    EXPECT_STREQ(parts[p].name, coded[p].name);
    if (parts[p].count != kCountedBefore) {
      EXPECT_EQ(parts[p].count, static_cast<int64_t>(coded[p].values.size())) << parts[p].name;
    }
    for (const uint16_t value : coded[p].values) EXPECT_LT(value, 1 << parts[p].bits) << parts[p].name;
  }
  return decoded;
}

}  // namespace kvcc
