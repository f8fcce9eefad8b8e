#include "formats/layout/mma.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace kvcc::mma {
namespace {

constexpr Tensor kTensors[] = {Tensor::key, Tensor::value};
constexpr uint32_t kWidths[] = {2, 3, 4, 8};

/// A tile from codes [64, D].
std::vector<uint32_t> make_tile(const std::vector<uint32_t>& codes, Tensor tensor, uint32_t dim, uint32_t bits) {
  std::vector<uint32_t> tile(tile_words(dim, bits), 0xffffffffu);
  const uint32_t words = lane_words(dim, bits);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const auto pair_at = [&](uint32_t pair) {
      const Element first = element(tensor, dim, lane, pair, 0), second = element(tensor, dim, lane, pair, 1);
      return codes[first.token * dim + first.channel] | codes[second.token * dim + second.channel] << bits;
    };
    for (uint32_t w = 0; w < words; ++w) tile[word_place(w, lane, words)] = make_word(w, bits, pair_at);
  }
  return tile;
}

TEST(MmaCodes, UnpackWhatWasPacked) {
  EXPECT_TRUE(rc::check("get_code(make_word(codes)) == codes", [] {
    const uint32_t bits = *rc::gen::elementOf(std::vector<uint32_t>(std::begin(kWidths), std::end(kWidths)));
    const uint32_t dim = 16 * *rc::gen::inRange(1u, 17u);
    const Tensor tensor = *rc::gen::element(Tensor::key, Tensor::value);
    const auto codes = *rc::gen::container<std::vector<uint32_t>>(kPageTokens * dim, rc::gen::inRange(0u, 1u << bits));
    const auto tile = make_tile(codes, tensor, dim, bits);
    for (uint32_t i = 0; i < codes.size(); ++i) {
      RC_ASSERT(get_code(tile.data(), tensor, dim, bits, i / dim, i % dim) == codes[i]);
    }
  }));
}

TEST(MmaCodes, EveryDimensionAndWidth) {
  std::mt19937 random(1);
  for (const Tensor tensor : kTensors) {
    for (const uint32_t bits : kWidths) {
      for (uint32_t dim = 16; dim <= 256; dim += 16) {
        std::vector<uint32_t> codes(kPageTokens * dim);
        for (uint32_t& code : codes) code = random() & ((1u << bits) - 1u);
        const auto tile = make_tile(codes, tensor, dim, bits);
        for (uint32_t i = 0; i < codes.size(); ++i) {
          ASSERT_EQ(get_code(tile.data(), tensor, dim, bits, i / dim, i % dim), codes[i]) << dim << " " << bits;
        }
      }
    }
  }
}

/// Every bit of a tile belongs to exactly one code, so a tile takes 64 D b bits and not one more; three bits take
/// three.
TEST(MmaCodes, EveryBitIsOfOneCode) {
  for (const Tensor tensor : kTensors) {
    for (const uint32_t bits : kWidths) {
      for (const uint32_t dim : {16u, 80u}) {
        EXPECT_EQ(tile_words(dim, bits) * 32u, kPageTokens * dim * bits);
        EXPECT_EQ(lane_words(dim, bits) * kLanes, tile_words(dim, bits));
        std::vector<uint32_t> tile(tile_words(dim, bits), 0);
        std::vector<uint32_t> reader(tile.size());  // lane that reads a word
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
          for (uint32_t w = 0; w < lane_words(dim, bits); ++w)
            reader[word_place(w, lane, lane_words(dim, bits))] = lane;
        }
        std::set<std::tuple<uint32_t, uint32_t, uint32_t>> seen;
        for (uint32_t bit = 0; bit < 32u * tile.size(); ++bit) {
          tile[bit / 32] = 1u << bit % 32;
          const uint32_t lane = reader[bit / 32];
          int found = 0;
          for (uint32_t pair = 0; pair < dim; ++pair) {
            for (uint32_t second = 0; second < 2; ++second) {
              const Element at = element(tensor, dim, lane, pair, second);
              const uint32_t code = get_code(tile.data(), tensor, dim, bits, at.token, at.channel);
              if (code == 0) continue;
              ++found;
              ASSERT_EQ(code & (code - 1), 0u);
              ASSERT_TRUE(seen.insert({at.token, at.channel, code}).second);
            }
          }
          ASSERT_EQ(found, 1) << "bit " << bit;
          tile[bit / 32] = 0;
        }
      }
    }
  }
}

