// Sequences: what they hold, their checks, rotary tables and reading back. Appending is in runtime_append.cc, attention
// in runtime_attend.cc.
#include "kernels/host/runtime_sequence.h"

#include <algorithm>
#include <cmath>

#include "formats/core/error.h"
#include "formats/core/json.h"
#include "formats/core/rope_layers.h"

namespace kvcc::host {
namespace {

constexpr int64_t kDefaultPositions = 32768;

/// Tokens that the model was trained on, where a scaling's frequencies depend on the length; else 0.
int64_t trained_context(const RopeInfo& rope) {
  if (rope.scaling != "dynamic" && rope.scaling != "longrope") return 0;
  const auto json = parse_json<nlohmann::json>(rope.scaling_json, "RoPE scaling " + rope.scaling);
  if (!json.contains("original_max_position_embeddings")) return 0;
  const nlohmann::json& value = json["original_max_position_embeddings"];
  if (!value.is_number_integer() || value < 1 || value > kMostTokens) return 0;
  return value.get<int64_t>();
}

}  // namespace

RuntimeSequence::RuntimeSequence(std::shared_ptr<const RuntimeArtifact> artifact, const RuntimeOptions& options)
    : artifact_(std::move(artifact)),
      units_(*artifact_, options.units, options.arithmetic),
      threads_(options.threads),
      max_tokens_(options.max_tokens) {
  layers_.reserve(artifact_->shape.layers);
  for (int l = 0; l < artifact_->shape.layers; ++l) {
    layers_.push_back({PagePool(*artifact_, artifact_->key, l), PagePool(*artifact_, artifact_->value, l)});
  }
  find_rotations();
  int64_t trained = 0;
  for (const Rotation& rotation : rotations_) trained = std::max(trained, trained_context(rotation.rope));
  make_rope(max_tokens_ > 0 ? max_tokens_ : trained > 0 ? trained : kDefaultPositions);
}

void RuntimeSequence::find_rotations() {
  if (artifact_->rotary_dim == 0) return;
  const RopeLayers of_model = rope_layers(artifact_->rope);
  for (const RopeInfo& rope : of_model.kinds) rotations_.push_back({rope});
  for (size_t l = 0; l < layers_.size(); ++l) {
    int kind = of_model.kind(artifact_->layer_index[l]);
    if (kind < 0) {  // the units turn all keys: by nothing
      kind = static_cast<int>(of_model.kinds.size());
      if (rotations_.size() == of_model.kinds.size()) rotations_.push_back({of_model.kinds[0], false});
    }
    layers_[l].rotation = kind;
  }
}

void RuntimeSequence::make_rope(int64_t positions) {
  for (Rotation& rotation : rotations_) {
    const int64_t trained = trained_context(rotation.rope);
    // Dynamic scaling and LongRoPE turn by the length: stated, or reached. Until then the model is as it was trained.
    const bool longer = max_tokens_ > 0 || positions > trained;
    RopeFrequencies frequencies{std::vector<float>(artifact_->rotary_dim / 2)};
    if (rotation.turns) frequencies = rope_frequencies(rotation.rope, {trained, trained > 0 && longer ? positions : 0});
    BlockRopeTables tables = block_rope_tables(frequencies, positions);
    rotation.frequencies = std::move(frequencies);
    rotation.tables = std::move(tables);
  }
  positions_ = positions;
}

void RuntimeSequence::check_layer(int layer) const {
  if (has_layer(layer)) return;
  throw Error(ErrorKind::usage, "layer", std::to_string(layer), "0 to " + std::to_string(artifact_->shape.layers - 1));
}

void RuntimeSequence::rotate(int layer, float* query, int64_t first, int64_t count) const {
  if (layer >= 0) check_layer(layer);
  const auto other = [&](const Layer& l) { return l.rotation != layers_.front().rotation; };
  if (layer < 0 && std::any_of(layers_.begin(), layers_.end(), other)) {
    throw Error(ErrorKind::usage, "rotation", "one that differs from layer to layer", "a layer",
                "kvcc_rotate_layer takes one");
  }
  if (first < 0 || count < 0 || first > kMostTokens - count) {
    throw Error(ErrorKind::usage, "positions", std::to_string(count) + " from " + std::to_string(first),
                "positions from 0 to " + std::to_string(kMostTokens - 1));
  }
  const int half = artifact_->rotary_dim / 2, dim = artifact_->shape.head_dim, heads = artifact_->shape.query_heads;
  const bool interleaved = artifact_->rope.kind == "interleaved";
  std::vector<float> cosine(half), sine(half);
  const RopeFrequencies none,
      &frequencies = rotations_.empty() ? none : rotations_[layers_[std::max(layer, 0)].rotation].frequencies;
  for (int64_t p = first; half > 0 && p < first + count; ++p) {
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * frequencies.inverse[i];
      cosine[i] = static_cast<float>(std::cos(angle) * frequencies.attention_factor);
      sine[i] = static_cast<float>(std::sin(angle) * frequencies.attention_factor);
    }
    rotate_row(query, heads, dim, half, interleaved, cosine.data(), sine.data());
    query += static_cast<int64_t>(heads) * dim;
  }
}

