// The generated text of layout mma-1, run: the units of an artifact are compiled for the emulator, loaded, and compared
// with the reference for a layer in the middle of the tables. What the kernels do at their edges is tested elsewhere
// (tests/kernels/emulated); here it is that the unit embeds the right tables, widths and entries.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "codegen/emit/emit.h"
#include "kernels/emulator/emulator.h"
#include "kernels/reference/mma_cache.h"
#include "tests/codegen/unit_library.h"
#include "tests/kernels/mma_cases.h"

namespace kvcc::codegen {
namespace {

constexpr int kLayers = 3, kHeads = 2, kGroup = 3, kDim = 64, kTokens = 150, kLayer = 1, kRows = kHeads * kGroup;

/// The units of a plan, compiled for the emulator.
class Units {
 public:
  Units(const Artifact& artifact, Plan plan)
      : plan_(std::move(plan)), library_(artifact, plan_, {"-O1", "-DKVCC_EMULATE", "-fno-gnu-unique"}) {}
  /// Launches every entry of every unit of the family in order, with the grid that `grids` has for its rule.
  template <class Params>
  void run(Family family, const Params& params, const std::map<std::string, KvccGrid>& grids) const {
    int launched = 0;
    for (const KernelSpec& spec : plan_.kernels) {
      if (spec.configuration.family != family) continue;
      for (const Entry& entry : entries_of(spec)) {
        const uint32_t threads = *static_cast<uint32_t*>(library_.find(entry.symbol + "_threads")),
                       shared = *static_cast<uint32_t*>(library_.find(entry.symbol + "_shared_bytes"));
        ASSERT_EQ(threads, uint32_t{KVCC_THREADS});
        emulator::launch(reinterpret_cast<emulator::Entry>(library_.find(entry.symbol)), &params,
                         grids.at(entry.grid_rule), static_cast<int>(threads), shared, {}, entry.symbol);
        ++launched;
      }
    }
    EXPECT_GT(launched, 0) << to_text(family);
  }

