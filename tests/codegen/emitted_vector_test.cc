// The generated text of layout vector-1, run: the units of an artifact are compiled for the emulator, loaded, given the
// arrays as kvcc compile writes them, and compared with the reference for a layer in the middle. What the kernels do at
// their edges is tested elsewhere (tests/kernels/emulated); here it is that a unit is of the right form, and that a
// host that has the folder alone finds every table.
#include <gtest/gtest.h>

#include <cstring>

#include "codegen/emit/emit.h"
#include "kernels/emulator/emulator.h"
#include "kernels/reference/attention.h"
#include "tests/codegen/unit_library.h"
#include "tests/kernels/mma_cases.h"
#include "tests/kernels/vector_cases.h"

namespace kvcc::codegen {
namespace {

constexpr int kLayers = 3, kHeads = 2, kGroup = 3, kDim = 64, kTokens = 90, kLayer = 1, kRows = kHeads * kGroup;
constexpr int kSplits = 2;

/// A layer of the codebook.
VectorQuantiser quantiser(const TensorCodebooks& t, int layer) {
  const auto layer_of = [&](const auto& all) {
    const size_t each = all.size() / kLayers;
    return std::remove_cvref_t<decltype(all)>(all.begin() + layer * each, all.begin() + (layer + 1) * each);
  };
  const std::vector<size_t> offsets = vector_offsets(t, kLayers);
  return {kHeads,
          kDim,
          t.units,
          layer_of(t.rotation_mean),
          layer_of(t.forward),
          layer_of(t.inverse),
          layer_of(t.group_width),
          layer_of(t.group_bits),
          {t.vectors.begin() + offsets[layer], t.vectors.begin() + offsets[layer + 1]}};
}

class Units {
 public:
  Units(const Artifact& artifact, Plan plan)
      : artifact_(artifact),
        plan_(std::move(plan)),
        library_(artifact, plan_, {"-O1", "-DKVCC_EMULATE", "-fno-gnu-unique"}),
        bytes_(artifact.vectors.size() / sizeof(Line) + 1) {
    std::memcpy(bytes_.data(), artifact.vectors.data(), artifact.vectors.size());
  }
  /// As kvcc_NAME_key_vectors does.
  void point(bool keys, KvccVectorTensor& tensor, KvccCache& cache) const {
    const VectorArrays& vectors = keys ? artifact_.key_vectors : artifact_.value_vectors;
    kvcc_vector_point(&tensor, &cache, bytes_.data(), vectors.places.at(kLayer).data(), kDim, vectors.transform);
  }
  /// Launches the entries of the family in order, with the grid that `grids` has for each rule.
  template <class Params>
  void run(Family family, const Params& params, const std::map<std::string, KvccGrid>& grids) const {
    int launched = 0;
    for (const KernelSpec& spec : plan_.kernels) {
      if (spec.configuration.family != family) continue;
      for (const Entry& entry : entries_of(spec)) {
        const uint32_t threads = *static_cast<uint32_t*>(library_.find(entry.symbol + "_threads")),
                       shared = *static_cast<uint32_t*>(library_.find(entry.symbol + "_shared_bytes"));
        emulator::launch(reinterpret_cast<emulator::Entry>(library_.find(entry.symbol)), &params,
                         grids.at(entry.grid_rule), static_cast<int>(threads), shared, {}, entry.symbol);
        ++launched;
      }
    }
    EXPECT_GT(launched, 0) << to_text(family);
  }

 private:
  struct alignas(128) Line {
    char bytes[128];
  };
  const Artifact& artifact_;
  Plan plan_;
  made::UnitLibrary library_;
  std::vector<Line> bytes_;
};

void expect_near(const std::vector<float>& found, const reference::Sums& wanted, const std::vector<double>& magnitude,
                 int terms, const char* what) {
  ASSERT_EQ(found.size(), wanted.value.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], wanted.value[i], std::ldexp(terms, -23) * magnitude[i] + 1e-37) << what << " " << i;
  }
}

/// One tensor: packed and given back by its units.
struct Side {
  VectorQuantiser q;
  reference::VectorCache cache;
  KvccVectorTensor tensor{};
  KvccCache view{};
  std::vector<float> rows;  ///< as the reference decodes them
};

