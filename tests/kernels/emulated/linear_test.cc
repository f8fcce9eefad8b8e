// The families of layout linear-1 in the emulator. parity_test.cc covers their configurations in plain loops, phase by
// phase; here a few run as the device runs them, with barriers, atomics and every schedule.
#include "kernels/device/dequantise.cuh"
#include "kernels/device/key_scores.cuh"
#include "kernels/device/pack_channel.cuh"
#include "kernels/device/pack_token.cuh"
#include "kernels/device/value_mix.cuh"
#include "tests/kernels/emulated/rows.h"
#include "tests/kernels/emulated/schedules.h"

namespace kvcc::test {
namespace {

constexpr int kHeads = 2, kDim = 64, kGroup = 3;

struct Pool {
  std::vector<uint8_t> pages;
  std::vector<uint16_t> exact;
  std::vector<uint32_t> needed;
  uint32_t status = 0;
  bool operator==(const Pool&) const = default;
};

/// Two calls, of which the second continues a page.
template <class Body, class Q>
void check_pack(const Q& q, const std::vector<float>& x, int tokens) {
  constexpr int kSink = 1;
  const auto wanted = reference::pack(q, x, {.sink = kSink});
  const auto found = under_all_schedules([&](const emulator::Options& options) {
    auto cache = reference::make_cache(q, tokens, {.sink = kSink, .capacity = wanted.shape.entries});
    Pool pool;
    for (const auto& [first, count] : {std::pair{0, tokens - 5}, std::pair{tokens - 5, 5}}) {
      const int32_t begin = first;
      const std::vector<uint8_t> bytes =
          as_dtype({x.begin() + first * kHeads * kDim, x.begin() + (first + count) * kHeads * kDim}, Dtype::f16);
      KvccPackParams p{};
      p.cache = view(cache, nullptr);
      set_constants(p.cache, q);
      p.x = bytes.data();
      p.first = &begin;
      p.count = count;
      p.status = &pool.status;
      const bool channel = std::is_same_v<Q, ChannelQuantiser>;
      emulator::run<Body>(p, channel ? kvcc_grid_pack_channel(&p) : kvcc_grid_pack_token(&p), options, "pack");
    }
    pool.pages = cache.pages;
    pool.exact = cache.exact;
    pool.needed = cache.needed;
    return pool;
  });
  EXPECT_TRUE(found == (Pool{wanted.pages, wanted.exact, wanted.needed}));
}

template <class C, class Q>
void check_dequantise(const Q& q, reference::LinearCache& cache) {
  const auto wanted = reference::unpack(q, cache);
  const int32_t length = static_cast<int32_t>(cache.tokens), first = 0;
  const auto found = under_all_schedules([&](const emulator::Options& options) {
    std::vector<float> out(wanted.size(), 12345.0f);
    KvccDequantiseParams p{};
    p.cache = view(cache, &length);
    set_constants(p.cache, q);
    p.out = out.data();
    p.first = &first;
    p.count = length;
    emulator::run<device::Dequantise<C>>(p, kvcc_grid_dequantise(&p, kDim), options, "dequantise");
    return bits_of(out);
  });
  EXPECT_EQ(found, bits_of(wanted));
}

void expect_sums(const std::vector<uint32_t>& found, const reference::Sums& wanted, int terms) {
  ASSERT_EQ(found.size(), wanted.value.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(bits_float(found[i]), wanted.value[i], std::ldexp(terms, -23) * wanted.magnitude[i] + 1e-37) << i;
  }
}

TEST(EmulatedLinear, Keys) {
  using C = Config<3, kDim, Axis::channel, Sparse::csr, Rope::half, kDim, kGroup, Dtype::f16>;
  std::mt19937 random(1);
  const int tokens = kSmall ? 40 : 131;
  const auto q = make_channel_quantiser(kHeads, kDim, {3, 3}, true, random);
  const auto x = make_rows(tokens, kHeads * kDim, random);
  check_pack<device::PackChannel<C>>(q, x, tokens);
  auto cache = reference::pack(q, x, {.sink = 1, .residual = 20});
  check_dequantise<C>(q, cache);

  const auto query = make_rows(kHeads * kGroup, kDim, random);
  const auto bytes = as_dtype(query, Dtype::f16);
  const auto rope = make_rope(kDim, false, tokens);
  const int32_t length = tokens;
  const auto found = under_all_schedules([&](const emulator::Options& options) {
    std::vector<float> scores(static_cast<size_t>(kHeads) * kGroup * tokens, -1.0f);
    KvccKeyScoresParams p{};
    p.cache = view(cache, &length);
    set_constants(p.cache, q);
    p.query = bytes.data();
    p.cosine = rope.cosine.data();
    p.sine = rope.sine.data();
    p.scores = scores.data();
    p.scores_stride = tokens;
    p.multiplier = 0.125f;
    p.group = kGroup;
    p.max_length = length;
    emulator::run<device::KeyScores<C>>(p, kvcc_grid_key_scores(&p, kDim), options, "key_scores");
    return bits_of(scores);
  });
  expect_sums(found, reference::key_scores(reference::unpack(q, cache), query, kHeads, kDim, kGroup, rope, 0.125f),
              kDim + 2);
}

TEST(EmulatedLinear, Values) {
  using C = Config<3, kDim, Axis::token, Sparse::tail, Rope::none, 0, kGroup, Dtype::f16>;
  std::mt19937 random(2);
  const int tokens = kSmall ? 12 : 80;
  const auto q = make_token_quantiser(kHeads, kDim, {3, 3}, 2, random);
  const auto x = make_rows(tokens, kHeads * kDim, random);
  check_pack<device::PackToken<C>>(q, x, tokens);
  auto cache = reference::pack(q, x, {.sink = 1, .residual = 5});
  check_dequantise<C>(q, cache);

  const auto weights = make_rows(kHeads * kGroup, tokens, random);
  const auto bytes = as_dtype(weights, Dtype::f16);
  const int32_t length = tokens;
  const int splits = 3;
  const auto found = under_all_schedules([&](const emulator::Options& options) {
    std::vector<float> out(static_cast<size_t>(kHeads) * kGroup * kDim, -1.0f), partial(out.size() * splits, -1.0f);
    KvccValueMixParams p{};
    p.cache = view(cache, &length);
    p.weights = bytes.data();
    p.weights_stride = tokens;
    p.partial = partial.data();
    p.out = out.data();
    p.group = kGroup;
    p.splits = splits;
    emulator::run<device::ValueMix<C>>(p, kvcc_grid_value_mix(&p), options, "value_mix");
    emulator::run<device::ValueMerge<C>>(p, kvcc_grid_value_merge(&p, kDim), options, "value_mix_merge");
    return bits_of(out);
  });
  expect_sums(found, reference::value_mix(reference::unpack(q, cache), weights, kHeads, kDim, kGroup), tokens + splits);
}

}  // namespace
}  // namespace kvcc::test
