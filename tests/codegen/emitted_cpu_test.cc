// The generated text of the CPU, run: units are compiled into a library as kvcc compile does it, loaded, and compared
// with the reference for a layer in the middle of the tables. What units do at their edges is tested elsewhere
// (tests/kernels/cpu); here it is that they embed the right tables, widths and choices, and are listed as what they
// are. Packing, dequantising and copying exactly.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "kernels/reference/mma_cache.h"
#include "tests/codegen/cpu_units.h"
#include "tests/codegen/made_units.h"
#include "tests/codegen/unit_library.h"
#include "tests/kernels/mma_cases.h"

namespace kvcc::codegen {
namespace {

constexpr int kTokens = 150, kLayer = 1, kHeads = made::kMadeHeads;
constexpr int kArithmetics[] = {KVCC_ARITHMETIC_F32, KVCC_ARITHMETIC_I16};

device::Dtype device_dtype(Dtype dtype) {
  return dtype == Dtype::f32 ? device::Dtype::f32 : dtype == Dtype::f16 ? device::Dtype::f16 : device::Dtype::bf16;
}

/// A query, weight or packed row, as a unit of the dtype reads it.
struct Rows {
  std::vector<float> value;
  std::vector<uint8_t> bytes;
  Rows(int64_t rows, int64_t columns, Dtype dtype, std::mt19937& random)
      : value(test::make_rows(rows, columns, random)), bytes(test::as_dtype(value, device_dtype(dtype))) {}
};

ChannelQuantiser quantiser(const TensorTables& tables, const TensorConfiguration& t, std::mt19937& random, int,
                           ChannelQuantiser) {
  ChannelQuantiser q = test::make_channel_quantiser(kHeads, t.head_dim, {2, 2}, t.sparse != Sparse::none, random);
  q.table = made::layer_table(tables, kLayer, kHeads);
  return q;
}
TokenQuantiser quantiser(const TensorTables& tables, const TensorConfiguration& t, std::mt19937&, int tail,
                         TokenQuantiser) {
  TokenQuantiser q;
  q.heads = kHeads;
  q.dim = t.head_dim;
  q.table = made::layer_table(tables, kLayer, kHeads);
  q.tail = t.sparse == Sparse::tail ? tail : 0;
  return q;
}

/// A packed cache of one tensor with what it holds. Its quantiser is of the kind that the configuration has.
template <class Quantiser>
struct Packed {
  Quantiser q;
  std::vector<float> x;
  reference::MmaCache cache;
  std::vector<float> rows;
  int32_t length = kTokens;

  Packed(const TensorTables& tables, const TensorConfiguration& t, mma::Tensor tensor, std::mt19937& random)
      : q(quantiser(tables, t, random, 3, Quantiser{})), x(test::make_rows(kTokens, kHeads * t.head_dim, random)) {
    cache = reference::pack_mma(q, tensor, x, {.sink = 1, .residual = 0, .capacity = 0});
    rows = reference::unpack(q, cache);
  }
  KvccCache view() { return view_of(cache); }
  KvccCache view_of(reference::MmaCache& of) {
    KvccCache c = test::view(of, &length);
    test::set_constants(c, q);
    c.layer = kLayer;
    return c;
  }
};

/// Calls visit with the packed cache of a tensor.
template <class Visit>
void with_packed(const TensorTables& tables, const TensorConfiguration& t, mma::Tensor tensor, std::mt19937& random,
                 const Visit& visit) {
  if (t.axis == Axis::channel) {
    visit(Packed<ChannelQuantiser>(tables, t, tensor, random));
  } else {
    visit(Packed<TokenQuantiser>(tables, t, tensor, random));
  }
}

/// Rotary tables as units take them, and those of the reference.
struct Rope {
  test::MmaRope made;
  std::vector<float> cosine, sine;
  KvccCpuTables tables{};
  reference::Rotation rotation;