void RuntimeSequence::read(int layer, int64_t first, int64_t count, float* key, float* value) {
  check_layer(layer);
  Layer& l = layers_[layer];
  if (first < 0 || count < 0 || first > l.tokens - count) {
    throw Error(ErrorKind::usage, "tokens", std::to_string(count) + " from " + std::to_string(first),
                "tokens of the " + std::to_string(l.tokens) + " in layer " + std::to_string(layer));
  }
  if (count == 0) return;
  const int32_t length = static_cast<int32_t>(l.tokens), from = static_cast<int32_t>(first);
  for (const bool keys : {true, false}) {
    float* const out = keys ? key : value;
    if (out == nullptr) continue;
    KvccDequantiseParams p{};
    p.cache = (keys ? l.key : l.value).view(&length);
    p.out = out;
    p.first = &from;
    p.count = static_cast<int32_t>(count);
    const KvccGrid grid = kvcc_grid_mma_dequantise(&p);
    threads_.run(grid.x * grid.y, 1, [&](int, uint32_t begin, uint32_t end) {
      units_.run(keys ? KVCC_CPU_DEQUANTISE_KEY : KVCC_CPU_DEQUANTISE_VALUE, &p, begin, end);
    });
  }
}

KvccUsage RuntimeSequence::usage() const {
  KvccUsage usage{};
  usage.tokens = layers_.front().tokens;
  for (const Layer& l : layers_) {
    for (const PagePool* pool : {&l.key, &l.value}) {
      usage.packed_bytes += pool->pages() * pool->page_bytes();
      usage.exact_bytes += exact_rows_of(l.tokens) * pool->exact_row_bytes();
      usage.reserved_bytes += pool->reserved_bytes();
      usage.fp16_bytes += l.tokens * pool->exact_row_bytes();
    }
  }
  return usage;
}

const PagePool& RuntimeSequence::pool(int layer, mma::Tensor tensor) const {
  return tensor == mma::Tensor::key ? layers_[layer].key : layers_[layer].value;
}

int64_t RuntimeSequence::pages_of(int64_t tokens) const {
  const int64_t packed = std::max<int64_t>(0, tokens - artifact_->scheme.sink - artifact_->scheme.residual);
  return (packed + mma::kPageTokens - 1) / mma::kPageTokens;
}

int64_t RuntimeSequence::exact_rows_of(int64_t tokens) const {
  return std::min<int64_t>(tokens, int64_t{artifact_->scheme.sink} + artifact_->scheme.residual);
}

void RuntimeSequence::restore_layer(int layer, int64_t tokens, uint32_t key_capacity, uint32_t value_capacity) {
  Layer& l = layers_[layer];
  if (tokens > positions_) make_rope(tokens);
  l.key.set_capacity(std::max(l.key.capacity(), key_capacity));
  l.value.set_capacity(std::max(l.value.capacity(), value_capacity));
  for (PagePool* pool : {&l.key, &l.value}) {
    pool->reserve(std::max<int64_t>(1, pages_of(tokens)), exact_rows_of(tokens));
    pool->use_pages(pages_of(tokens));
  }
  l.tokens = tokens;
}

}  // namespace kvcc::host
