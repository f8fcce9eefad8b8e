// The generated text itself, run: every unit of an artifact is compiled as C++ (kernels/device/launch.cuh turns its
// entries into plain loops), loaded, and compared with the reference for a layer in the middle of the table.
#include <gtest/gtest.h>

#include <cstring>

#include "codegen/emit/emit.h"
#include "tests/codegen/unit_library.h"
#include "tests/kernels/cases.h"

namespace kvcc::codegen {
namespace {

constexpr int kLayers = 3, kHeads = 3, kGroup = 3, kDim = 64, kTokens = 150, kLayer = 1;

/// All units of a plan, their entries as plain loops.
class Library {
 public:
  Library(const Artifact& artifact, const Plan& plan) : library_(artifact, plan, {"-O0"}) {}
  template <class Params>
  void run(const std::string& symbol, const Params& params, KvccGrid grid, uint32_t seed = 3) const {
    auto* entry = reinterpret_cast<void (*)(const Params*, KvccGrid, uint32_t)>(library_.find(symbol));
    entry(&params, grid, seed);
  }

 private:
  made::UnitLibrary library_;
};

std::string symbol_of(const Plan& plan, Family family, int bits) {
  for (const KernelSpec& spec : plan.kernels) {
    if (spec.configuration.family == family && spec.configuration.bits == bits) return spec.symbol;
  }
  return "none";
}

void check(const Artifact& artifact) {
  const Plan p = plan(artifact, {{},
                                 Dtype::f32,
                                 Layout::linear,
                                 {Family::pack_key, Family::pack_value, Family::key_scores, Family::value_mix,
                                  Family::dequantise_key, Family::dequantise_value}});
  const Library library(artifact, p);
  std::mt19937 random(21);
  ChannelQuantiser keys = test::make_channel_quantiser(kHeads, kDim, {3, 3, 3}, true, random);
  keys.table = made::layer_table(artifact.key, kLayer, kHeads);
  TokenQuantiser values;
  values.heads = kHeads;
  values.dim = kDim;
  values.table = made::layer_table(artifact.value, kLayer, kHeads);
  values.tail = outliers_per_tail(artifact.scheme.sparse, kHeads * kDim);
  const std::set<uint8_t> key_bits(artifact.key.bits.begin(), artifact.key.bits.end());
  const int value_bits = artifact.value.bits.front();
  const auto x = test::make_rows(kTokens, kHeads * kDim, random);
  const int32_t length = kTokens, first = 0;
  uint32_t status = 0;

  // Pack, byte for byte.
  auto wanted = reference::pack(keys, x, {.sink = artifact.scheme.sink});
  auto packed = reference::make_cache(keys, kTokens, {.sink = 1, .capacity = wanted.shape.entries});
  KvccPackParams pack{};
  pack.cache = test::view(packed, &length);
  test::set_constants(pack.cache, keys);
  pack.cache.layer = kLayer;
  pack.x = x.data();
  pack.first = &first;
  pack.count = kTokens;
  pack.status = &status;
  for (const int bits : key_bits) {
    library.run(symbol_of(p, Family::pack_key, bits), pack, kvcc_grid_pack_channel(&pack));
  }
  ASSERT_EQ(packed.pages, wanted.pages);
  ASSERT_EQ(packed.exact, wanted.exact);
  auto wanted_values = reference::pack(values, x, {.sink = artifact.scheme.sink});
  auto packed_values = reference::make_cache(values, kTokens, {.sink = 1});
  pack.cache = test::view(packed_values, &length);
  pack.cache.layer = kLayer;
  library.run(symbol_of(p, Family::pack_value, value_bits), pack, kvcc_grid_pack_token(&pack));
  ASSERT_EQ(packed_values.pages, wanted_values.pages);
  EXPECT_EQ(status, 0u);

  // Dequantise, bit for bit.
  const auto check_rows = [&](const std::vector<float>& rows, KvccCache cache, Family family, const auto& widths) {
    std::vector<float> out(rows.size());
    cache.layer = kLayer;
    KvccDequantiseParams d{cache, out.data(), &first, kTokens};
    for (const int bits : widths) library.run(symbol_of(p, family, bits), d, kvcc_grid_dequantise(&d, kDim));
    ASSERT_EQ(std::memcmp(out.data(), rows.data(), rows.size() * 4), 0);
  };
  const auto key_rows = reference::unpack(keys, wanted), value_rows = reference::unpack(values, wanted_values);
  KvccCache key_cache = test::view(packed, &length);
  test::set_constants(key_cache, keys);
  key_cache.layer = kLayer;
  KvccCache value_cache = test::view(packed_values, &length);
  value_cache.layer = kLayer;
  check_rows(key_rows, key_cache, Family::dequantise_key, key_bits);
  check_rows(value_rows, value_cache, Family::dequantise_value, std::set<uint8_t>{static_cast<uint8_t>(value_bits)});

  // Scores and mix, within rounding.
  const auto query = test::make_rows(kHeads * kGroup, kDim, random);
  const auto rope = test::make_rope(kDim, false, kTokens);
  std::vector<float> scores(kHeads * kGroup * kTokens);
  KvccKeyScoresParams s{};
  s.cache = key_cache;
  s.query = query.data();
  s.cosine = rope.cosine.data();
  s.sine = rope.sine.data();
  s.scores = scores.data();
  s.scores_stride = kTokens;
  s.multiplier = 0.125f;
  s.group = kGroup;
  s.max_length = kTokens;
  for (const int bits : key_bits) {
    library.run(symbol_of(p, Family::key_scores, bits), s, kvcc_grid_key_scores(&s, kDim));
  }
  const auto wanted_scores = reference::key_scores(key_rows, query, kHeads, kDim, kGroup, rope, 0.125f);
  for (size_t i = 0; i < scores.size(); ++i) {
    ASSERT_NEAR(scores[i], wanted_scores.value[i], std::ldexp(kDim + 2, -23) * wanted_scores.magnitude[i]) << i;
  }
  const auto weights = test::make_rows(kHeads * kGroup, kTokens, random);
  std::vector<float> out(kHeads * kGroup * kDim), partial(out.size() * 4);
  KvccValueMixParams m{};
  m.cache = value_cache;
  m.weights = weights.data();
  m.partial = partial.data();
  m.out = out.data();
  m.weights_stride = kTokens;
  m.group = kGroup;
  m.splits = 4;
  const std::string mix = symbol_of(p, Family::value_mix, value_bits);
  library.run(mix, m, kvcc_grid_value_mix(&m));
  library.run(mix + "_merge", m, kvcc_grid_value_merge(&m, kDim));
  const auto wanted_mix = reference::value_mix(value_rows, weights, kHeads, kDim, kGroup);
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(out[i], wanted_mix.value[i], std::ldexp(kTokens + 4, -23) * wanted_mix.magnitude[i] + 1e-37) << i;
  }
}

TEST(EmittedUnits, EqualTheReference) {
  check(made::kernel_artifact("kvcc-nuq3-1%-sink1", kLayers, kHeads, kGroup, kDim, kDim));
}

TEST(EmittedUnits, OfMixedWidthsEqualTheReference) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq4-1%-sink1", kLayers, kHeads, kGroup, kDim, kDim);
  artifact.key.bits = {4, 4, 4, 2, 4, 3, 4, 4, 4};
  check(artifact);
}

}  // namespace
}  // namespace kvcc::codegen