  explicit Rope(const Configuration& c)
      : made(test::make_mma_rope(c.rotary_dim, c.rope == RopeKind::interleaved, kTokens)) {
    for (int r = 0; r < 2 * KVCC_ROPE_BLOCK; ++r) {
      for (const double frequency : made.frequencies) {
        cosine.push_back(static_cast<float>(std::cos(r * frequency)));
        sine.push_back(static_cast<float>(std::sin(r * frequency)));
      }
    }
    if (c.rotary_dim > 0) {
      tables.relative_cosine = cosine.data();
      tables.relative_sine = sine.data();
    }
    rotation = {made.interleaved, made.frequencies, 1};
  }
};

/// Beside the magnitude of the sums that they come from, f32 leaves errors below 2^-17 everywhere and i16 below 2^-8 in
/// the mean; a wrong table leaves far more.
void expect_near(const std::vector<float>& found, const std::vector<double>& wanted,
                 const std::vector<double>& magnitude, int arithmetic) {
  ASSERT_EQ(found.size(), wanted.size());
  double squares = 0, magnitudes = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (arithmetic == KVCC_ARITHMETIC_F32) {
      ASSERT_NEAR(found[i], wanted[i], magnitude[i] * 0x1p-17 + 1e-6) << i;
    }
    squares += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    magnitudes += magnitude[i] * magnitude[i];
  }
  EXPECT_LT(std::sqrt(squares / magnitudes), 0x1p-8);
}

void check_pack(const made::CpuLibrary& library, const Configuration& c, const Artifact& artifact,
                std::mt19937& random) {
  const bool keys = c.family == Family::pack_key;
  const mma::Tensor tensor = keys ? mma::Tensor::key : mma::Tensor::value;
  with_packed(keys ? artifact.key : artifact.value, c, tensor, random, [&](auto packed) {
    const auto& wanted = packed.cache;
    auto cache = reference::make_mma_cache(packed.q, tensor, kTokens,
                                           {.sink = 1, .residual = 0, .capacity = wanted.shape.capacity});
    const std::vector<uint8_t> x = test::as_dtype(packed.x, device_dtype(c.dtype));
    uint32_t status = 0;
    std::vector<uint32_t> selected(2 * cache.tail * kTokens + 1);
    std::vector<float> inliers(2 * kTokens);
    KvccPackParams p{};
    p.cache = packed.view_of(cache);
    p.status = &status;
    p.selected = selected.data();
    p.inliers = inliers.data();
    const size_t row_bytes = x.size() / kTokens;
    for (const auto& [first, count] : {std::pair{0, 70}, std::pair{70, 80}}) {  // as it comes: two calls
      p.x = x.data() + first * row_bytes;
      p.first = &first;
      p.count = count;
      if (c.axis == Axis::token) {
        library.run(keys ? KVCC_CPU_PACK_KEY_SELECT : KVCC_CPU_PACK_VALUE_SELECT, p, {}, kvcc_grid_mma_pack_select(&p));
      }
      library.run(keys ? KVCC_CPU_PACK_KEY : KVCC_CPU_PACK_VALUE, p, {}, kvcc_grid_mma_pack(&p));
    }
    EXPECT_EQ(status, 0u);
    EXPECT_EQ(cache.exact, wanted.exact);
    EXPECT_EQ(cache.needed, wanted.needed);
    EXPECT_EQ(reference::unpack(packed.q, cache), packed.rows);
  });
}

void check_dequantise(const made::CpuLibrary& library, const Configuration& c, const Artifact& artifact,
                      std::mt19937& random) {
  const bool keys = c.family == Family::dequantise_key;
  with_packed(
      keys ? artifact.key : artifact.value, c, keys ? mma::Tensor::key : mma::Tensor::value, random, [&](auto packed) {
        const int32_t first = 0;
        std::vector<float> out(packed.rows.size());
        const KvccDequantiseParams p{packed.view(), out.data(), &first, kTokens};
        library.run(keys ? KVCC_CPU_DEQUANTISE_KEY : KVCC_CPU_DEQUANTISE_VALUE, p, {}, kvcc_grid_mma_dequantise(&p));
        EXPECT_EQ(std::memcmp(out.data(), packed.rows.data(), out.size() * 4), 0);
      });
}

int group_of(const Configuration& c) { return c.group_tile == 16 ? 9 : 3; }

void check_key_scores(const made::CpuLibrary& library, const Configuration& c, const Artifact& artifact,
                      std::mt19937& random) {
  const int group = group_of(c), rows = kHeads * group;
  const Rows query(rows, c.head_dim, c.dtype, random);
  Rope rope(c);
  with_packed(artifact.key, c, mma::Tensor::key, random, [&](auto packed) {
    std::vector<float> scores(rows * kTokens);
    KvccMmaKeyScoresParams p{};
    p.cache = packed.view();
    p.rope = rope.made.view();
    p.query = query.bytes.data();
    p.scores = scores.data();
    p.scores_stride = kTokens;
    p.multiplier = 0.125f;
    p.group = group;
    p.splits = 2;
    const auto wanted =
        reference::key_scores(packed.rows, query.value, kHeads, c.head_dim, group, rope.rotation, 0.125f);
    for (const int arithmetic : kArithmetics) {
      rope.tables.arithmetic = arithmetic;
      std::fill(scores.begin(), scores.end(), NAN);
      library.run(KVCC_CPU_KEY_SCORES, p, rope.tables, kvcc_grid_mma_key_scores(&p));
      expect_near(scores, wanted.value, wanted.magnitude, arithmetic);
    }
  });
}

void check_value_mix(const made::CpuLibrary& library, const Configuration& c, const Artifact& artifact,
                     std::mt19937& random) {
  const int group = group_of(c), rows = kHeads * group;
  const Rows weights(rows, kTokens, c.dtype, random);
  with_packed(artifact.value, c, mma::Tensor::value, random, [&](auto packed) {
    std::vector<float> out(rows * c.head_dim), partial(2 * rows * c.head_dim);
    KvccValueMixParams p{};
    p.cache = packed.view();
    p.weights = weights.bytes.data();
    p.partial = partial.data();
    p.out = out.data();
    p.weights_stride = kTokens;
    p.group = group;
    p.splits = 2;
    const auto wanted = reference::value_mix(packed.rows, weights.value, kHeads, c.head_dim, group);
    for (const int arithmetic : kArithmetics) {
      KvccCpuTables tables{};
      tables.arithmetic = arithmetic;
      std::fill(out.begin(), out.end(), NAN);
      library.run(KVCC_CPU_VALUE_MIX, p, tables, kvcc_grid_mma_value_mix(&p));
      library.run(KVCC_CPU_VALUE_MERGE, p, tables, kvcc_grid_value_merge(&p, c.head_dim));
      expect_near(out, wanted.value, wanted.magnitude, arithmetic);
    }
  });
}

void check_attention(const made::CpuLibrary& library, const Configuration& c, const Artifact& artifact,
                     std::mt19937& random) {
  const int group = group_of(c), rows = kHeads * group, dim = c.head_dim;
  const Rows query(rows, dim, c.dtype, random);
  Rope rope(c);
  with_packed(artifact.key, c, mma::Tensor::key, random, [&](auto key) {
    with_packed(artifact.value, c.value, mma::Tensor::value, random, [&](auto value) {
      std::vector<float> out(rows * dim), partial(2 * rows * (dim + 2));
      KvccAttentionParams p{};
      p.key = key.view();
      p.value = value.view();
      p.rope = rope.made.view();
      p.query = query.bytes.data();
      p.partial = partial.data();
      p.out = out.data();
      p.multiplier = 0.125f;
      p.group = group;
      p.splits = 2;
      const auto wanted = reference::attention(
          key.rows, value.rows, query.value,
          {.heads = kHeads, .key_dim = dim, .value_dim = dim, .group = group, .window = 0, .multiplier = 0.125f},
          rope.rotation);
      std::vector<double> bound = wanted.magnitude;
      for (size_t i = 0; i < bound.size(); ++i) bound[i] += wanted.sensitivity[i];
      for (const int arithmetic : kArithmetics) {
        rope.tables.arithmetic = arithmetic;
        std::fill(out.begin(), out.end(), NAN);
        library.run(KVCC_CPU_ATTENTION, p, rope.tables, kvcc_grid_mma_attention(&p));
        library.run(KVCC_CPU_ATTENTION_MERGE, p, rope.tables, kvcc_grid_mma_attention_merge(&p));
        expect_near(out, wanted.value, bound, arithmetic);
      }
    });
  });
}

void check_copy_pages(const made::CpuLibrary& library, std::mt19937& random) {
  // Two lists of 4 records behind 32 bytes, to lists of 8.
  std::vector<uint8_t> source(3 * 128), target(2 * 128, 0xee);
  for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
  const int32_t pairs[2][2] = {{2, 0}, {0, 1}};
  const KvccCopyPagesParams p{source.data(), target.data(), pairs[0], 128, 128, 32, 2, 4, 8, 2};
  library.run(KVCC_CPU_COPY_PAGES, p, {}, kvcc_grid_copy_pages(&p));
  for (const auto& [from, to] : pairs) {
    const uint8_t *a = source.data() + from * 128, *b = target.data() + to * 128;
    EXPECT_EQ(std::memcmp(a, b, 32 + 16), 0);
    EXPECT_EQ(std::memcmp(a + 32 + 16, b + 32 + 32, 16), 0);
  }
}

void check(const made::CpuLibrary& library, const Configuration& c, const Artifact& artifact, std::mt19937& random) {
  SCOPED_TRACE(name(c));
  switch (c.family) {
    case Family::pack_key:
    case Family::pack_value:
      return check_pack(library, c, artifact, random);
    case Family::dequantise_key:
    case Family::dequantise_value:
      return check_dequantise(library, c, artifact, random);
    case Family::key_scores:
      return check_key_scores(library, c, artifact, random);
    case Family::value_mix:
      return check_value_mix(library, c, artifact, random);
    case Family::attention:
      return check_attention(library, c, artifact, random);
    case Family::copy_pages:
      return check_copy_pages(library, random);
  }
}

TEST(EmittedCpuUnits, OfAnArtifactEqualTheReferenceAndAreListed) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, kHeads, 3, 64, 64);
  artifact.name = "три \"3\"";
  Targets targets;
  targets.cpu = true;
  const Plan p = plan(artifact, targets);
  const made::CpuLibrary library(artifact, p);
  const KvccCpuLibrary& table = library.table();
  EXPECT_EQ(table.size, sizeof table);
  EXPECT_EQ(table.contract, int{KVCC_CPU_CONTRACT});
  EXPECT_EQ(table.content_sha256, artifact.content_sha256);
  EXPECT_EQ(table.artifact, artifact.name);
  EXPECT_EQ(table.scheme, to_string(artifact.scheme));
  EXPECT_EQ(table.layers, 2);
  EXPECT_EQ(table.heads, kHeads);
  const auto& sets = library.built().instruction_sets;
  EXPECT_NE(std::find(sets.begin(), sets.end(), table.target()), sets.end()) << table.target();
  int listed = 0;
  for (const KernelSpec& spec : p.kernels) {
    for (const Entry& entry : entries_of(spec)) {
      ASSERT_LT(listed, table.count);
      const KvccCpuLibraryUnit& unit = table.units[listed++];
      EXPECT_EQ(unit.name, entry.name);
      EXPECT_EQ(reinterpret_cast<void*>(unit.run), library.symbol(entry.symbol));
      if (spec.configuration.family == Family::copy_pages) continue;
      EXPECT_EQ(unit.dtype, int{KVCC_DTYPE_F32});
      EXPECT_EQ(unit.key_bits, of_keys(spec.configuration.family) ? 3 : 0);
    }
  }
  EXPECT_EQ(listed, table.count);
  std::mt19937 random(5);
  for (const KernelSpec& spec : p.kernels) check(library, spec.configuration, artifact, random);
}

