#include "kernels/reference/mma_cache.h"

#include <algorithm>
#include <string>

#include "formats/core/error.h"
#include "kernels/reference/unpack.h"

namespace kvcc::reference {
namespace {

bool has_sparse_part(const ChannelQuantiser& q) { return !q.threshold_lower.empty(); }
bool has_sparse_part(const TokenQuantiser& q) { return q.tail > 0; }
int tail_of(const ChannelQuantiser&) { return 0; }
int tail_of(const TokenQuantiser& q) { return q.tail; }

template <class T, class Cache>
auto* part(Cache& cache, int64_t page, uint64_t offset) {
  using Part = std::conditional_t<std::is_const_v<Cache>, const T, T>;
  return reinterpret_cast<Part*>(cache.page(page) + offset);
}
/// Class ends [classes] and records [capacity] of a tile.
template <class Cache>
auto* ends_of(Cache& cache, int64_t page, int head) {
  return part<uint16_t>(cache, page, ends_offset(cache.shape)) + uint64_t{cache.shape.classes} * head;
}
template <class Cache>
auto* records_of(Cache& cache, int64_t page, int head) {
  return part<mma::Record>(cache, page, records_offset(cache.shape)) + uint64_t{cache.shape.capacity} * head;
}

template <class Quantiser>
MmaCache make(const Quantiser& q, mma::Tensor tensor, int64_t tokens, const CacheOptions& options) {
  const auto refuse = [](const std::string& found, const std::string& wanted) {
    throw Error(ErrorKind::failed, "cache of layout mma-1", found, wanted);
  };
  if (q.heads < 1 || q.dim < 1 || int64_t{q.heads} * q.dim > 65536) {
    refuse(std::to_string(q.heads) + " heads of " + std::to_string(q.dim), "1 to 65536 columns");
  }
  MmaCache cache;
  cache.tensor = tensor;
  cache.heads = q.heads;
  cache.head_dim = q.dim;
  cache.sink = options.sink;
  cache.residual = options.residual;
  cache.tail = tail_of(q);
  cache.tokens = tokens;
  for (int h = 0; h < q.heads; ++h) {
    if (!mma::supports(q.dim, q.table.bits[h])) {
      refuse("head " + std::to_string(h) + " of " + std::to_string(q.dim) + " channels at " +
                 std::to_string(q.table.bits[h]) + " bits",
             "2, 3, 4 or 8 bits; 16 to 256 channels, a multiple of 16");
    }
    cache.head_words.push_back(cache.shape.code_words);
    cache.shape.code_words += mma::tile_words(q.dim, q.table.bits[h]);
  }
  cache.shape.ranges = std::is_same_v<Quantiser, TokenQuantiser>;
  cache.shape.heads = q.heads;
  if (has_sparse_part(q)) {
    cache.shape.classes = mma::kClasses;
    cache.shape.capacity = (options.capacity + 3u) / 4u * 4u;
  }
  const int64_t packed = std::max<int64_t>(0, tokens - options.sink);
  const int64_t pages = (packed + mma::kPageTokens - 1) / mma::kPageTokens;
  cache.needed.assign(pages * q.heads, 0);
  cache.pages.assign(pages * mma::page_bytes(cache.shape), 0);
  cache.exact.assign(int64_t{options.sink + options.residual} * q.heads * q.dim, 0);
  return cache;
}

/// One tile's codes and records. encoded[slot]: the page's tokens, null for slots that hold none.
void write_tile(const LevelTable& table, MmaCache& cache, int64_t page, int head,
                const std::vector<const EncodedToken*>& encoded) {
  const uint32_t bits = table.bits[head], dim = cache.head_dim, words = mma::lane_words(dim, bits);
  const int64_t column = int64_t{head} * dim;
  uint32_t* tile = part<uint32_t>(cache, page, uint64_t{cache.head_words[head]} * 4);
  for (uint32_t lane = 0; lane < mma::kLanes; ++lane) {
    const auto code_at = [&](uint32_t pair, uint32_t second) {
      const mma::Element at = mma::element(cache.tensor, dim, lane, pair, second);
      return encoded[at.token] ? uint32_t{encoded[at.token]->codes[column + at.channel]} : 0u;
    };
    const auto pair_at = [&](uint32_t pair) { return code_at(pair, 0) | code_at(pair, 1) << bits; };
    for (uint32_t word = 0; word < words; ++word) {
      tile[mma::word_place(word, lane, words)] = mma::make_word(word, bits, pair_at);
    }
  }
  uint32_t count = 0;
  for (uint32_t k = 0; k < cache.shape.classes; ++k) {
    for (uint32_t slot = 0; slot < mma::kPageTokens; ++slot) {
      if (!encoded[slot] || mma::record_class(slot) != k) continue;
      for (const SparseEntry& entry : encoded[slot]->sparse) {
        if (entry.column < column || entry.column >= column + dim) continue;
        const uint32_t channel = static_cast<uint32_t>(entry.column - column);
        const uint32_t code = encoded[slot]->codes[entry.column];
        records_of(cache, page, head)[count++] = {mma::record_place(slot, channel, code, bits), entry.value};
      }
    }
    ends_of(cache, page, head)[k] = static_cast<uint16_t>(count);
  }
}

template <class Quantiser>
MmaCache pack_rows(const Quantiser& q, mma::Tensor tensor, const EncodedRows& rows, const CacheOptions& options) {
  const int64_t tokens = static_cast<int64_t>(rows.tokens.size());
  MmaCache cache = make(q, tensor, tokens, options);
  cache.exact = rows.exact;
  const int64_t pages = static_cast<int64_t>(cache.needed.size()) / q.heads;
  if (cache.shape.classes > 0) {
    for (int64_t p = 0; p < tokens; ++p) {
      if (cache.exact_row(p) >= 0) continue;
      uint32_t* needed = &cache.needed[(p - cache.sink) / mma::kPageTokens * q.heads];
      for (const SparseEntry& entry : rows.tokens[p].sparse) ++needed[entry.column / q.dim];
    }
    uint32_t most = 0;
    for (const uint32_t n : cache.needed) most = std::max(most, n);
    if (most > cache.shape.capacity) cache.shape.capacity = (most + 15u) / 16u * 16u;
    cache.pages.assign(pages * mma::page_bytes(cache.shape), 0);
  }
  for (int64_t page = 0; page < pages; ++page) {
    std::vector<const EncodedToken*> encoded(mma::kPageTokens, nullptr);
    for (uint32_t slot = 0; slot < mma::kPageTokens; ++slot) {
      const int64_t p = cache.sink + page * mma::kPageTokens + slot;
      if (p < tokens && cache.exact_row(p) < 0) encoded[slot] = &rows.tokens[p];
    }
    for (int h = 0; h < q.heads; ++h) write_tile(q.table, cache, page, h, encoded);
    for (uint32_t slot = 0; cache.shape.ranges && slot < mma::kPageTokens; ++slot) {
      if (!encoded[slot]) continue;
      part<linear::RangeRecord>(cache, page, ranges_offset(cache.shape))[slot] = {encoded[slot]->range.scale,
                                                                                  encoded[slot]->range.zero};
    }
  }
  return cache;
}

/// Packed tokens of a cache of either layout, and its exact rows.
template <class Cache>
EncodedRows rows_of(const LevelTable& table, const Cache& cache) {
  EncodedRows rows;
  rows.exact = cache.exact;
  rows.tokens.resize(cache.tokens);
  for (int64_t p = 0; p < cache.tokens; ++p) {
    if (cache.exact_row(p) < 0) rows.tokens[p] = read_token(table, cache, p);
  }
  return rows;
}

}  // namespace

EncodedToken read_token(const LevelTable& table, const MmaCache& cache, int64_t p) {
  const int64_t page = (p - cache.sink) / mma::kPageTokens;
  const uint32_t slot = static_cast<uint32_t>((p - cache.sink) % mma::kPageTokens), dim = cache.head_dim;
  EncodedToken token;
  token.codes.resize(int64_t{cache.heads} * dim);
  for (int h = 0; h < cache.heads; ++h) {
    const auto* tile = part<uint32_t>(cache, page, uint64_t{cache.head_words[h]} * 4);
    for (uint32_t c = 0; c < dim; ++c) {
      token.codes[h * dim + c] = static_cast<uint8_t>(mma::get_code(tile, cache.tensor, dim, table.bits[h], slot, c));
    }
    if (cache.shape.classes == 0) continue;
    const uint16_t* ends = ends_of(cache, page, h);
    if (const uint32_t count = ends[cache.shape.classes - 1]; count > cache.shape.capacity) {
      throw Error(ErrorKind::failed, "page " + std::to_string(page) + ", head " + std::to_string(h),
                  std::to_string(count) + " records in a tile for " + std::to_string(cache.shape.capacity),
                  "class ends within the capacity, as pack writes them");
    }
    for (uint32_t k = 0, i = 0; k < cache.shape.classes; ++k) {
      for (; i < ends[k]; ++i) {
        const mma::Record record = records_of(cache, page, h)[i];
        const mma::Element at = mma::record_element(record.place, k);
        if (at.token == slot) token.sparse.push_back({static_cast<uint16_t>(h * dim + at.channel), record.value});
      }
    }
  }
  std::sort(token.sparse.begin(), token.sparse.end(),
            [](const SparseEntry& a, const SparseEntry& b) { return a.column < b.column; });
  if (cache.shape.ranges) {
    const auto range = part<linear::RangeRecord>(cache, page, ranges_offset(cache.shape))[slot];
    token.range = {range.scale, range.zero};
  }
  return token;
}

MmaCache make_mma_cache(const ChannelQuantiser& q, mma::Tensor tensor, int64_t tokens, const CacheOptions& o) {
  return make(q, tensor, tokens, o);
}
MmaCache make_mma_cache(const TokenQuantiser& q, mma::Tensor tensor, int64_t tokens, const CacheOptions& o) {
  return make(q, tensor, tokens, o);
}
MmaCache pack_mma(const ChannelQuantiser& q, mma::Tensor tensor, std::span<const float> x, const CacheOptions& o) {
  return pack_rows(q, tensor, encode_rows(q, x, o), o);
}
MmaCache pack_mma(const TokenQuantiser& q, mma::Tensor tensor, std::span<const float> x, const CacheOptions& o) {
  return pack_rows(q, tensor, encode_rows(q, x, o), o);
}
MmaCache to_mma(const ChannelQuantiser& q, const LinearCache& cache, mma::Tensor tensor, uint32_t capacity) {
  return pack_rows(q, tensor, rows_of(q.table, cache), {cache.sink, cache.residual, capacity});
}
MmaCache to_mma(const TokenQuantiser& q, const LinearCache& cache, mma::Tensor tensor, uint32_t capacity) {
  return pack_rows(q, tensor, rows_of(q.table, cache), {cache.sink, cache.residual, capacity});
}
LinearCache to_linear(const ChannelQuantiser& q, const MmaCache& cache, uint32_t capacity) {
  return from_rows(q, rows_of(q.table, cache), {cache.sink, cache.residual, capacity});
}
LinearCache to_linear(const TokenQuantiser& q, const MmaCache& cache, uint32_t capacity) {
  return from_rows(q, rows_of(q.table, cache), {cache.sink, cache.residual, capacity});
}
std::vector<float> unpack(const ChannelQuantiser& q, const MmaCache& cache) { return unpack_tokens(q, cache); }
std::vector<float> unpack(const TokenQuantiser& q, const MmaCache& cache) { return unpack_tokens(q, cache); }

}  // namespace kvcc::reference
