// Appending: the values are checked first, then packed through the units; a tile whose list is too short makes all
// lists of its pool longer, and the call is repeated for it. With a residual window every token passes through its fp16
// rows, and is packed from them when it leaves, so that the bytes do not depend on how tokens are divided into calls.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/codec/reference.h"
#include "formats/codec/tails.h"
#include "formats/core/error.h"
#include "formats/layout/half.h"
#include "kernels/host/runtime_sequence.h"

namespace kvcc::host {
namespace {

constexpr int64_t kChunk = 1024;             // tokens that are packed at a time
constexpr int64_t kSharedWork = 1 << 14;     // elements from which on threads share the work
constexpr uint32_t kOverflows = 0x477ff000;  // bits of 65520, which rounds to infinity in fp16

LevelTable table_of(const PackedTensor& t, int layer, int heads) {
  const size_t row = static_cast<size_t>(layer) * heads;
  return {heads,
          t.codes,
          {t.levels.begin() + row * t.codes, t.levels.begin() + (row + heads) * t.codes},
          {t.bits.begin() + row, t.bits.begin() + row + heads}};
}

/// Encodes the row as the reference does, which throws what is wrong with it.
void check_encoding(const PackedTensor& t, int layer, int heads, std::span<const float> x, const std::string& place) {
  if (t.is_vector()) return;  // whatever is finite has a nearest vector
  EncodedToken token;
  if (t.token_axis) {
    encode(TokenQuantiser{heads, t.head_dim, table_of(t, layer, heads), t.tail}, x, token, place);
    return;
  }
  const auto part = [&](const std::vector<float>& values) {
    const auto begin = values.begin() + (values.empty() ? 0 : static_cast<int64_t>(layer) * x.size());
    return std::vector<float>(begin, begin + (values.empty() ? 0 : x.size()));
  };
  encode(ChannelQuantiser{heads, t.head_dim, table_of(t, layer, heads), part(t.scale), part(t.zero), part(t.lower),
                          part(t.upper)},
         x, token, place);
}

bool may_overflow(const float* x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, float_bits(x[i]) & 0x7fffffffu);
  return most >= kOverflows;
}

}  // namespace

/// Puts a layer back as it was when it was made, unless kept.
class RuntimeSequence::Undo {
 public:
  Undo(RuntimeSequence& sequence, int layer, int64_t count) : sequence_(sequence), layer_(sequence.layers_[layer]) {
    const Scheme& scheme = sequence.artifact_->scheme;
    tokens_ = layer_.tokens;
    std::vector<int64_t> rows;  // of the ring, which the new tokens overwrite
    for (int64_t i = 0; i < std::min<int64_t>(count, scheme.residual); ++i) {
      if (const int64_t p = tokens_ + i - scheme.sink; p >= 0) rows.push_back(scheme.sink + p % scheme.residual);
    }
    key_ = layer_.key.save(rows);
    value_ = layer_.value.save(rows);
  }
  Undo(const Undo&) = delete;
  ~Undo() {
    if (kept_) return;
    layer_.key.restore(key_, sequence_.units_);
    layer_.value.restore(value_, sequence_.units_);
    layer_.tokens = tokens_;
  }
  void keep() { kept_ = true; }

 private:
  RuntimeSequence& sequence_;
  Layer& layer_;
  int64_t tokens_ = 0;
  PagePool::Saved key_, value_;
  bool kept_ = false;
};

void RuntimeSequence::check_rows(int layer, const PackedTensor& t, const float* x, int64_t count) const {
  const int64_t n = columns(t);
  for (int64_t i = 0; i < count; ++i, x += n) {
    if (!may_overflow(x, n)) continue;
    const int64_t position = layers_[layer].tokens + i;
    const std::string place =
        std::string(t.name()) + " of layer " + std::to_string(layer) + ", token " + std::to_string(position);
    const std::span row(x, n);
    check_finite(row, t.head_dim, place);
    if (position < artifact_->scheme.sink || artifact_->scheme.residual > 0) {
      for (int64_t c = 0; c < n; ++c) checked_half(row[c], static_cast<int>(c), t.head_dim, place);
    } else {
      check_encoding(t, layer, artifact_->shape.kv_heads, row, place);
    }
  }
}