/// Keys and values of several widths, so that two units serve one layer; and one that is drawn.
constexpr const char* kSome =
    "attention_nuq4mixed_channel_d80_csr_interleaved32_v_nuq2mixed_token_d80_tail_g16_bf16__mma1";

/// KVCC_UNITS chooses, as made_units.h reads it; some are taken where it does not.
TEST(EmittedCpuUnits, OfConfigurationsEqualTheReference) {
  std::vector<Configuration> chosen;
  if (const char* text = std::getenv("KVCC_UNITS"); text != nullptr) {
    chosen = made::configurations(text);
  } else {
    chosen = made::configurations("@drawn:9:1");
    chosen.push_back(parse_configuration(kSome));
  }
  std::mt19937 random(9);
  std::vector<std::pair<Configuration, made::MadeUnits>> all;
  Plan together;  // one library of them all
  std::set<std::string> names;
  for (const Configuration& c : chosen) {
    made::MadeUnits units(c, random);
    const auto& kernels = units.plan.kernels;
    // What was drawn before in part is in the library with other tables.
    if (std::any_of(kernels.begin(), kernels.end(), [&](const KernelSpec& k) { return names.contains(k.name); }))
      continue;
    for (const KernelSpec& spec : kernels) names.insert(spec.name);
    together.kernels.insert(together.kernels.end(), kernels.begin(), kernels.end());
    all.emplace_back(c, std::move(units));
  }
  ASSERT_FALSE(all.empty());
  made::CpuLibrary library(all[0].second.artifact, together);
  for (const auto& [c, units] : all) {
    library.choose(units.plan);
    check(library, c, units.artifact, random);
    std::printf("%s: %zu units\n", name(c).c_str(), units.plan.kernels.size());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace kvcc::codegen