TEST(MmaCodes, PairOfAGroupIsTheSameFromTheGroupsWords) {
  for (const uint32_t bits : kWidths) {
    std::vector<uint32_t> pairs(16), group(bits);
    for (uint32_t e = 0; e < 16; ++e) pairs[e] = (e * 2654435761u >> 7) & ((1u << 2 * bits) - 1u);
    for (uint32_t w = 0; w < bits; ++w) group[w] = make_word(w, bits, [&](uint32_t e) { return pairs[e]; });
    for (uint32_t e = 0; e < 16; ++e) EXPECT_EQ(get_pair(group.data(), e, bits), pairs[e]) << bits << " " << e;
  }
}

TEST(MmaOrder, OwnerAndElementAreInverse) {
  for (const Tensor tensor : kTensors) {
    for (uint32_t dim = 16; dim <= 256; dim += 16) {
      std::vector<bool> seen(kLanes * dim * 2, false);
      for (uint32_t token = 0; token < kPageTokens; ++token) {
        for (uint32_t channel = 0; channel < dim; ++channel) {
          const Owner at = owner(tensor, dim, token, channel);
          ASSERT_TRUE(at.lane < kLanes && at.pair < dim && at.second < 2u);
          const Element back = element(tensor, dim, at.lane, at.pair, at.second);
          ASSERT_TRUE(back.token == token && back.channel == channel) << dim << " " << token << " " << channel;
          const uint32_t place = (at.lane * dim + at.pair) * 2 + at.second;
          ASSERT_FALSE(seen[place]);
          seen[place] = true;
        }
      }
    }
  }
}

TEST(MmaOrder, PlanesAreReadAsContiguousRuns) {
  for (uint32_t words = 1; words <= 128; ++words) {
    std::vector<bool> seen(words * kLanes, false);
    uint32_t plane_begin = 0;
    for (uint32_t word = 0; word < words;) {
      const uint32_t left = words - word, width = left >= 4 ? 4 : left >= 2 ? 2 : 1;
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        for (uint32_t i = 0; i < width; ++i) {
          const uint32_t place = word_place(word + i, lane, words);
          ASSERT_EQ(place, plane_begin + lane * width + i);  // lane by lane, each aligned to its own width
          ASSERT_FALSE(seen[place]);
          seen[place] = true;
        }
      }
      word += width;
      plane_begin += width * kLanes;
    }
    ASSERT_EQ(plane_begin, words * kLanes);
  }
}

TEST(MmaOrder, RopePartnersShareALane) {
  for (uint32_t dim = 16; dim <= 256; dim += 16) {
    for (uint32_t rotary = 16; rotary <= dim; rotary += 16) {
      for (uint32_t token = 0; token < kPageTokens; token += 13) {
        for (uint32_t i = 0; i < rotary / 2; ++i) {
          const Owner a = owner(Tensor::key, dim, token, i), b = owner(Tensor::key, dim, token, i + rotary / 2);
          ASSERT_EQ(a.lane, b.lane);
          ASSERT_EQ(a.second, b.second);
          const Owner c = owner(Tensor::key, dim, token, 2 * i), d = owner(Tensor::key, dim, token, 2 * i + 1);
          ASSERT_TRUE(c.lane == d.lane && c.pair == d.pair && c.second == 0u && d.second == 1u);
        }
      }
    }
  }
}