Side check_side(const Units& units, const TensorCodebooks& book, bool keys, const int32_t& length,
                std::mt19937& random) {
  Side side;
  side.q = quantiser(book, kLayer);
  const std::vector<float> x = test::make_rows(kTokens, kHeads * kDim, random);
  const auto bytes = test::as_dtype(x, device::Dtype::f16);
  std::vector<float> rounded;
  for (const float value : x) rounded.push_back(round_to_half(value));
  const auto wanted = reference::pack_vector(side.q, rounded, {.sink = 1, .residual = 0, .capacity = 0});
  side.cache = wanted;
  std::fill(side.cache.pages.begin(), side.cache.pages.end(), uint8_t{0});
  std::fill(side.cache.exact.begin(), side.cache.exact.end(), uint16_t{0});
  const int32_t first = 0;
  uint32_t status = 0;
  KvccCache& c = side.view;
  c.pages = side.cache.pages.data();
  c.lengths = &length;
  c.exact = side.cache.exact.data();
  c.page_bytes = kvcc_vector_page_bytes(static_cast<int32_t>(wanted.shape.code_words));
  c.max_pages = wanted.page_count();
  c.sequences = 1;
  c.heads = kHeads;
  c.sink = 1;
  c.layer = kLayer;
  units.point(keys, side.tensor, c);
  EXPECT_EQ(c.page_bytes, static_cast<int64_t>(wanted.shape.page_bytes()));
  KvccVectorPackParams p{};
  p.pack.cache = c;
  p.pack.x = bytes.data();
  p.pack.first = &first;
  p.pack.count = kTokens;
  p.pack.status = &status;
  p.tensor = side.tensor;
  units.run(keys ? Family::pack_key : Family::pack_value, p, {{"kvcc_grid_mma_pack", kvcc_grid_mma_pack(&p.pack)}});
  EXPECT_EQ(status, 0u);
  EXPECT_EQ(side.cache.pages, wanted.pages);
  EXPECT_EQ(side.cache.exact, wanted.exact);
  side.rows = reference::unpack(side.q, wanted);
  std::vector<float> out(side.rows.size(), -1.0f);
  KvccVectorDequantiseParams d{};
  d.dequantise = {c, out.data(), &first, kTokens};
  d.tensor = side.tensor;
  units.run(keys ? Family::dequantise_key : Family::dequantise_value, d,
            {{"kvcc_grid_dequantise", kvcc_grid_dequantise(&d.dequantise, kDim)}});
  EXPECT_EQ(std::memcmp(out.data(), side.rows.data(), out.size() * 4), 0);
  return side;
}

void check(const char* scheme) {
  const Codebook book = made::kernel_codebook(scheme, kLayers, kHeads, kGroup, kDim, kDim);
  const Artifact artifact = describe(book, "tiny-3");
  Targets scalar;
  scalar.archs = {"sm_75"};
  const Units units(artifact, plan(artifact, scalar));
  std::mt19937 random(21);
  const int32_t length = kTokens;
  Side key = check_side(units, book.key, true, length, random),
       value = check_side(units, book.value, false, length, random);
  if (testing::Test::HasFailure()) return;

  const auto query = test::make_rows(kRows, kDim, random);
  const auto query_bytes = test::as_dtype(query, device::Dtype::f16);
  const auto rope = test::make_rope(kDim, false, kTokens);
  std::vector<float> scores(kRows * kTokens);
  KvccVectorKeyScoresParams s{};
  s.scores = {
      key.view, query_bytes.data(), rope.cosine.data(), rope.sine.data(), scores.data(), kTokens, 0.125f, kGroup,
      kTokens};
  s.tensor = key.tensor;
  units.run(Family::key_scores, s, {{"kvcc_grid_key_scores", kvcc_grid_key_scores(&s.scores, kDim)}});
  const auto most_keys = test::magnitudes(key.q, key.cache), most_values = test::magnitudes(value.q, value.cache);
  expect_near(scores, reference::key_scores(key.rows, query, kHeads, kDim, kGroup, rope, 0.125f),
              reference::key_scores(most_keys, query, kHeads, kDim, kGroup, rope, 0.125f).magnitude, kDim + 2,
              "key_scores");

  const auto weights = test::make_rows(kRows, kTokens, random);
  const auto weight_bytes = test::as_dtype(weights, device::Dtype::f16);
  std::vector<float> mixed(kRows * kDim), partial(kSplits * mixed.size());
  KvccVectorValueMixParams m{};
  m.mix.cache = value.view;
  m.mix.weights = weight_bytes.data();
  m.mix.partial = partial.data();
  m.mix.out = mixed.data();
  m.mix.weights_stride = kTokens;
  m.mix.group = kGroup;
  m.mix.splits = kSplits;
  m.tensor = value.tensor;
  units.run(Family::value_mix, m,
            {{"kvcc_grid_value_mix", kvcc_grid_value_mix(&m.mix)},
             {"kvcc_grid_value_merge", kvcc_grid_value_merge(&m.mix, kDim)}});
  expect_near(mixed, reference::value_mix(value.rows, weights, kHeads, kDim, kGroup),
              reference::value_mix(most_values, weights, kHeads, kDim, kGroup).magnitude, kTokens + kDim, "value_mix");
}

