// The scalar kernels of vector codebooks, of both forms, in the emulator: what is stored equals the reference to the
// byte, sums lie within their rounding, and every schedule gives the same bits.
#include <algorithm>

#include "formats/codec/vector_tables.h"
#include "kernels/device/value_mix.cuh"
#include "kernels/device/vector_dequantise.cuh"
#include "kernels/device/vector_key_scores.cuh"
#include "kernels/device/vector_pack.cuh"
#include "kernels/device/vector_value_mix.cuh"
#include "kernels/reference/attention.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/emulated/schedules.h"
#include "tests/kernels/vector_cases.h"

namespace kvcc::test {
namespace {

using device::Dtype;
using device::Rope;

constexpr int kHeads = 2, kGroup = 3;

template <bool transform, int dim, Rope rope, int rotary, int tile = kGroup, Dtype dtype = Dtype::f16>
struct VectorConfig {
  static constexpr bool kTransform = transform, kMixed = false;
  static constexpr int kHeadDim = dim, kRotaryDim = rotary, kGroupTile = tile;
  static constexpr Rope kRope = rope;
  static constexpr Dtype kDtype = dtype;
};

/// One sequence's tensor, and what kernels take of it.
struct Side {
  Side(bool transform, int dim, int tokens, int residual, uint32_t seed)
      : random(seed),
        q(make_vector_quantiser({kHeads, dim, transform, kSmall ? 3 : 7, 5}, random)),
        tables(q),
        x(make_rows(tokens, kHeads * dim, random)),
        cache(reference::pack_vector(q, x, {1, residual, 0})),
        length(tokens) {}
  KvccCache view() {
    KvccCache c{};
    c.pages = cache.pages.data();
    c.lengths = &length;
    c.exact = cache.exact.data();
    c.head_words = cache.shape.head_words.data();
    c.page_bytes = static_cast<int64_t>(cache.shape.page_bytes());
    c.max_pages = cache.page_count();
    c.sequences = 1;
    c.heads = kHeads;
    c.sink = cache.sink;
    c.residual = cache.residual;
    return c;
  }
  std::mt19937 random;
  VectorQuantiser q;
  VectorTables tables;
  std::vector<float> x;
  reference::VectorCache cache;
  int32_t length;
};

struct Pool {
  std::vector<uint8_t> pages;
  std::vector<uint16_t> exact;
  uint32_t status = 0;
  bool operator==(const Pool&) const = default;
};

/// Calls that begin, continue and end pages.
template <class C>
void check_pack(uint32_t seed) {
  const int tokens = kSmall ? 12 : C::kHeadDim > 64 ? 70 : 150;
  Side side(C::kTransform, C::kHeadDim, tokens, 0, seed);
  const Pool wanted{side.cache.pages, side.cache.exact, 0};
  const int columns = kHeads * C::kHeadDim;
  const auto found = under_all_schedules([&](const emulator::Options& options) {
    Pool pool;
    std::fill(side.cache.pages.begin(), side.cache.pages.end(), uint8_t{0xff});
    // Padding of the page stays as it is.
    for (int i = 0; i < side.cache.page_count(); ++i) {
      const uint64_t bytes = side.cache.shape.page_bytes(), used = uint64_t{side.cache.shape.code_words} * 4;
      std::fill_n(side.cache.pages.begin() + static_cast<ptrdiff_t>(i * bytes + used), bytes - used, uint8_t{0});
    }
    std::fill(side.cache.exact.begin(), side.cache.exact.end(), uint16_t{0x7e01});
    for (int32_t first = 0, count = tokens / 2; first < tokens; first += count, count = std::min(5, tokens - first)) {
      const std::vector<uint8_t> bytes =
          as_dtype({side.x.begin() + first * columns, side.x.begin() + static_cast<ptrdiff_t>(first + count) * columns},
                   C::kDtype);
      KvccVectorPackParams p{};
      p.pack.cache = side.view();
      p.pack.x = bytes.data();
      p.pack.first = &first;
      p.pack.count = count;
      p.pack.status = &pool.status;
      p.tensor = side.tables.tensor();
      emulator::run<device::VectorPack<C>>(p, kvcc_grid_mma_pack(&p.pack), options, "vector pack");
    }
    pool.pages = side.cache.pages;
    pool.exact = side.cache.exact;
    return pool;
  });
  EXPECT_TRUE(found == wanted);
}

template <class C>
void check_dequantise(Side& side) {
  const auto wanted = reference::unpack(side.q, side.cache);
  const int32_t first = 0;
  const auto found = under_all_schedules([&](const emulator::Options& options) {
    std::vector<float> out(wanted.size(), 12345.0f);
    KvccVectorDequantiseParams p{};
    p.dequantise = {side.view(), out.data(), &first, side.length};
    p.tensor = side.tables.tensor();
    emulator::run<device::VectorDequantise<C>>(p, kvcc_grid_dequantise(&p.dequantise, C::kHeadDim), options,
                                               "vector dequantise");
    return bits_of(out);
  });
  EXPECT_EQ(found, bits_of(wanted));
}

template <class C>
void check_rows(uint32_t seed) {
  Side side(C::kTransform, C::kHeadDim, kSmall ? 12 : 70, kSmall ? 3 : 7, seed);
  check_dequantise<C>(side);
}

void expect_sums(const std::vector<uint32_t>& found, const reference::Sums& wanted,
                 const std::vector<double>& magnitude, int terms) {
  ASSERT_EQ(found.size(), wanted.value.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(bits_float(found[i]), wanted.value[i], std::ldexp(terms, -23) * magnitude[i] + 1e-37) << i;
  }
}

template <class C>
void check_keys(uint32_t seed) {
  constexpr int D = C::kHeadDim;
  const int tokens = kSmall ? 20 : 100;
  Side side(C::kTransform, D, tokens, kSmall ? 3 : 20, seed);
  check_dequantise<C>(side);
  const auto query = make_rows(kHeads * C::kGroupTile, D, side.random);
  const auto bytes = as_dtype(query, C::kDtype);
  const auto rope = make_rope(C::kRotaryDim, C::kRope == Rope::interleaved, tokens);
  const auto found = under_all_schedules([&](const emulator::Options& options) {
    std::vector<float> scores(static_cast<size_t>(kHeads) * C::kGroupTile * tokens, -1.0f);
    KvccVectorKeyScoresParams p{};
    p.scores = {side.view(),   bytes.data(), rope.cosine.data(), rope.sine.data(), scores.data(), tokens, 0.125f,
                C::kGroupTile, tokens};
    p.tensor = side.tables.tensor();
    emulator::run<device::VectorKeyScores<C>>(p, kvcc_grid_key_scores(&p.scores, D), options, "vector key_scores");
    return bits_of(scores);
  });
  const auto wanted =
      reference::key_scores(reference::unpack(side.q, side.cache), query, kHeads, D, C::kGroupTile, rope, 0.125f);
  const auto most =
      reference::key_scores(magnitudes(side.q, side.cache), query, kHeads, D, C::kGroupTile, rope, 0.125f);
  expect_sums(found, wanted, most.magnitude, D + 2);
}

template <class C>
void check_values(uint32_t seed) {
  constexpr int D = C::kHeadDim, kSplits = 3;
  const int tokens = kSmall ? 12 : 90;
  Side side(C::kTransform, D, tokens, kSmall ? 3 : 7, seed);
  check_dequantise<C>(side);
  const auto weights = make_rows(kHeads * C::kGroupTile, tokens, side.random);
  const auto bytes = as_dtype(weights, C::kDtype);
  const auto found = under_all_schedules([&](const emulator::Options& options) {
    std::vector<float> out(static_cast<size_t>(kHeads) * C::kGroupTile * D, -1.0f),
        partial(out.size() * kSplits, -1.0f);
    KvccVectorValueMixParams p{};
    p.mix.cache = side.view();
    p.mix.weights = bytes.data();
    p.mix.partial = partial.data();
    p.mix.out = out.data();
    p.mix.weights_stride = tokens;
    p.mix.group = C::kGroupTile;
    p.mix.splits = kSplits;
    p.tensor = side.tables.tensor();
    emulator::run<device::VectorValueMix<C>>(p, kvcc_grid_value_mix(&p.mix), options, "vector value_mix");
    emulator::run<device::VectorValueMerge<C>>(p, kvcc_grid_value_merge(&p.mix, D), options, "value_mix_merge");
    return bits_of(out);
  });
  const auto wanted = reference::value_mix(reference::unpack(side.q, side.cache), weights, kHeads, D, C::kGroupTile);
  const auto most = reference::value_mix(magnitudes(side.q, side.cache), weights, kHeads, D, C::kGroupTile);
  expect_sums(found, wanted, most.magnitude, tokens + D);
}

using Turned = VectorConfig<true, 32, Rope::half, 32>;
using Grouped = VectorConfig<false, 48, Rope::interleaved, 16>;
using Wide = VectorConfig<true, 128, Rope::half, 64>;

TEST(EmulatedVector, PackWithTransform) { check_pack<Turned>(1); }
TEST(EmulatedVector, PackChannels) { check_pack<Grouped>(2); }
TEST(EmulatedVector, KeysWithTransform) { check_keys<Turned>(3); }
TEST(EmulatedVector, KeysOfChannels) { check_keys<Grouped>(4); }
TEST(EmulatedVector, ValuesWithTransform) { check_values<Turned>(5); }
TEST(EmulatedVector, ValuesOfChannels) { check_values<Grouped>(6); }
TEST(EmulatedVector, WideHeads) {
  if (kSmall) GTEST_SKIP() << "the same accesses as the narrow ones";
  check_keys<Wide>(7);
  check_values<Wide>(8);
}

// The shipped rows.
#define KVCC_FORM(name)
#define KVCC_HEAD_DIM(head_dim)
#define KVCC_ROPE(rope)
#define KVCC_DTYPE(dtype)
constexpr bool head = true, channels = false;
#define KVCC_SHIP_VECTOR(form, head_dim, rope, rotary_dim, group_tile, dtype, registers, shared_bytes)    \
  TEST(KVCC_SUITE, form##_d##head_dim##_##rope##rotary_dim##_g##group_tile##_##dtype) {                   \
    if (kSmall && head_dim > 64) GTEST_SKIP() << "the same accesses as narrow heads";                     \
    KVCC_CHECK<VectorConfig<form, head_dim, Rope::rope, rotary_dim, group_tile, Dtype::dtype>>(head_dim); \
  }
#define KVCC_SUITE EmulatedVectorPackKey
#define KVCC_CHECK check_pack
#include "kernels/list/vector_pack_key.inc"
#undef KVCC_SUITE
#undef KVCC_CHECK
#define KVCC_SUITE EmulatedVectorPackValue
#define KVCC_CHECK check_pack
#include "kernels/list/vector_pack_value.inc"
#undef KVCC_SUITE
#undef KVCC_CHECK
#define KVCC_SUITE EmulatedVectorKeyScores
#define KVCC_CHECK check_keys
#include "kernels/list/vector_key_scores.inc"
#undef KVCC_SUITE
#undef KVCC_CHECK
#define KVCC_SUITE EmulatedVectorValueMix
#define KVCC_CHECK check_values
#include "kernels/list/vector_value_mix.inc"
#undef KVCC_SUITE
#undef KVCC_CHECK
#define KVCC_SUITE EmulatedVectorDequantiseKey
#define KVCC_CHECK check_rows
#include "kernels/list/vector_dequantise_key.inc"
#undef KVCC_SUITE
#undef KVCC_CHECK
#define KVCC_SUITE EmulatedVectorDequantiseValue
#define KVCC_CHECK check_rows
#include "kernels/list/vector_dequantise_value.inc"
#undef KVCC_SUITE
#undef KVCC_CHECK

}  // namespace
}  // namespace kvcc::test