/// Pairs of neighbouring octets are registers of an A operand (intrinsics.cuh, mma_16816): keys give rows tokens and
/// columns channels, values rows channels and columns tokens.
TEST(MmaOrder, PairsAreHalvesOfOperandRegisters) {
  const uint32_t dim = 64;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    const uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t pair = 0; pair < dim; ++pair) {
      for (uint32_t second = 0; second < 2; ++second) {
        const Element key = element(Tensor::key, dim, lane, pair, second);
        ASSERT_EQ(key.token % 8, g);
        ASSERT_EQ(key.channel % 8, 2 * t + second);
        const Element value = element(Tensor::value, dim, lane, pair, second);
        ASSERT_EQ(value.channel % 8, g);
        ASSERT_EQ(value.token % 8, 2 * t + second);
        ASSERT_EQ(key.token / 8 * (dim / 8) + key.channel / 8, pair);
        ASSERT_EQ(value.token / 8 * (dim / 8) + value.channel / 8, pair);
      }
    }
  }
}

TEST(MmaRecords, PlaceAndClassNameElementAndCode) {
  for (const uint32_t bits : kWidths) {
    for (uint32_t token = 0; token < kPageTokens; ++token) {
      for (uint32_t channel = 0; channel < 256; ++channel) {
        const uint32_t code = (token * 7 + channel * 3) & ((1u << bits) - 1u);
        const uint32_t k = record_class(token);
        const uint16_t place = record_place(token, channel, code, bits);
        ASSERT_LT(k, kClasses);
        const Element at = record_element(place, k);
        ASSERT_TRUE(at.token == token && at.channel == channel);
        ASSERT_EQ(record_code(place), bits <= 4 ? code : 0u);
      }
    }
  }
}

TEST(MmaPage, PartsFollowOneAnotherAligned) {
  EXPECT_TRUE(rc::check("parts are in order, lists 16-byte aligned, pages multiples of 128 bytes", [] {
    const uint32_t heads = *rc::gen::inRange(1u, 33u), dim = 16 * *rc::gen::inRange(1u, 17u);
    PageShape s{};
    for (uint32_t h = 0; h < heads; ++h) s.code_words += tile_words(dim, kWidths[*rc::gen::inRange(0, 4)]);
    s.ranges = *rc::gen::inRange(0u, 2u);
    s.heads = heads;
    if (*rc::gen::arbitrary<bool>()) {
      s.classes = kClasses;
      s.capacity = 4 * *rc::gen::inRange(0u, 100u);
    }
    RC_ASSERT(ranges_offset(s) == 4ull * s.code_words);
    RC_ASSERT(ends_offset(s) == ranges_offset(s) + 256u * s.ranges);
    RC_ASSERT(records_offset(s) == ends_offset(s) + 2ull * heads * s.classes);
    RC_ASSERT(records_offset(s) % 16 == 0);
    RC_ASSERT(page_bytes(s) % kPageAlign == 0);
    const uint64_t end = records_offset(s) + 4ull * heads * s.capacity;
    RC_ASSERT(page_bytes(s) >= end && page_bytes(s) < end + kPageAlign);
  }));
}

TEST(MmaPage, Capacity) {
  EXPECT_EQ(default_capacity(0.01, 64), 96u);    // twice 40.96, past the next 16
  EXPECT_EQ(default_capacity(0.01, 128), 176u);  // twice 81.92
  EXPECT_EQ(default_capacity(0.0, 64), 16u);
}

TEST(MmaPage, WidthsAndDimensions) {
  for (const uint32_t bits : kWidths) {
    for (uint32_t dim = 16; dim <= 256; dim += 16) EXPECT_TRUE(supports(dim, bits));
    for (const uint32_t dim : {0u, 8u, 40u, 272u}) EXPECT_FALSE(supports(dim, bits));
  }
  for (const uint32_t bits : {0u, 1u, 5u, 6u, 7u, 9u}) EXPECT_FALSE(supports(64, bits));
}

}  // namespace
}  // namespace kvcc::mma