/// The readers on tensor cores: their bounds are kept elsewhere, here a wrong table would show.
void check_tensor_cores(const char* scheme) {
  const Codebook book = made::kernel_codebook(scheme, kLayers, kHeads, kGroup, kDim, kDim);
  const Artifact artifact = describe(book, "tiny-3");
  Targets targets;
  targets.archs = {"sm_80"};
  targets.families = {Family::pack_key,   Family::pack_value,     Family::attention,
                      Family::key_scores, Family::dequantise_key, Family::dequantise_value};
  const Units units(artifact, plan(artifact, targets));
  std::mt19937 random(22);
  const int32_t length = kTokens;
  const Side key = check_side(units, book.key, true, length, random),
             value = check_side(units, book.value, false, length, random);
  if (testing::Test::HasFailure()) return;
  const auto query = test::make_rows(kRows, kDim, random);
  const auto query_bytes = test::as_dtype(query, device::Dtype::f16);
  const auto rope = test::make_mma_rope(kDim, false, kTokens);
  const reference::Rotation rotation{false, rope.frequencies, 1};
  std::vector<float> scores(kRows * kTokens), out(kRows * kDim), partial(kSplits * kRows * (kDim + 2));
  KvccVectorMmaKeyScoresParams s{};
  s.scores.cache = key.view;
  s.scores.rope = rope.view();
  s.scores.query = query_bytes.data();
  s.scores.scores = scores.data();
  s.scores.scores_stride = kTokens;
  s.scores.multiplier = 0.125f;
  s.scores.group = kGroup;
  s.scores.splits = kSplits;
  s.tensor = key.tensor;
  units.run(Family::key_scores, s, {{"kvcc_grid_mma_key_scores", kvcc_grid_mma_key_scores(&s.scores)}});
  const auto most_keys = test::magnitudes(key.q, key.cache);
  const auto wanted_scores = reference::key_scores(key.rows, query, kHeads, kDim, kGroup, rotation, 0.125f);
  const auto magnitude = reference::key_scores(most_keys, query, kHeads, kDim, kGroup, rotation, 0.125f).magnitude;
  for (size_t i = 0; i < scores.size(); ++i) {
    ASSERT_NEAR(scores[i], wanted_scores.value[i], magnitude[i] * 0x1p-7 + 1e-6) << i;
  }
  KvccVectorAttentionParams a{};
  a.attention.key = key.view;
  a.attention.value = value.view;
  a.attention.rope = rope.view();
  a.attention.query = query_bytes.data();
  a.attention.partial = partial.data();
  a.attention.out = out.data();
  a.attention.multiplier = 0.125f;
  a.attention.group = kGroup;
  a.attention.splits = kSplits;
  a.key = key.tensor;
  a.value = value.tensor;
  units.run(Family::attention, a,
            {{"kvcc_grid_mma_attention", kvcc_grid_mma_attention(&a.attention)},
             {"kvcc_grid_mma_attention_merge", kvcc_grid_mma_attention_merge(&a.attention)}});
  const auto wanted = reference::attention(
      key.rows, value.rows, query,
      {.heads = kHeads, .key_dim = kDim, .value_dim = kDim, .group = kGroup, .window = 0, .multiplier = 0.125f},
      rotation);
  double squares = 0, all = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    squares += (out[i] - wanted.value[i]) * (out[i] - wanted.value[i]);
    all += wanted.value[i] * wanted.value[i];
  }
  EXPECT_LT(std::sqrt(squares / all), 0x1p-8) << "attention";
}

TEST(EmittedVectorUnits, OnTensorCoresOfTransformedHeads) { check_tensor_cores("kvcc-2-head"); }
TEST(EmittedVectorUnits, OnTensorCoresOfGroupedChannels) { check_tensor_cores("kvcc-2-channels"); }
TEST(EmittedVectorUnits, OfTransformedHeadsEqualTheReference) { check("kvcc-2-head"); }
TEST(EmittedVectorUnits, OfGroupedChannelsEqualTheReference) { check("kvcc-2-channels"); }

}  // namespace
}  // namespace kvcc::codegen
