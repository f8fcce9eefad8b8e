// The CPU units of vector codebooks against the reference, on every instruction set of the machine: what they store and
// give back to the bit, what they compute within the stated bounds.
#include <array>
#include <thread>

#include "formats/codec/vector_tables.h"
#include "formats/core/error.h"
#include "kernels/cpu/vector_units.h"
#include "kernels/reference/attention.h"
#include "tests/kernels/cpu/readers_cases.h"
#include "tests/kernels/cpu/units.h"
#include "tests/kernels/vector_cases.h"

namespace kvcc::test {
namespace {

using reference::VectorCache;

constexpr float kMultiplier = 0.17f;
constexpr double kError = 0x1p-20;  ///< vector_keys-inl.h, vector_values-inl.h

/// All blocks of a grid, in runs of random lengths, in a random order, in two threads.
void run(int family, const void* params, const KvccVectorTables& tables, KvccGrid grid, uint32_t seed) {
  std::mt19937 random(seed);
  const uint32_t count = grid.x * grid.y * grid.z;
  std::vector<std::pair<uint32_t, uint32_t>> runs;
  for (uint32_t first = 0; first < count; first = runs.back().second) {
    runs.emplace_back(first, std::min<uint32_t>(count, first + 1 + random() % 5));
  }
  std::shuffle(runs.begin(), runs.end(), random);
  const auto work = [&](size_t thread) {
    for (size_t i = thread; i < runs.size(); i += 2) {
      kvcc_cpu_run_vector(family, params, &tables, runs[i].first, runs[i].second);
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
}

struct VectorCase {
  VectorForm key, value;
  int rope = KVCC_ROPE_HALF, rotary = 64;
  int group = 3, splits = 1, sink = 1, residual = 0, window = 0;
  int dtype = KVCC_DTYPE_F32;
  std::vector<int> lengths = {150};
  uint32_t seed = 1;
};

/// One tensor of a batch: packed, unpacked, and the magnitudes that errors are relative to.
struct VectorSide {
  VectorSide(const VectorForm& form, const VectorCase& c, std::mt19937& random)
      : quantiser(make_vector_quantiser(form, random)), tables(quantiser) {
    for (const int length : c.lengths) {
      rows.push_back(make_rows(length, form.heads * form.dim, random));
      caches.push_back(reference::pack_vector(quantiser, rows.back(), {c.sink, c.residual, 0}));
      values.push_back(reference::unpack(quantiser, caches.back()));
      spread.push_back(magnitudes(quantiser, caches.back()));
    }
    batch = std::make_unique<VectorBatch>(caches, random);
  }
  VectorQuantiser quantiser;
  VectorTables tables;
  std::vector<std::vector<float>> rows, values, spread;
  std::vector<VectorCache> caches;
  std::unique_ptr<VectorBatch> batch;
};

class VectorSetup {
 public:
  explicit VectorSetup(const VectorCase& of)
      : c(of), random(of.seed), key(of.key, of, random), value(of.value, of, random) {
    const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    rope = make_mma_rope(c.rope == KVCC_ROPE_NONE ? 0 : c.rotary, c.rope == KVCC_ROPE_INTERLEAVED, longest + 1, 1.25);
    for (int r = 0; r < 2 * KVCC_ROPE_BLOCK; ++r) {
      for (const double f : rope.frequencies) {
        cosine.push_back(static_cast<float>(std::cos(r * f)));
        sine.push_back(static_cast<float>(std::sin(r * f)));
      }
    }
    tables = {&key.tables.tensor(), &value.tables.tensor(), c.rope, c.rotary, c.dtype, cosine.data(), sine.data()};
  }
  std::vector<uint8_t> bytes_of(const std::vector<float>& x) const {
    return as_dtype(x, c.dtype == KVCC_DTYPE_F32 ? Dtype::f32 : c.dtype == KVCC_DTYPE_F16 ? Dtype::f16 : Dtype::bf16);
  }
  int sequences() const { return static_cast<int>(c.lengths.size()); }
  int rows() const { return c.key.heads * c.group; }
  int first_visible(int s) const { return c.window > 0 ? std::max(c.lengths[s] - c.window, 0) : 0; }
  reference::Rotation rotation() const { return {rope.interleaved, rope.frequencies, rope.factor}; }

  /// Score bounds [H * group, T] of sequence s.
  std::vector<double> score_bounds(int s, const float* query) const {
    const int d = c.key.dim, half = static_cast<int>(rope.frequencies.size());
    std::vector<double> bounds;
    for (int row = 0; row < rows(); ++row) {
      const float* q = query + row * d;
      for (int64_t t = 0; t < c.lengths[s]; ++t) {
        const float* k = key.spread[s].data() + (t * c.key.heads + row / c.group) * d;
        double sum = 0;
        for (int i = 0; i < half; ++i) {
          const int x = rope.interleaved ? 2 * i : i, y = rope.interleaved ? 2 * i + 1 : i + half;
          sum += rope.factor * std::hypot(q[x], q[y]) * std::hypot(k[x], k[y]);
        }
        for (int i = 2 * half; i < d; ++i) sum += std::fabs(q[i]) * k[i];
        bounds.push_back(kError * kMultiplier * sum);
      }
    }
    return bounds;
  }

  VectorCase c;
  std::mt19937 random;
  VectorSide key, value;
  MmaRope rope;
  std::vector<float> cosine, sine;
  KvccVectorTables tables{};
};

void check_storage(VectorSetup& b, VectorSide& side, int pack, int dequantise) {
  const int columns = side.quantiser.heads * side.quantiser.dim;
  for (int s = 0; s < b.sequences(); ++s) {
    // Pack what is not in the residual window, in calls, over pages that hold ones.
    const VectorCache& wanted = side.caches[s];
    const int kept = std::min(b.c.lengths[s] - std::min(b.c.residual, b.c.lengths[s]), b.c.lengths[s]);
    const int end = std::max(kept, std::min(b.c.lengths[s], b.c.sink));
    VectorBatch batch({wanted}, b.random);
    std::fill(batch.memory.begin(), batch.memory.end(), uint8_t{0xff});
    std::fill(batch.exact.begin(), batch.exact.end(), uint16_t{0x7e01});
    KvccPackParams p{};
    p.cache = batch.view();
    uint32_t status = 0;
    int32_t first = 0;
    for (const int count : random_calls(end, b.random)) {
      const auto bytes = b.bytes_of({side.rows[s].begin() + static_cast<ptrdiff_t>(first) * columns,
                                     side.rows[s].begin() + static_cast<ptrdiff_t>(first + count) * columns});
      p.x = bytes.data();
      p.first = &first;
      p.count = count;
      p.status = &status;
      run(pack, &p, b.tables, kvcc_grid_mma_pack(&p), static_cast<uint32_t>(count));
      first += count;
    }
    EXPECT_EQ(status, 0u);
    for (int i = 0; i < wanted.page_count(); ++i) {
      if (b.c.sink + i * KVCC_PAGE_TOKENS >= end) continue;
      const size_t bytes = size_t{wanted.shape.code_words} * 4;
      EXPECT_EQ(std::memcmp(batch.pages() + batch.page_table[i] * p.cache.page_bytes,
                            wanted.pages.data() + i * wanted.shape.page_bytes(), bytes),
                0)
          << "page " << i;
    }
    const int sinks = std::min(b.c.sink, b.c.lengths[s]) * columns;
    EXPECT_TRUE(std::equal(wanted.exact.begin(), wanted.exact.begin() + sinks, batch.exact.begin()));
  }
  // Every sequence from a position of its own.
  const int32_t count = 90;
  std::vector<int32_t> first;
  for (int s = 0; s < b.sequences(); ++s) first.push_back(static_cast<int32_t>(b.random() % 70));
  std::vector<float> out(first.size() * count * columns, 12345.0f);
  KvccDequantiseParams p{side.batch->view(), out.data(), first.data(), count};
  run(dequantise, &p, b.tables, kvcc_grid_mma_dequantise(&p), 5);
  for (int s = 0; s < b.sequences(); ++s) {
    for (int i = 0; i < count; ++i) {
      const float* found = out.data() + (static_cast<size_t>(s) * count + i) * columns;
      const int64_t t = first[s] + i;
      if (t >= b.c.lengths[s]) {
        EXPECT_EQ(std::count(found, found + columns, 12345.0f), columns) << "written beyond the end";
        continue;
      }
      EXPECT_EQ(std::memcmp(found, side.values[s].data() + t * columns, columns * 4), 0)
          << "sequence " << s << " position " << t;
    }
  }
}

/// Greatest share of their bounds that errors take.
double check_scores(VectorSetup& b) {
  const VectorCase& c = b.c;
  const auto query = make_rows(int64_t{b.sequences()} * b.rows(), c.key.dim, b.random);
  const auto bytes = b.bytes_of(query);
  const int64_t stride = *std::max_element(c.lengths.begin(), c.lengths.end()) + 3;
  std::vector<float> scores(b.sequences() * b.rows() * stride, 12345.0f);
  KvccMmaKeyScoresParams p{b.key.batch->view(), b.rope.view(), bytes.data(), scores.data(), stride,
                           kMultiplier,         c.group,       c.splits,     c.window};
  run(KVCC_CPU_KEY_SCORES, &p, b.tables, kvcc_grid_mma_key_scores(&p), 7);
  Ratio ratio;
  for (int s = 0; s < b.sequences(); ++s) {
    const float* q = query.data() + static_cast<size_t>(s) * b.rows() * c.key.dim;
    const auto wanted = reference::key_scores(b.key.values[s], {q, static_cast<size_t>(b.rows() * c.key.dim)},
                                              c.key.heads, c.key.dim, c.group, b.rotation(), kMultiplier);
    const auto bounds = b.score_bounds(s, q);
    for (int row = 0; row < b.rows(); ++row) {
      for (int64_t t = 0; t < stride; ++t) {
        const float found = scores[(static_cast<int64_t>(s) * b.rows() + row) * stride + t];
        if (t < b.first_visible(s) || t >= c.lengths[s]) {
          EXPECT_EQ(found, 12345.0f) << "written at " << t;
          continue;
        }
        const int64_t i = row * int64_t{c.lengths[s]} + t;
        ratio.add(found, wanted.value[i], bounds[i], "score of row " + std::to_string(row));
      }
    }
  }
  return ratio.greatest;
}

double check_mix(VectorSetup& b) {
  const VectorCase& c = b.c;
  const int dv = c.value.dim;
  const int64_t stride = *std::max_element(c.lengths.begin(), c.lengths.end()) + 3;
  auto weights = make_rows(int64_t{b.sequences()} * b.rows(), stride, b.random);
  for (int s = 0; s < b.sequences(); ++s) {  // what is not visible is not read
    for (int row = 0; row < b.rows(); ++row) {
      float* w = weights.data() + (int64_t{s} * b.rows() + row) * stride;
      std::fill(w, w + b.first_visible(s), std::nanf(""));
      std::fill(w + c.lengths[s], w + stride, std::nanf(""));
    }
  }
  const auto bytes = b.bytes_of(weights);
  std::vector<float> out(static_cast<size_t>(b.sequences()) * b.rows() * dv, std::nanf(""));
  std::vector<float> partial(out.size() * c.splits, std::nanf(""));
  KvccValueMixParams p{};
  p.cache = b.value.batch->view();
  p.weights = bytes.data();
  p.partial = partial.data();
  p.out = out.data();
  p.weights_stride = stride;
  p.group = c.group;
  p.splits = c.splits;
  p.window = c.window;
  run(KVCC_CPU_VALUE_MIX, &p, b.tables, kvcc_grid_mma_value_mix(&p), 3);
  if (c.splits > 1) run(KVCC_CPU_VALUE_MERGE, &p, b.tables, kvcc_grid_value_merge(&p, dv), 4);
  Ratio ratio;
  for (int s = 0; s < b.sequences(); ++s) {
    for (int row = 0; row < b.rows(); ++row) {
      const float* w = weights.data() + (int64_t{s} * b.rows() + row) * stride;
      for (int ch = 0; ch < dv; ++ch) {
        double wanted = 0, bound = 0;
        for (int64_t t = b.first_visible(s); t < c.lengths[s]; ++t) {
          const int64_t at = (t * c.value.heads + row / c.group) * dv + ch;
          wanted += double{w[t]} * b.value.values[s][at];
          bound += kError * std::fabs(w[t]) * b.value.spread[s][at];
        }
        ratio.add(out[(static_cast<size_t>(s) * b.rows() + row) * dv + ch], wanted, bound, "mix");
      }
    }
  }
  return ratio.greatest;
}

double check_attention(VectorSetup& b) {
  const VectorCase& c = b.c;
  const int dv = c.value.dim;
  const auto query = make_rows(int64_t{b.sequences()} * b.rows(), c.key.dim, b.random);
  const auto bytes = b.bytes_of(query);
  std::vector<float> out(static_cast<size_t>(b.sequences()) * b.rows() * dv, std::nanf(""));
  std::vector<float> partial(out.size() / dv * (dv + 2) * c.splits, std::nanf(""));
  KvccAttentionParams p{};
  p.key = b.key.batch->view();
  p.value = b.value.batch->view();
  p.rope = b.rope.view();
  p.query = bytes.data();
  p.partial = c.splits > 1 ? partial.data() : nullptr;
  p.out = out.data();
  p.multiplier = kMultiplier;
  p.group = c.group;
  p.splits = c.splits;
  p.window = c.window;
  run(KVCC_CPU_ATTENTION, &p, b.tables, kvcc_grid_mma_attention(&p), 9);
  if (c.splits > 1) run(KVCC_CPU_ATTENTION_MERGE, &p, b.tables, kvcc_grid_mma_attention_merge(&p), 2);
  Ratio ratio;
  for (int s = 0; s < b.sequences(); ++s) {
    const std::span q(query.data() + static_cast<size_t>(s) * b.rows() * c.key.dim,
                      static_cast<size_t>(b.rows()) * c.key.dim);
    const reference::AttentionShape shape{c.key.heads, c.key.dim, dv, c.group, c.window, kMultiplier};
    const auto wanted = reference::attention(b.key.values[s], b.value.values[s], q, shape, b.rotation());
    const auto scores =
        reference::key_scores(b.key.values[s], q, c.key.heads, c.key.dim, c.group, b.rotation(), kMultiplier);
    const auto bounds = b.score_bounds(s, q.data());
    for (int row = 0; row < b.rows(); ++row) {
      for (int ch = 0; ch < dv; ++ch) {
        const size_t i = static_cast<size_t>(row) * dv + ch;
        double bound = 0;
        for (int64_t t = b.first_visible(s); t < c.lengths[s]; ++t) {
          const int64_t at = (t * c.value.heads + row / c.group) * dv + ch;
          const double weight =
              std::exp(scores.value[row * int64_t{c.lengths[s]} + t] - wanted.peak[row]) / wanted.sum[row];
          bound += weight *
                   (2 * bounds[row * int64_t{c.lengths[s]} + t] * std::fabs(b.value.values[s][at] - wanted.value[i]) +
                    2 * kError * b.value.spread[s][at]);
        }
        ratio.add(out[static_cast<size_t>(s) * wanted.value.size() + i], wanted.value[i], bound, "attention");
      }
    }
  }
  return ratio.greatest;
}

std::vector<VectorCase> cases() {
  const VectorForm turned{2, 64, true, 8, 4}, grouped{2, 64, false, 8, 4};
  std::vector<VectorCase> all;
  all.push_back({turned, turned});
  all.push_back({grouped, turned});
  all.back().splits = 3;
  all.back().lengths = {300, 63, 2};
  all.push_back({grouped, grouped});
  all.back().residual = 40;
  all.back().window = 100;
  all.back().lengths = {131, 200};
  all.back().dtype = KVCC_DTYPE_BF16;
  all.push_back({{2, 128, true, 10, 4}, {2, 64, false, 10, 8}});
  all.back().rope = KVCC_ROPE_INTERLEAVED;
  all.back().rotary = 32;
  all.back().group = 8;
  all.back().sink = 65;
  all.back().dtype = KVCC_DTYPE_F16;
  all.push_back({{1, 16, true, 12, 8}, {1, 16, true, 0, 2}});  // values of no bits: their constants
  all.back().rope = KVCC_ROPE_NONE;
  all.back().rotary = 0;
  all.back().group = 12;
  all.back().sink = 0;
  all.push_back({{1, 256, false, 4, 1}, {1, 256, true, 2, 3}});
  all.back().group = 1;
  all.back().rotary = 256;
  for (size_t i = 0; i < all.size(); ++i) all[i].seed = static_cast<uint32_t>(i + 1);
  return all;
}

TEST(CpuVector, StoresAndGivesBackToTheBit) {
  on_every_target([] {
    for (const VectorCase& c : cases()) {
      SCOPED_TRACE("case " + std::to_string(c.seed));
      VectorSetup b(c);
      check_storage(b, b.key, KVCC_CPU_PACK_KEY, KVCC_CPU_DEQUANTISE_KEY);
      check_storage(b, b.value, KVCC_CPU_PACK_VALUE, KVCC_CPU_DEQUANTISE_VALUE);
    }
  });
}

TEST(CpuVector, ReadersStayWithinTheirBounds) {
  double worst = 0;
  on_every_target([&] {
    for (const VectorCase& c : cases()) {
      SCOPED_TRACE("case " + std::to_string(c.seed));
      VectorSetup b(c);
      worst = std::max({worst, check_scores(b), check_mix(b), check_attention(b)});
    }
  });
  RecordProperty("greatest_share_of_a_bound", std::to_string(worst));
  EXPECT_GT(worst, 0.05) << "bounds that nothing comes near prove little";
}

TEST(CpuVector, EqualDistancesTakeTheFirstAndNanRaisesTheStatus) {
  VectorQuantiser q{1, 16, 1, std::vector<float>(16), {}, {}, {}, {}, {}};
  for (int i = 0; i < 256; ++i) q.forward.push_back(i / 16 == i % 16 ? 1.0f : 0.0f);
  q.inverse = q.forward;
  for (int i = 0; i < 16; i += 4) {
    for (int k = 0; k < 4; ++k) {
      q.width.push_back(k == 0 ? 4 : 0);
      q.bits.push_back(k == 0 ? 5 : 0);
    }
    for (int e = 0; e < 32; ++e) q.vectors.insert(q.vectors.end(), 4, e < 20 ? 9.0f : 1.0f);  // 20 to 31 are alike
  }
  const VectorTables tables(q);
  on_every_target([&] {
    const KvccVectorTables t{&tables.tensor(), nullptr, KVCC_ROPE_NONE, 0, KVCC_DTYPE_F32, nullptr, nullptr};
    alignas(128) std::array<uint8_t, 384> page{};
    std::vector<float> x(16, 1.0f);
    const int32_t first = 0;
    uint32_t status = 0;
    KvccPackParams p{};
    p.cache.pages = page.data();
    p.cache.head_words = tables.head_words().data();
    p.cache.page_bytes = 384;
    p.cache.sequences = p.cache.heads = p.cache.max_pages = 1;
    p.x = x.data();
    p.first = &first;
    p.count = 1;
    p.status = &status;
    kvcc_cpu_run_vector(KVCC_CPU_PACK_KEY, &p, &t, 0, 2);
    EXPECT_EQ(vector_page::get_code(page.data(), 20, 0, 0, 5), 20u);
    EXPECT_EQ(vector_page::get_code(page.data(), 20, 0, 15, 5), 20u);
    EXPECT_EQ(status, 0u);
    x[7] = std::nanf("");
    kvcc_cpu_run_vector(KVCC_CPU_PACK_KEY, &p, &t, 0, 2);
    EXPECT_EQ(status, uint32_t{KVCC_STATUS_RANGE});
  });
}

TEST(CpuVector, RefusesTheTransformAcrossHeads) {
  std::mt19937 random(1);
  VectorQuantiser q = make_vector_quantiser({1, 64, true, 3, 4}, random);
  q.heads = 2;
  q.dim = 32;
  try {
    const VectorTables tables(q);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("across the heads"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("tensor-parallel"), std::string::npos) << error.what();
  }
}

TEST(CpuVector, TellsTheFormsApart) {
  std::mt19937 random(2);
  EXPECT_EQ(VectorTables(make_vector_quantiser({2, 32, true, 3, 4}, random)).tensor().transform, 1);
  EXPECT_EQ(VectorTables(make_vector_quantiser({2, 32, false, 3, 4}, random)).tensor().transform, 0);
}

}  // namespace
}  // namespace kvcc::test
