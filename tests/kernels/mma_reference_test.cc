// The oracle of layout mma-1: what it packs decodes to the codec's round trip, and converts to linear-1 and back
// without a change of a byte.
#include "kernels/reference/mma_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstring>

#include "formats/core/error.h"
#include "tests/kernels/mma_cases.h"

namespace kvcc::test {
namespace {

using mma::Tensor;
using reference::CacheOptions;

/// round_trip() of the packed tokens, fp16 of the others.
template <class Quantiser>
std::vector<float> wanted_rows(const Quantiser& q, const std::vector<float>& x, const CacheOptions& options) {
  const int64_t columns = int64_t{q.heads} * q.dim, tokens = static_cast<int64_t>(x.size()) / columns;
  std::vector<float> out(x.size());
  round_trip(q, x, out);
  for (int64_t p = 0; p < tokens; ++p) {
    if (p >= options.sink && p < tokens - options.residual) continue;
    round_to_record(std::span(x).subspan(p * columns, columns), std::span(out).subspan(p * columns, columns), "x");
  }
  return out;
}

template <class Quantiser>
void check(const Quantiser& q, Tensor tensor, int tokens, const CacheOptions& options, std::mt19937& random) {
  SCOPED_TRACE(testing::Message() << "tensor " << static_cast<int>(tensor) << " heads " << q.heads << " dim " << q.dim
                                  << " tokens " << tokens << " sink " << options.sink << " residual "
                                  << options.residual);
  const auto x = make_rows(tokens, q.heads * q.dim, random);
  const auto packed = reference::pack_mma(q, tensor, x, options);
  const auto found = reference::unpack(q, packed), wanted = wanted_rows(q, x, options);
  ASSERT_EQ(found.size(), wanted.size());
  ASSERT_TRUE(std::equal(found.begin(), found.end(), wanted.begin(),
                         [](float a, float b) { return float_bits(a) == float_bits(b); }));

  const auto linear = reference::pack(q, x, {options.sink, options.residual, 64});
  const auto from_linear = reference::to_mma(q, linear, tensor, options.capacity);
  ASSERT_EQ(from_linear.pages, packed.pages);
  ASSERT_EQ(from_linear.exact, packed.exact);
  ASSERT_EQ(from_linear.needed, packed.needed);
  const auto back = reference::to_linear(q, packed, 64);
  ASSERT_EQ(back.pages, linear.pages);
  ASSERT_EQ(back.exact, linear.exact);
  ASSERT_EQ(back.needed, linear.needed);
}

TEST(MmaReference, UnpacksToTheRoundTripAndConvertsWithoutLoss) {
  std::mt19937 random(11);
  const std::vector<uint8_t> widths = {2, 3, 4, 8};
  for (const uint8_t bits : widths) {
    for (const int dim : {16, 64, 80, 96, 128, 192, 256}) {
      for (const Tensor tensor : {Tensor::key, Tensor::value}) {
        const auto key = make_channel_quantiser(2, dim, {bits, bits}, true, random);
        check(key, tensor, 70, {.sink = 1, .residual = 3}, random);
        const auto value = make_token_quantiser(2, dim, {bits, bits}, 1, random);
        check(value, tensor, 70, {.capacity = 40}, random);
      }
    }
  }
}

TEST(MmaReference, HeadsMayDifferInWidth) {
  std::mt19937 random(12);
  for (const Tensor tensor : {Tensor::key, Tensor::value}) {
    check(make_channel_quantiser(4, 64, {3, 8, 2, 4}, true, random), tensor, 130, {.sink = 2}, random);
    check(make_token_quantiser(4, 64, {4, 2, 8, 3}, 3, random), tensor, 130, {.residual = 5}, random);
  }
}

TEST(MmaReference, EdgeShapes) {
  std::mt19937 random(13);
  const auto key = make_channel_quantiser(3, 64, {3, 3, 3}, true, random);
  const auto dense = make_channel_quantiser(3, 64, {3, 3, 3}, false, random);
  const auto value = make_token_quantiser(3, 64, {3, 3, 3}, 0, random);
  for (const int tokens : {0, 1, 4, 63, 64, 65, 127, 128, 129, 200}) {
    for (const int sink : {0, 4}) {
      for (const int residual : {0, 1, 64, 150}) {
        const CacheOptions options{.sink = sink, .residual = residual};
        check(key, Tensor::key, tokens, options, random);
        check(dense, Tensor::key, tokens, options, random);
        check(value, Tensor::value, tokens, options, random);
      }
    }
  }
}

TEST(MmaReference, AnyShapeConvertsWithoutLoss) {
  EXPECT_TRUE(rc::check("to_linear(to_mma(x)) == x, to_mma(to_linear(x)) == x, unpack is the round trip", [] {
    std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
    const int heads = *rc::gen::inRange(1, 5), dim = 16 * *rc::gen::inRange(1, 9);
    const auto bits = *rc::gen::container<std::vector<uint8_t>>(heads, rc::gen::element<uint8_t>(2, 3, 4, 8));
    const Tensor tensor = *rc::gen::element(Tensor::key, Tensor::value);
    const CacheOptions options{*rc::gen::inRange(0, 6), *rc::gen::inRange(0, 70), *rc::gen::inRange(0u, 200u)};
    const int tokens = *rc::gen::inRange(0, 200);
    if (*rc::gen::arbitrary<bool>()) {
      check(make_channel_quantiser(heads, dim, bits, *rc::gen::arbitrary<bool>(), random), tensor, tokens, options,
            random);
    } else {
      check(make_token_quantiser(heads, dim, bits, *rc::gen::inRange(0, 4), random), tensor, tokens, options, random);
    }
    RC_ASSERT(!testing::Test::HasFailure());
  }));
}

TEST(MmaReference, EveryElementAnOutlierStillFits) {
  std::mt19937 random(14);
  auto key = make_channel_quantiser(1, 256, {2}, true, random);
  key.threshold_lower.assign(256, 1000.0f);
  key.threshold_upper.assign(256, 1001.0f);
  const auto x = make_rows(64, 256, random);
  for (const Tensor tensor : {Tensor::key, Tensor::value}) {
    const auto cache = reference::pack_mma(key, tensor, x, {});
    EXPECT_EQ(cache.shape.capacity, 64u * 256u);
    EXPECT_EQ(reference::unpack(key, cache), wanted_rows(key, x, {}));
  }
}

TEST(MmaReference, RefusesWhatTheLayoutLacks) {
  std::mt19937 random(15);
  const auto odd = make_channel_quantiser(1, 64, {5}, false, random);
  EXPECT_THROW(reference::make_mma_cache(odd, Tensor::key, 1, {}), Error);
  const auto narrow = make_token_quantiser(1, 40, {4}, 0, random);
  EXPECT_THROW(reference::make_mma_cache(narrow, Tensor::value, 1, {}), Error);
  const auto wide = make_token_quantiser(1, 272, {4}, 0, random);
  EXPECT_THROW(reference::make_mma_cache(wide, Tensor::value, 1, {}), Error);
  // A page whose records were not all kept is not converted.
  const auto key = make_channel_quantiser(1, 64, {3}, true, random);
  auto cache = reference::pack_mma(key, Tensor::key, make_rows(64, 64, random), {});
  uint16_t ends[mma::kClasses];
  std::memcpy(ends, cache.page(0) + mma::ends_offset(cache.shape), sizeof ends);
  ends[7] = static_cast<uint16_t>(cache.shape.capacity + 1);
  std::memcpy(cache.page(0) + mma::ends_offset(cache.shape), ends, sizeof ends);
  EXPECT_THROW(reference::to_linear(key, cache, 0), Error);
}

TEST(MmaReference, BatchesKeepEverySequencesBytes) {
  std::mt19937 random(16);
  const auto q = make_token_quantiser(2, 64, {3, 3}, 1, random);
  std::vector<reference::MmaCache> caches;
  for (const int tokens : {0, 1, 65, 200}) {
    caches.push_back(reference::pack_mma(q, Tensor::value, make_rows(tokens, 128, random), {.capacity = 128}));
  }
  auto batch = make_batch(caches, random);
  const KvccCache c = batch.view();
  EXPECT_EQ(c.sequences, 4);
  EXPECT_EQ(c.max_pages, 4);
  for (size_t s = 0; s < caches.size(); ++s) {
    EXPECT_EQ(c.lengths[s], caches[s].tokens);
    for (int i = 0; i < caches[s].page_count(); ++i) {
      EXPECT_EQ(std::memcmp(c.pages + c.page_table[s * 4 + i] * c.page_bytes, caches[s].page(i), c.page_bytes), 0);
    }
  }
}

}  // namespace
}  // namespace kvcc::test
