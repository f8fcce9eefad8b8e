#include "formats/store/shard.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "formats/core/error.h"
#include "formats/store/codebook_fields.h"

namespace kvcc {
namespace {

/// Heads [first, first + heads) of `all` [L, H, …].
template <typename T>
void take_heads(std::vector<T>& all, int layers, int all_heads, int first, int heads) {
  if (all.empty()) return;
  const size_t each = all.size() / (static_cast<size_t>(layers) * all_heads);
  std::vector<T> kept;
  kept.reserve(each * layers * heads);
  for (int layer = 0; layer < layers; ++layer) {
    const auto begin = all.begin() + static_cast<int64_t>((static_cast<size_t>(layer) * all_heads + first) * each);
    kept.insert(kept.end(), begin, begin + static_cast<int64_t>(each * heads));
  }
  all = std::move(kept);
}

/// Vectors of units [first, first + units) of every layer; the groups are still those of all units.
std::vector<float> take_vectors(const TensorCodebooks& tensor, int layers, int first, int units) {
  std::vector<float> kept;
  size_t at = 0;
  const size_t n = static_cast<size_t>(tensor.coordinates);
  for (int layer = 0; layer < layers; ++layer) {
    for (int unit = 0; unit < tensor.units; ++unit) {
      size_t numbers = 0;
      for (size_t i = 0; i < n; ++i) {
        const size_t row = (static_cast<size_t>(layer) * tensor.units + unit) * n + i;
        numbers += size_t{tensor.group_width[row]} << tensor.group_bits[row];
      }
      if (unit >= first && unit < first + units) {
        const auto begin = tensor.vectors.begin() + static_cast<int64_t>(at);
        kept.insert(kept.end(), begin, begin + static_cast<int64_t>(numbers));
      }
      at += numbers;
    }
  }
  return kept;
}

}  // namespace

RankShard parse_rank_shard(const std::string& text, const std::string& option) {
  RankShard shard;
  const char *begin = text.data(), *end = begin + text.size();
  const auto rank = std::from_chars(begin, end, shard.rank);
  const bool slash = rank.ec == std::errc() && rank.ptr != end && *rank.ptr == '/';
  const auto count = slash ? std::from_chars(rank.ptr + 1, end, shard.count) : rank;
  if (!slash || count.ec != std::errc() || count.ptr != end || shard.rank < 0 || shard.rank >= shard.count) {
    throw Error(ErrorKind::usage, option + " " + text, "is no shard", "RANK/RANKS, ranks counted from 0: 0/2, 1/2");
  }
  return shard;
}

Codebook shard_codebook(const Codebook& codebook, const RankShard& shard, const std::string& place) {
  const CacheShape& whole = codebook.model.shape;
  if (!codebook.provenance.shard.empty()) {
    throw bad_input(place, "is shard " + codebook.provenance.shard + " of another artifact", "the whole artifact");
  }
  if (whole.kv_heads % shard.count != 0 || whole.query_heads % shard.count != 0) {
    throw bad_input(place,
                    fmt::format("{} key/value heads and {} query heads do not divide among {} ranks", whole.kv_heads,
                                whole.query_heads, shard.count),
                    fmt::format("a number of ranks that divides {}", whole.kv_heads),
                    "where there are more ranks than heads runtimes such as vLLM give several ranks the same head: "
                    "make one shard a head, and use it on each of its ranks");
  }
  for (const TensorCodebooks* tensor : {&codebook.key, &codebook.value}) {
    if (tensor->units == 0 || tensor->units == whole.kv_heads) continue;
    throw bad_input(place, "a transform across all heads of a layer, which no rank can undo alone",
                    "vector codebooks of each head", "fit the form -head or -channels, such as kvcc-2-head");
  }
  for (const auto& [path, object] : codebook.extras) {
    if (object.dataset) throw bad_input(place, path + " is unknown to this build", "datasets that it can divide");
  }
  Codebook out = codebook;
  CacheShape& shape = out.model.shape;
  shape.kv_heads /= shard.count;
  shape.query_heads /= shard.count;
  const int first = shard.rank * shape.kv_heads;
  for (TensorCodebooks* tensor : {&out.key, &out.value}) {
    if (tensor->units > 0) tensor->vectors = take_vectors(*tensor, whole.layers, first, shape.kv_heads);
    if (shard.count > 1) {  // of a layer's heads together, and so of no rank's
      tensor->stats.predicted_fitted.clear();
      tensor->stats.predicted_held_out.clear();
    }
    const auto take = [&](auto& data) { take_heads(data, whole.layers, whole.kv_heads, first, shape.kv_heads); };
    for (const CodebookField& field : tensor_fields()) {
      if (field.floats != nullptr && field.floats != &TensorCodebooks::vectors) take(tensor->*field.floats);
      if (field.words != nullptr) take(tensor->*field.words);
      if (field.bytes != nullptr) take(tensor->*field.bytes);
      const bool of_layer = std::string_view(field.axes) == "layer";
      if (field.stat_floats != nullptr && !of_layer) take(tensor->stats.*field.stat_floats);
      if (field.stat_words != nullptr) take(tensor->stats.*field.stat_words);
    }
  }
  if (out.key.units > 0) out.key.units = out.value.units = shape.kv_heads;
  out.provenance.parent_sha256 = codebook.content_sha256;
  out.provenance.shard = fmt::format("{}/{}", shard.rank, shard.count);
  codebook_tree(out);  // sets the hash
  return out;
}

}  // namespace kvcc
