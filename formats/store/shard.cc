#include "formats/store/shard.h"

#include <fmt/format.h>

#include <charconv>

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
  if (codebook.scheme.is_vector()) {
    throw bad_input(place, "vector codebooks, whose bits are shared out over all heads", "a scheme of plain scales",
                    "shards of them are not in this release");
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
    const auto take = [&](auto& data) { take_heads(data, whole.layers, whole.kv_heads, first, shape.kv_heads); };
    for (const CodebookField& field : tensor_fields()) {
      if (field.floats != nullptr) take(tensor->*field.floats);
      if (field.bytes != nullptr) take(tensor->*field.bytes);
      if (field.stat_floats != nullptr) take(tensor->stats.*field.stat_floats);
      if (field.stat_words != nullptr) take(tensor->stats.*field.stat_words);
    }
  }
  out.provenance.parent_sha256 = codebook.content_sha256;
  out.provenance.shard = fmt::format("{}/{}", shard.rank, shard.count);
  codebook_tree(out);  // sets the hash
  return out;
}

}  // namespace kvcc