 private:
  Plan plan_;
  made::UnitLibrary library_;
};

/// fp16 numbers, and as floats.
struct Halves {
  std::vector<uint16_t> half;
  std::vector<float> value;
  explicit Halves(const std::vector<float>& from) {
    for (const float x : from) {
      half.push_back(float_to_half(x));
      value.push_back(half_to_float(half.back()));
    }
  }
};

/// Errors beside the magnitude of the sums that they come from: fp16 arithmetic leaves far less than a wrong table.
void expect_near(const std::vector<float>& found, const std::vector<double>& wanted,
                 const std::vector<double>& magnitude, const char* what) {
  double squares = 0, magnitudes = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(found[i], wanted[i], magnitude[i] * 0x1p-6 + 1e-6) << what << " " << i;
    squares += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    magnitudes += magnitude[i] * magnitude[i];
  }
  EXPECT_LT(std::sqrt(squares / magnitudes), 0x1p-10) << what;
}

template <class Quantiser>
reference::MmaCache pack(const Units& units, Family family, const Quantiser& q, mma::Tensor tensor, const Halves& x) {
  const auto wanted = reference::pack_mma(q, tensor, x.value, {.sink = 1, .residual = 0, .capacity = 0});
  auto cache =
      reference::make_mma_cache(q, tensor, kTokens, {.sink = 1, .residual = 0, .capacity = wanted.shape.capacity});
  const int32_t length = kTokens, first = 0;
  uint32_t status = 0;
  std::vector<uint32_t> selected(2 * cache.tail * kTokens);
  std::vector<float> inliers(2 * kTokens);
  KvccPackParams p{};
  p.cache = test::view(cache, &length);
  test::set_constants(p.cache, q);
  p.cache.layer = kLayer;
  p.x = x.half.data();
  p.first = &first;
  p.count = kTokens;
  p.status = &status;
  p.selected = selected.data();
  p.inliers = inliers.data();
  units.run(
      family, p,
      {{"kvcc_grid_mma_pack", kvcc_grid_mma_pack(&p)}, {"kvcc_grid_mma_pack_select", kvcc_grid_mma_pack_select(&p)}});
  EXPECT_EQ(status, 0u);
  EXPECT_EQ(cache.exact, wanted.exact);
  EXPECT_EQ(cache.needed, wanted.needed);
  EXPECT_EQ(reference::unpack(q, cache), reference::unpack(q, wanted)) << to_text(family);
  return cache;
}

void expect_dequantised(const Units& units, Family family, const KvccCache& cache, const std::vector<float>& rows) {
  const int32_t first = 0;
  std::vector<float> out(rows.size());
  const KvccDequantiseParams p{cache, out.data(), &first, kTokens};
  units.run(family, p, {{"kvcc_grid_mma_dequantise", kvcc_grid_mma_dequantise(&p)}});
  EXPECT_EQ(std::memcmp(out.data(), rows.data(), rows.size() * 4), 0) << to_text(family);
}

void check(const Artifact& artifact) {
  Targets targets;
  targets.layout = Layout::mma;
  const Units units(artifact, plan(artifact, targets));
  std::mt19937 random(21);
  ChannelQuantiser keys = test::make_channel_quantiser(kHeads, kDim, {3, 3}, true, random);
  keys.table = made::layer_table(artifact.key, kLayer, kHeads);
  TokenQuantiser values;
  values.heads = kHeads;
  values.dim = kDim;
  values.table = made::layer_table(artifact.value, kLayer, kHeads);
  values.tail = outliers_per_tail(artifact.scheme.sparse, kHeads * kDim);
  const Halves key_x(test::make_rows(kTokens, kHeads * kDim, random)),
      value_x(test::make_rows(kTokens, kHeads * kDim, random));
  auto key_cache = pack(units, Family::pack_key, keys, mma::Tensor::key, key_x);
  auto value_cache = pack(units, Family::pack_value, values, mma::Tensor::value, value_x);
  if (testing::Test::HasFailure()) return;

  const int32_t length = kTokens;
  KvccCache key = test::view(key_cache, &length), value = test::view(value_cache, &length);
  test::set_constants(key, keys);
  key.layer = value.layer = kLayer;
  const auto key_rows = reference::unpack(keys, key_cache), value_rows = reference::unpack(values, value_cache);
  expect_dequantised(units, Family::dequantise_key, key, key_rows);
  expect_dequantised(units, Family::dequantise_value, value, value_rows);

  const Halves query(test::make_rows(kRows, kDim, random));
  const auto rope = test::make_mma_rope(kDim, false, kTokens);
  const reference::Rotation rotation{false, rope.frequencies, 1};
  std::vector<float> scores(kRows * kTokens);
  KvccMmaKeyScoresParams s{};
  s.cache = key;
  s.rope = rope.view();
  s.query = query.half.data();
  s.scores = scores.data();
  s.scores_stride = kTokens;
  s.multiplier = 0.125f;
  s.group = kGroup;
  s.splits = 2;
  units.run(Family::key_scores, s, {{"kvcc_grid_mma_key_scores", kvcc_grid_mma_key_scores(&s)}});
  const auto wanted_scores = reference::key_scores(key_rows, query.value, kHeads, kDim, kGroup, rotation, 0.125f);
  expect_near(scores, wanted_scores.value, wanted_scores.magnitude, "key_scores");

  const Halves weights(test::make_rows(kRows, kTokens, random));
  std::vector<float> mixed(kRows * kDim), partial(2 * kRows * (kDim + 2));
  KvccValueMixParams m{};
  m.cache = value;
  m.weights = weights.half.data();
  m.partial = partial.data();
  m.out = mixed.data();
  m.weights_stride = kTokens;
  m.group = kGroup;
  m.splits = 2;
  units.run(Family::value_mix, m,
            {{"kvcc_grid_mma_value_mix", kvcc_grid_mma_value_mix(&m)},
             {"kvcc_grid_value_merge", kvcc_grid_value_merge(&m, kDim)}});
  const auto wanted_mix = reference::value_mix(value_rows, weights.value, kHeads, kDim, kGroup);
  expect_near(mixed, wanted_mix.value, wanted_mix.magnitude, "value_mix");

  std::vector<float> out(kRows * kDim);
  KvccAttentionParams a{};
  a.key = key;
  a.value = value;
  a.rope = rope.view();
  a.query = query.half.data();
  a.partial = partial.data();
  a.out = out.data();
  a.multiplier = 0.125f;
  a.group = kGroup;
  a.splits = 2;
  units.run(Family::attention, a,
            {{"kvcc_grid_mma_attention", kvcc_grid_mma_attention(&a)},
             {"kvcc_grid_mma_attention_merge", kvcc_grid_mma_attention_merge(&a)}});
  const auto wanted = reference::attention(
      key_rows, value_rows, query.value,
      {.heads = kHeads, .key_dim = kDim, .value_dim = kDim, .group = kGroup, .window = 0, .multiplier = 0.125f},
      rotation);
  std::vector<double> magnitude = wanted.magnitude;
  for (size_t i = 0; i < magnitude.size(); ++i) magnitude[i] += wanted.sensitivity[i];
  expect_near(out, wanted.value, magnitude, "attention");
}

TEST(EmittedMmaUnits, EqualTheReference) {
  check(made::kernel_artifact("kvcc-nuq3-1%-sink1", kLayers, kHeads, kGroup, kDim, kDim));
}

TEST(EmittedMmaUnits, OfMixedWidthsEqualTheReference) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq4-1%-sink1", kLayers, kHeads, kGroup, kDim, kDim);
  artifact.key.bits = {4, 4, 4, 2, 4, 4};
  artifact.value.bits = {4, 4, 2, 4, 4, 4};
  check(artifact);
}

}  // namespace
}  // namespace kvcc::codegen
