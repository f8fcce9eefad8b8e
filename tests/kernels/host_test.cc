#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "formats/core/error.h"
#include "kernels/host/checks.h"

namespace kvcc::host {
namespace {

using testing::HasSubstr;

const KernelFacts kKey{"pack_key", 3, 64, false, linear::Sparse::csr, 64, 3, 30, 3, false};
const KernelFacts kValue{"value_mix", 3, 64, true, linear::Sparse::tail, 0, 3, 30, 3, false};

alignas(128) uint8_t pages[128];
int32_t numbers[4];
float floats[4];
uint32_t counts[4];
uint16_t halves[4];

KvccCache good_cache(const KernelFacts& kernel) {
  KvccCache c{};
  c.pages = pages;
  c.lengths = numbers;
  c.exact = halves;
  c.scale = c.zero = c.lower = c.upper = floats;
  c.needed = counts;
  c.code_words = 1152;
  c.sparse_capacity = kernel.sparse == linear::Sparse::csr ? 256 : 0;
  c.tail = kernel.sparse == linear::Sparse::tail ? 1 : 0;
  c.page_bytes = kernel.token_axis ? 5376 : 5888;  // formats/spec/cache.md, table of sizes
  c.max_pages = 4;
  c.sequences = 1;
  c.heads = 3;
  c.sink = 1;
  c.layer = 29;
  return c;
}

template <class Params>
std::string refusal(const KernelFacts& kernel, Params params, const std::function<void(Params&)>& spoil) {
  spoil(params);
  try {
    check(kernel, params);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Checks, PackNamesTheWrongArgument) {
  KvccPackParams p{};
  p.cache = good_cache(kKey);
  p.x = floats;
  p.first = numbers;
  p.status = counts;
  p.count = 1;
  using P = KvccPackParams;
  const auto with = [&](const std::function<void(P&)>& spoil) { return refusal<P>(kKey, p, spoil); };
  EXPECT_EQ(with([](P&) {}), "accepted");
  EXPECT_THAT(with([](P& q) { q.cache.pages = nullptr; }), HasSubstr("pack_key, cache.pages: null"));
  EXPECT_THAT(with([](P& q) { q.cache.pages += 4; }), HasSubstr("128-byte"));
  EXPECT_THAT(with([](P& q) { q.cache.exact = nullptr; }), HasSubstr("cache.exact"));
  EXPECT_THAT(with([](P& q) { q.cache.scale = nullptr; }), HasSubstr("cache.scale"));
  EXPECT_THAT(with([](P& q) { q.cache.upper = nullptr; }), HasSubstr("cache.upper"));
  EXPECT_THAT(with([](P& q) { q.cache.needed = nullptr; }), HasSubstr("cache.needed"));
  EXPECT_THAT(with([](P& q) { q.cache.heads = 9; }), HasSubstr("cache.heads: 9; wanted 3"));
  EXPECT_THAT(with([](P& q) { q.cache.layer = 30; }), HasSubstr("wanted 0 to 29"));
  EXPECT_THAT(with([](P& q) { q.cache.code_words = 768; }), HasSubstr("cache.code_words: 768; wanted 1152"));
  EXPECT_THAT(with([](P& q) { q.cache.page_bytes = 5376; }), HasSubstr("cache.page_bytes: 5376; wanted 5888"));
  EXPECT_THAT(with([](P& q) { q.cache.tail = 1; }), HasSubstr("cache.tail"));
  EXPECT_THAT(with([](P& q) { q.x = nullptr; }), HasSubstr("x: null"));
  EXPECT_THAT(with([](P& q) { q.status = nullptr; }), HasSubstr("status"));
  EXPECT_THAT(with([](P& q) { q.count = 0; }), HasSubstr("count: 0; wanted at least 1"));
  EXPECT_THAT(with([](P& q) { q.repeat_above = 8; }), HasSubstr("repeat_above: 8; wanted 0"));
  EXPECT_EQ(with([](P& q) { q.cache.lengths = nullptr; }), "accepted");  // pack does not read it
}

TEST(Checks, ReadersNameTheWrongArgument) {
  KvccKeyScoresParams k{};
  k.cache = good_cache(kKey);
  k.query = k.cosine = k.sine = floats;
  k.scores = floats;
  k.scores_stride = 100;
  k.group = 3;
  k.max_length = 100;
  using K = KvccKeyScoresParams;
  EXPECT_EQ(refusal<K>(kKey, k, [](K&) {}), "accepted");
  EXPECT_THAT(refusal<K>(kKey, k, [](K& q) { q.cache.lengths = nullptr; }), HasSubstr("cache.lengths"));
  EXPECT_THAT(refusal<K>(kKey, k, [](K& q) { q.sine = nullptr; }), HasSubstr("sine"));
  EXPECT_THAT(refusal<K>(kKey, k, [](K& q) { q.group = 1; }), HasSubstr("group: 1; wanted 3"));
  EXPECT_THAT(refusal<K>(kKey, k, [](K& q) { q.scores_stride = 99; }), HasSubstr("scores_stride"));

  KvccValueMixParams v{};
  v.cache = good_cache(kValue);
  v.weights = floats;
  v.out = floats;
  v.weights_stride = 10;
  v.group = 3;
  v.splits = 1;
  using V = KvccValueMixParams;
  EXPECT_EQ(refusal<V>(kValue, v, [](V&) {}), "accepted");
  EXPECT_THAT(refusal<V>(kValue, v, [](V& q) { q.splits = 2; }), HasSubstr("partial"));
  EXPECT_THAT(refusal<V>(kValue, v, [](V& q) { q.splits = 0; }), HasSubstr("splits"));
  EXPECT_THAT(refusal<V>(kValue, v, [](V& q) { q.cache.tail = 0; }), HasSubstr("cache.tail"));
  EXPECT_THAT(refusal<V>(kValue, v, [](V& q) { q.cache.tail = 96; }), HasSubstr("between the tails"));

  EXPECT_THAT(refusal<V>(kValue, v, [](V& q) { q.window = 5; }), HasSubstr("window: 5; wanted 0"));

  KvccDequantiseParams d{good_cache(kKey), floats, numbers, 5};
  using D = KvccDequantiseParams;
  EXPECT_EQ(refusal<D>(kKey, d, [](D&) {}), "accepted");
  EXPECT_THAT(refusal<D>(kKey, d, [](D& q) { q.out = nullptr; }), HasSubstr("out"));
}

TEST(MostNeeded, IsTheLargest) {
  const uint32_t needed[] = {3, 700, 12};
  EXPECT_EQ(most_needed(needed, 3), 700u);
  EXPECT_EQ(most_needed(needed, 0), 0u);
}

}  // namespace
}  // namespace kvcc::host