void RuntimeSequence::check_append(int layer, const float* key, const float* value, int64_t count) const {
  check_layer(layer);
  if (count < 0 || count > kMostTokens - layers_[layer].tokens) {
    throw Error(ErrorKind::usage, "count",
                std::to_string(count) + " tokens after " + std::to_string(layers_[layer].tokens),
                "at most " + std::to_string(kMostTokens) + " in all");
  }
  check_rows(layer, artifact_->key, key, count);
  check_rows(layer, artifact_->value, value, count);
}

/// Room for `count` more tokens. What follows fails for want of memory only where lists must grow.
void RuntimeSequence::prepare(int layer, int64_t count) {
  Layer& l = layers_[layer];
  const int64_t tokens = l.tokens + count;
  if (tokens > positions_) make_rope(std::min(std::max(tokens, 2 * positions_), kMostTokens));
  for (PagePool* pool : {&l.key, &l.value}) {
    pool->reserve(std::max<int64_t>(1, pages_of(tokens)), exact_rows_of(tokens));
  }
}

void RuntimeSequence::append(int layer, const float* key, const float* value, int64_t count) {
  check_append(layer, key, value, count);
  if (count == 0) return;
  prepare(layer, count);
  Undo undo(*this, layer, count);
  extend(layer, {key, value}, count);
  undo.keep();
}

void RuntimeSequence::extend(int layer, Rows x, int64_t count) {
  if (artifact_->scheme.residual > 0) {
    extend_window(layer, x, count);
  } else {
    pack(layer, x, layers_[layer].tokens, count);
  }
  layers_[layer].tokens += count;
}

void RuntimeSequence::extend_window(int layer, Rows x, int64_t count) {
  const int64_t sink = artifact_->scheme.sink, residual = artifact_->scheme.residual;
  Layer& l = layers_[layer];
  const int64_t before = l.tokens, after = before + count;
  if (before < sink) pack(layer, x, before, std::min(count, sink - before));
  const int64_t leaving = std::max(sink, before - residual), staying = std::max(sink, after - residual);
  const auto row_of = [&](int64_t p) { return sink + (p - sink) % residual; };
  const std::pair<PagePool*, const float*> tensors[] = {{&l.key, x.key}, {&l.value, x.value}};
  for (int64_t first = leaving; first < staying; first += kChunk) {
    const int64_t tokens = std::min(kChunk, staying - first);
    for (int i = 0; i < 2; ++i) {
      const auto& [pool, from] = tensors[i];
      const int64_t n = columns(pool->tensor());
      rows_[i].resize(tokens * n);
      for (int64_t p = first; p < first + tokens; ++p) {
        float* const to = rows_[i].data() + (p - first) * n;
        const uint16_t* const kept = pool->exact_row(row_of(p));
        const float* const fresh = from + (p - before) * n;
        for (int64_t c = 0; c < n; ++c) to[c] = half_to_float(p < before ? kept[c] : float_to_half(fresh[c]));
      }
    }
    pack(layer, {rows_[0].data(), rows_[1].data()}, first, tokens);
  }
  for (const auto& [pool, from] : tensors) {
    const int64_t n = columns(pool->tensor());
    for (int64_t p = std::max(before, staying); p < after; ++p) {
      const float* const fresh = from + (p - before) * n;
      std::transform(fresh, fresh + n, pool->exact_row(row_of(p)), float_to_half);
    }
  }
}

/// Packs tokens at positions first and on: sink rows and pages.
void RuntimeSequence::pack(int layer, Rows x, int64_t first, int64_t count) {
  const int64_t sink = artifact_->scheme.sink;
  Layer& l = layers_[layer];
  for (const int64_t end = first + count; first < end;) {
    // Up to the end of a page, so that no tile is made twice.
    const int64_t chunk = std::min(end - first, kChunk - std::max<int64_t>(0, first - sink) % mma::kPageTokens);
    const int64_t begin_page = std::max<int64_t>(0, first - sink) / mma::kPageTokens;
    const int64_t packed = std::max<int64_t>(0, first + chunk - sink);
    const int64_t end_page = (packed + mma::kPageTokens - 1) / mma::kPageTokens;
    PagePool* const pools[] = {&l.key, &l.value};
    for (PagePool* pool : pools) pool->use_pages(std::max(pool->pages(), end_page));
    int32_t repeat_above[] = {0, 0};
    for (bool again = true; again;) {
      pack_once(layer, x, static_cast<int32_t>(first), static_cast<int32_t>(chunk), repeat_above);
      again = false;
      for (int i = 0; i < 2; ++i) {
        const uint32_t needed = pools[i]->most_needed(begin_page, end_page), capacity = pools[i]->capacity();
        repeat_above[i] = -1;  // done
        if (needed <= capacity) continue;
        repeat_above[i] = static_cast<int32_t>(capacity);
        pools[i]->grow_records(needed, units_, threads_);
        again = true;
      }
    }
    x.key += chunk * columns(artifact_->key);
    x.value += chunk * columns(artifact_->value);
    first += chunk;
  }
}

