// Attention of queries over a layer's cache. How the context is split follows from its length alone, so that results do
// not depend on the number of threads.
#include <algorithm>
#include <cmath>

#include "formats/core/error.h"
#include "kernels/host/runtime_sequence.h"

namespace kvcc::host {
namespace {

constexpr int64_t kSplitTokens = 512, kMostSplits = 32;
constexpr int64_t kSharedWork = 1 << 15;  // cached elements from which on threads share the work

}  // namespace

void RuntimeSequence::check_query(const float* query, int64_t count) const {
  const CacheShape& shape = artifact_->shape;
  const int64_t n = count * shape.query_heads * shape.head_dim;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isfinite(query[i])) continue;
    const int64_t head = i / shape.head_dim;
    throw bad_input("query " + std::to_string(head / shape.query_heads) + ", head " +
                        std::to_string(head % shape.query_heads) + ", channel " + std::to_string(i % shape.head_dim),
                    std::to_string(query[i]), "a finite value");
  }
}

/// The window as the units take it.
int64_t RuntimeSequence::check_window(float multiplier, int64_t window) {
  if (!std::isfinite(multiplier)) {
    throw Error(ErrorKind::usage, "multiplier", std::to_string(multiplier), "a finite number, e.g. 1 / sqrt(head_dim)");
  }
  if (window < 0) throw Error(ErrorKind::usage, "window", std::to_string(window), "a number of tokens, 0 for none");
  return window > kMostTokens ? 0 : window;
}

void RuntimeSequence::attend(int layer, const float* query, float multiplier, int64_t window, float* out) {
  check_layer(layer);
  check_query(query, 1);
  window = check_window(multiplier, window);
  const int64_t tokens = layers_[layer].tokens;
  if (tokens == 0) {
    throw Error(ErrorKind::usage, "layer " + std::to_string(layer), "no tokens", "at least one", "append first");
  }
  attend_shared(layer, {query, out, multiplier, window, static_cast<int32_t>(tokens)});
}

int32_t RuntimeSequence::splits_of(const Attention& a) const {
  if (units_.arithmetic() == KVCC_ARITHMETIC_F64) return 1;  // parts would be rounded to f32
  const int64_t visible = a.window > 0 ? std::min<int64_t>(a.window, a.tokens) : a.tokens;
  return static_cast<int32_t>(std::clamp<int64_t>(visible / kSplitTokens, 1, kMostSplits));
}

size_t RuntimeSequence::partial_floats(int32_t splits) const {
  if (splits <= 1) return 0;
  return size_t{static_cast<uint32_t>(splits)} * artifact_->shape.query_heads * (artifact_->shape.value_head_dim + 2);
}

/// `a.tokens` must stay where it is: the params point at it.
KvccAttentionParams RuntimeSequence::attention_params(int layer, const Attention& a, float* partial) {
  KvccAttentionParams p{};
  p.key = layers_[layer].key.view(&a.tokens);
  p.value = layers_[layer].value.view(&a.tokens);
  if (const BlockRopeTables* rope = tables_of(layer)) {
    p.rope = {rope->base_cosine.data(), rope->base_sine.data(), rope->relative_cosine.data(),
              rope->relative_sine.data()};
  }
  p.query = a.query;
  p.partial = partial;
  p.out = a.out;
  p.multiplier = a.multiplier != 0 ? a.multiplier : 1.0f / std::sqrt(static_cast<float>(artifact_->shape.head_dim));
  p.group = artifact_->shape.group();
  p.splits = splits_of(a);
  p.window = static_cast<int32_t>(a.window);
  return p;
}

/// Threads share the blocks of one query.
void RuntimeSequence::attend_shared(int layer, const Attention& a) {
  const size_t floats = partial_floats(splits_of(a));
  if (partial_.size() < floats * sizeof(float)) partial_ = AlignedBytes(floats * sizeof(float));
  const KvccAttentionParams p = attention_params(layer, a, reinterpret_cast<float*>(partial_.data()));
  const KvccGrid grid = kvcc_grid_mma_attention(&p);
  const uint32_t blocks = grid.x * grid.y;
  const int64_t elements = a.tokens * (columns(artifact_->key) + columns(artifact_->value));
  threads_.run(blocks, elements < kSharedWork ? blocks : 1, [&](int, uint32_t first, uint32_t last) {
    units_.run(KVCC_CPU_ATTENTION, &p, first, last, tables_of(layer));
  });
  if (p.splits > 1) units_.run(KVCC_CPU_ATTENTION_MERGE, &p, 0, kvcc_grid_mma_attention_merge(&p).x);
}

/// `count` queries, of which each sees one token more than the one before; all are in the cache. Threads share the
/// queries, where there are enough.
void RuntimeSequence::attend_many(int layer, Attention first, int64_t count) {
  const CacheShape& shape = artifact_->shape;
  const auto at = [&](int64_t i) {
    Attention a = first;
    a.query += i * shape.query_heads * shape.head_dim;
    a.out += i * shape.query_heads * shape.value_head_dim;
    a.tokens += static_cast<int32_t>(i);
    return a;
  };
  if (count < 2 * threads_.threads()) {
    for (int64_t i = 0; i < count; ++i) attend_shared(layer, at(i));
    return;
  }
  const size_t floats = partial_floats(splits_of(at(count - 1)));
  const size_t each = (floats * sizeof(float) + mma::kPageAlign - 1) / mma::kPageAlign * mma::kPageAlign;
  if (partial_.size() < each * threads_.threads()) partial_ = AlignedBytes(each * threads_.threads());
  threads_.run(static_cast<uint32_t>(count), 1, [&](int thread, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      const Attention a = at(i);
      const KvccAttentionParams p =
          attention_params(layer, a, reinterpret_cast<float*>(partial_.data() + thread * each));
      const KvccGrid grid = kvcc_grid_mma_attention(&p);
      units_.run(KVCC_CPU_ATTENTION, &p, 0, grid.x * grid.y, tables_of(layer));
      if (p.splits > 1) units_.run(KVCC_CPU_ATTENTION_MERGE, &p, 0, kvcc_grid_mma_attention_merge(&p).x);
    }
  });
}

}  // namespace kvcc::host
