// Properties that hold for every quantiser: the fast path equals encode and decode bit for bit, tails are exact in
// number, decoded codes encode to themselves.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstring>

#include "formats/codec/reference.h"
#include "formats/codec/tails.h"

namespace kvcc {
namespace {

/// A value on a coarse or a fine lattice, so that ties, zeros of both signs and fine differences all occur.
rc::Gen<float> value() {
  return rc::gen::map(rc::gen::tuple(rc::gen::inRange(-40, 41), rc::gen::inRange(0, 4), rc::gen::inRange(-3, 4)),
                      [](const std::tuple<int, int, int>& t) {
                        const auto [whole, kind, power] = t;
                        const float base = whole == 0 && kind == 1 ? -0.0f : static_cast<float>(whole) / 8.0f;
                        return kind >= 2 ? base * std::ldexp(1.0f + 1e-3f * static_cast<float>(whole), 2 * power)
                                         : base;
                      });
}

LevelTable any_table(int heads) {
  LevelTable table;
  table.heads = heads;
  for (int h = 0; h < heads; ++h) table.bits.push_back(static_cast<uint8_t>(*rc::gen::inRange(1, 9)));
  for (const uint8_t bits : table.bits) table.stride = std::max(table.stride, 1 << bits);
  for (const uint8_t bits : table.bits) {
    std::vector<float> levels = *rc::gen::container<std::vector<float>>(
        1 << bits, rc::gen::map(rc::gen::inRange(-64, 65), [](int i) { return static_cast<float>(i) / 64.0f; }));
    std::sort(levels.begin(), levels.end());  // repeats are common: 129 values for up to 256 levels
    levels.resize(table.stride, std::nanf(""));
    table.levels.insert(table.levels.end(), levels.begin(), levels.end());
  }
  return table;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

template <typename Quantiser>
void check_round_trip(const Quantiser& q, const std::vector<float>& x, int rows) {
  const int n = q.heads * q.dim;
  std::vector<float> slow(x.size()), fast(x.size());
  int64_t outliers = 0;
  EncodedToken token;
  for (int t = 0; t < rows; ++t) {
    encode(q, std::span(x).subspan(t * n, n), token);
    RC_ASSERT(std::is_sorted(token.sparse.begin(), token.sparse.end(),
                             [](const SparseEntry& a, const SparseEntry& b) { return a.column <= b.column; }));
    outliers += static_cast<int64_t>(token.sparse.size());
    decode(q, token, std::span(slow).subspan(t * n, n));
  }
  for (const int threads : {1, 3}) {
    RC_ASSERT(round_trip(q, x, fast, threads) == outliers);
    RC_ASSERT(same_bits(slow, fast));
  }
  std::vector<float> in_place = x;
  round_trip(q, in_place, in_place, 2);
  RC_ASSERT(same_bits(slow, in_place));
}

TEST(CodecProperties, ChannelRoundTripIsEncodeThenDecode) {
  ASSERT_TRUE(rc::check([] {
    const int heads = *rc::gen::inRange(1, 4), dim = *rc::gen::inRange(1, 40), rows = *rc::gen::inRange(0, 5);
    const size_t n = static_cast<size_t>(heads) * dim;
    ChannelQuantiser q{heads, dim, any_table(heads), {}, {}, {}, {}};
    const bool sparse = *rc::gen::arbitrary<bool>();
    for (size_t i = 0; i < n; ++i) {
      const float a = *value(), b = *value();
      q.scale.push_back(std::max(0.5f * std::fabs(a - b), kLeastScale));
      q.zero.push_back(0.5f * (a + b));
      if (sparse) q.threshold_lower.push_back(std::min(a, b)), q.threshold_upper.push_back(std::max(a, b));
    }
    check_round_trip(q, *rc::gen::container<std::vector<float>>(n * rows, value()), rows);
  }));
}

TEST(CodecProperties, TokenRoundTripIsEncodeThenDecode) {
  ASSERT_TRUE(rc::check([] {
    const int heads = *rc::gen::inRange(1, 4), dim = *rc::gen::inRange(3, 40), rows = *rc::gen::inRange(0, 5);
    const int n = heads * dim;
    TokenQuantiser q{heads, dim, any_table(heads), *rc::gen::inRange(0, std::min(4, (n - 1) / 2 + 1))};
    check_round_trip(q, *rc::gen::container<std::vector<float>>(static_cast<size_t>(n) * rows, value()), rows);
  }));
}

TEST(CodecProperties, TailsAreTheEndsOfTheTotalOrder) {
  ASSERT_TRUE(rc::check([] {
    const int n = *rc::gen::inRange(3, 80), tail = *rc::gen::inRange(0, (n - 1) / 2 + 1);
    const std::vector<float> x = *rc::gen::container<std::vector<float>>(n, value());
    std::vector<int> order(n);
    for (int i = 0; i < n; ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](int a, int b) { return tail_less(x[a], a, x[b], b); });
    std::vector<uint16_t> wanted(order.begin(), order.begin() + tail);
    wanted.insert(wanted.end(), order.end() - tail, order.end());
    std::sort(wanted.begin(), wanted.end());
    RowTails tails;
    split_tails(x, tail, tails);
    RC_ASSERT(tails.columns == wanted);
    RC_ASSERT(tails.low == x[order[tail]]);
    RC_ASSERT(tails.high == x[order[n - 1 - tail]]);
  }));
}

TEST(CodecProperties, DecodedCodesEncodeToThemselves) {
  for (int bits = 1; bits <= 8; ++bits) {
    LevelTable table{1, 1 << bits, integer_levels(bits), {static_cast<uint8_t>(bits)}};
    ChannelQuantiser q{1, 1 << bits, table, {}, {}, {}, {}};
    EncodedToken token, again;
    for (int c = 0; c < q.dim; ++c) {  // every code once, at scales from 2^-20 to 2^19
      token.codes.push_back(static_cast<uint8_t>(c));
      q.scale.push_back(std::ldexp(1.37f, c % 40 - 20));
      q.zero.push_back(q.scale.back() * static_cast<float>(c % 7 - 3));
    }
    std::vector<float> x(q.dim);
    decode(q, token, x);
    encode(q, x, again);
    EXPECT_EQ(again.codes, token.codes) << bits;
  }
  for (int bits = 2; bits <= 4; ++bits) {  // online: the scale is held by the two ends of the row
    TokenQuantiser q{1, 1 << bits, {1, 1 << bits, normal_float_levels(bits), {static_cast<uint8_t>(bits)}}, 0};
    EncodedToken token, again;
    for (int c = 0; c < q.dim; ++c) token.codes.push_back(static_cast<uint8_t>(c));
    token.range = token_range(-1.5f, 2.5f);
    std::vector<float> x(q.dim);
    decode(q, token, x);
    encode(q, x, again);
    EXPECT_EQ(again.codes, token.codes) << bits;
    EXPECT_EQ(again.range.scale, token.range.scale);
    EXPECT_EQ(again.range.zero, token.range.zero);
  }
}

}  // namespace
}  // namespace kvcc