/// One call of the pack families on both tensors; repeat_above -1: not on this one.
void RuntimeSequence::pack_once(int layer, Rows x, int32_t first, int32_t count, const int32_t repeat_above[2]) {
  Layer& l = layers_[layer];
  uint32_t status[2] = {0, 0};
  KvccPackParams p[2] = {};
  uint32_t tokens[2] = {0, 0}, blocks[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    if (repeat_above[i] < 0) continue;
    PagePool& pool = i == 0 ? l.key : l.value;
    p[i].cache = pool.view(nullptr);
    p[i].x = i == 0 ? x.key : x.value;
    p[i].first = &first;
    p[i].status = &status[i];
    p[i].count = count;
    p[i].repeat_above = repeat_above[i];
    if (pool.tensor().token_axis) {
      selected_[i].resize(int64_t{count} * 2 * p[i].cache.tail);
      inliers_[i].resize(int64_t{count} * 2);
      p[i].selected = p[i].cache.tail > 0 ? selected_[i].data() : nullptr;
      p[i].inliers = inliers_[i].data();
      tokens[i] = static_cast<uint32_t>(count);
    }
    const KvccGrid grid = kvcc_grid_mma_pack(&p[i]);
    blocks[i] = grid.x * grid.y;
  }
  // Blocks of the keys, then of the values, as one range.
  const auto both = [&](const uint32_t n[2], uint32_t part, int key_family, int value_family) {
    const auto work = [&](int, uint32_t begin, uint32_t end) {
      units_.run(key_family, &p[0], begin, std::min(end, n[0]));
      units_.run(value_family, &p[1], std::max(begin, n[0]) - n[0], std::max(end, n[0]) - n[0]);
    };
    const int64_t elements = count * (columns(artifact_->key) + columns(artifact_->value));
    threads_.run(n[0] + n[1], elements < kSharedWork ? n[0] + n[1] : part, work);
  };
  both(tokens, 16, KVCC_CPU_PACK_KEY_SELECT, KVCC_CPU_PACK_VALUE_SELECT);
  both(blocks, 1, KVCC_CPU_PACK_KEY, KVCC_CPU_PACK_VALUE);
  if (status[0] != 0 || status[1] != 0) {  // the values were checked before
    throw Error(ErrorKind::failed, "layer " + std::to_string(layer) + ", packing", "a value out of range");
  }
}

void RuntimeSequence::append_attend(int layer, const float* key, const float* value, const float* query, int64_t count,
                                    float multiplier, int64_t window, float* out) {
  check_append(layer, key, value, count);
  check_query(query, count);
  window = check_window(multiplier, window);
  if (count == 0) return;
  prepare(layer, count);
  Undo undo(*this, layer, count);
  const CacheShape& shape = artifact_->shape;
  // A query sees no later token, so that without a residual window, whose ring holds only the last ones, many tokens
  // are packed at a time and many queries attend at a time.
  const int64_t batch = artifact_->scheme.residual > 0 ? 1 : 256;
  for (int64_t done = 0; done < count; done += batch) {
    const int64_t tokens = std::min(batch, count - done);
    const int64_t before = layers_[layer].tokens;
    extend(layer, {key + done * columns(artifact_->key), value + done * columns(artifact_->value)}, tokens);
    const int64_t query_row = int64_t{shape.query_heads} * shape.head_dim;
    const int64_t out_row = int64_t{shape.query_heads} * shape.value_head_dim;
    attend_many(layer,
                {query + done * query_row, out + done * out_row, multiplier, window, static_cast<int32_t>(before + 1)},
                tokens);
  }
  undo.keep();
}

}  // namespace kvcc::host
