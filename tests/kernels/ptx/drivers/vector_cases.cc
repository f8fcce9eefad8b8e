// Cases of layout vector-1 for ptx_run: readers on tensor cores. Settings beside those of ptx_run.cc: form (head or
// channels), steps and value_steps (of the units), pair_bits and four_bits: bits of the codes of pairs, a quarter of
// the coordinates, and of fours.
#include "tests/kernels/vector_cases.h"
#include "formats/codec/vector_fragments.h"
#include "formats/codec/vector_tables.h"
#include "tests/kernels/ptx/drivers/cases.h"

namespace kvcc::test {
namespace {

VectorQuantiser quantiser(const Options& o, std::mt19937& random) {
  const int heads = o.number("heads", 2), dim = o.number("dim", 64);
  VectorQuantiser q = make_vector_quantiser({heads, dim, o.text("form", "head") == "head", 0, 1}, random);
  std::normal_distribution<float> normal;
  q.vectors.clear();
  for (int h = 0; h < heads; ++h) {
    for (int at = 0; at < dim;) {
      const int width = at < dim / 4 ? 2 : 4, bits = o.number(width == 2 ? "pair_bits" : "four_bits", 4);
      for (int i = 0; i < width; ++i) {
        q.width[h * dim + at + i] = static_cast<uint8_t>(i == 0 ? width : 0);
        q.bits[h * dim + at + i] = static_cast<uint8_t>(i == 0 ? bits : 0);
      }
      for (int i = 0; i < width << bits; ++i) q.vectors.push_back(normal(random));
      at += width;
    }
  }
  return q;
}

struct Side {
  Side(const Options& o, FragmentsOf of, std::mt19937& random)
      : q(quantiser(o, random)),
        tables(q),
        fragments(make_fragments(tables.tensor(), q.heads, of,
                                 o.number(of == FragmentsOf::keys ? "steps" : "value_steps", 4))) {
    std::vector<reference::VectorCache> caches;
    for (const int32_t tokens : o.lengths()) {
      caches.push_back(reference::pack_vector(q, make_rows(tokens, int64_t{q.heads} * q.dim, random),
                                              {o.number("sink", 0), o.number("residual", 0), 0}));
    }
    std::mt19937 order(3);  // keys and values share their page table
    batch = std::make_unique<VectorBatch>(caches, order);
    tensor = tables.tensor();
    tensor.heads = fragments.heads.data();
    tensor.slots = fragments.slots.data();
    tensor.rows = fragments.rows.data();
    tensor.fragments = fragments.fragments.data();
    tensor.fragment_mean = fragments.mean.data();
    tensor.back = fragments.back.data();
  }
  VectorQuantiser q;
  VectorTables tables;
  VectorFragments fragments;
  std::unique_ptr<VectorBatch> batch;
  KvccVectorTensor tensor{};
};

}  // namespace

void run_vector_case(Run& run, const std::string& family) {
  const Options& o = run.options;
  std::mt19937 random(20);
  const Side key(o, FragmentsOf::keys, random), value(o, FragmentsOf::values, random);
  const int heads = key.q.heads, dim = key.q.dim, group = o.number("group", 1), splits = o.number("splits", 1);
  const int sequences = static_cast<int>(o.lengths().size());
  const MmaRope rope = make_mma_rope(o.number("rotary", 0), o.text("rope", "none") == "interleaved", 4096);
  const auto query = as_dtype(make_rows(sequences * heads * group, dim, random), o.dtype());
  if (family == "key_scores") {
    KvccVectorMmaKeyScoresParams p{};
    p.scores.cache = key.batch->view();
    p.scores.rope = rope.view();
    p.scores.query = query.data();
    p.scores.scores_stride = *std::max_element(key.batch->lengths.begin(), key.batch->lengths.end());
    std::vector<float> scores(size_t(sequences) * heads * group * p.scores.scores_stride, kUnwritten);
    p.scores.scores = scores.data();
    p.scores.multiplier = 0.125f;
    p.scores.group = group;
    p.scores.splits = splits;
    p.tensor = key.tensor;
    run.launch(p, kvcc_grid_mma_key_scores(&p.scores));
    run.keep("scores", scores);
    return;
  }
  if (family != "attention") throw std::runtime_error("no such family: " + family);
  std::vector<float> out(size_t(sequences) * heads * group * dim, kUnwritten);
  std::vector<float> partial(size_t(sequences) * splits * heads * group * (dim + 2), kUnwritten);
  KvccVectorAttentionParams p{};
  p.attention.key = key.batch->view();
  p.attention.value = value.batch->view();
  p.attention.rope = rope.view();
  p.attention.query = query.data();
  p.attention.partial = splits > 1 ? partial.data() : nullptr;
  p.attention.out = out.data();
  p.attention.multiplier = 0.125f;
  p.attention.group = group;
  p.attention.splits = splits;
  p.key = key.tensor;
  p.value = value.tensor;
  run.launch(p, kvcc_grid_mma_attention(&p.attention));
  if (splits > 1) run.launch(p, kvcc_grid_mma_attention_merge(&p.attention), "_merge");
  run.keep("out", out);
  if (splits > 1) run.keep("partial", partial);
}

}  // namespace kvcc::test
