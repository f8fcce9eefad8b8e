#include "kernels/reference/cache.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "formats/core/error.h"
#include "kernels/reference/unpack.h"

namespace kvcc::reference {
namespace {

template <class Quantiser>
constexpr bool kOnline = std::is_same_v<Quantiser, TokenQuantiser>;

bool has_csr(const ChannelQuantiser& q) { return !q.threshold_lower.empty(); }
bool has_csr(const TokenQuantiser&) { return false; }
int tail_of(const ChannelQuantiser&) { return 0; }
int tail_of(const TokenQuantiser& q) { return q.tail; }

template <class Quantiser>
LinearCache make(const Quantiser& q, int64_t tokens, const CacheOptions& options) {
  if (q.heads < 1 || q.dim < 1 || int64_t{q.heads} * q.dim > 65536) {
    throw Error(ErrorKind::failed, "cache of layout linear-1",
                std::to_string(q.heads) + " heads of " + std::to_string(q.dim), "1 to 65536 columns");
  }
  LinearCache cache;
  cache.heads = q.heads;
  cache.head_dim = q.dim;
  cache.sink = options.sink;
  cache.residual = options.residual;
  cache.tail = tail_of(q);
  cache.tokens = tokens;
  for (int h = 0; h < q.heads; ++h) {
    cache.head_words.push_back(cache.shape.code_words);
    cache.shape.code_words += linear::kPageTokens * linear::row_words(q.dim, q.table.bits[h]);
  }
  cache.shape.ranges = kOnline<Quantiser>;
  if (has_csr(q)) {
    cache.shape.sparse = linear::Sparse::csr;
    cache.shape.entries = options.capacity;
  } else if (cache.tail > 0) {
    cache.shape.sparse = linear::Sparse::tail;
    cache.shape.entries = linear::kPageTokens * 2 * cache.tail;
  }
  const int64_t packed = std::max<int64_t>(0, tokens - options.sink);
  const int64_t pages = (packed + linear::kPageTokens - 1) / linear::kPageTokens;
  cache.needed.assign(pages, 0);
  cache.pages.assign(pages * linear::page_bytes(cache.shape), 0);
  cache.exact.assign(int64_t{options.sink + options.residual} * q.heads * q.dim, 0);
  return cache;
}

uint32_t* row(LinearCache& cache, int64_t page, int slot, int head, int bits) {
  return reinterpret_cast<uint32_t*>(cache.page(page)) + cache.head_words[head] +
         slot * linear::row_words(cache.head_dim, bits);
}

template <class T>
T* part(LinearCache& cache, int64_t page, uint64_t offset) {
  return reinterpret_cast<T*>(cache.page(page) + offset);
}
template <class T>
const T* part(const LinearCache& cache, int64_t page, uint64_t offset) {
  return reinterpret_cast<const T*>(cache.page(page) + offset);
}

template <class Quantiser>
EncodedRows encode_all(const Quantiser& q, std::span<const float> x, const CacheOptions& options,
                       const std::string& name) {
  const int64_t columns = int64_t{q.heads} * q.dim;
  const int64_t tokens = static_cast<int64_t>(x.size()) / columns;
  EncodedRows rows;
  rows.tokens.resize(tokens);
  rows.exact.assign((options.sink + options.residual) * columns, 0);
  std::vector<float> exact(columns);
  for (int64_t p = 0; p < tokens; ++p) {
    const std::string place = name + ", token " + std::to_string(p);
    const auto values = x.subspan(p * columns, columns);
    const int64_t row = exact_row(options.sink, options.residual, tokens, p);
    if (row < 0) {
      encode(q, values, rows.tokens[p], place);
      continue;
    }
    round_to_record(values, exact, place);
    for (int64_t i = 0; i < columns; ++i) rows.exact[row * columns + i] = float_to_half(exact[i]);
  }
  return rows;
}

template <class Quantiser>
LinearCache pack_rows(const Quantiser& q, const EncodedRows& rows, const CacheOptions& options) {
  const int64_t tokens = static_cast<int64_t>(rows.tokens.size());
  LinearCache cache = make(q, tokens, options);
  cache.exact = rows.exact;
  if (cache.shape.sparse == linear::Sparse::csr) {
    for (int64_t p = 0; p < tokens; ++p) {
      if (cache.exact_row(p) >= 0) continue;
      cache.needed[(p - cache.sink) / linear::kPageTokens] += static_cast<uint32_t>(rows.tokens[p].sparse.size());
    }
    uint32_t most = 0;
    for (const uint32_t n : cache.needed) most = std::max(most, n);
    if (most > cache.shape.entries) cache.shape.entries = (most + 31u) / 32u * 32u;
    cache.pages.assign(cache.needed.size() * linear::page_bytes(cache.shape), 0);
  }
  for (int64_t p = 0; p < tokens; ++p) {
    if (cache.exact_row(p) >= 0) continue;
    const int64_t page = (p - cache.sink) / linear::kPageTokens;
    const int slot = static_cast<int>((p - cache.sink) % linear::kPageTokens);
    const EncodedToken& token = rows.tokens[p];
    for (int h = 0; h < q.heads; ++h) {
      const uint32_t bits = q.table.bits[h];
      for (uint32_t w = 0; w < linear::row_words(q.dim, bits); ++w) {
        row(cache, page, slot, h, bits)[w] =
            linear::make_word(w, q.dim, bits, [&](uint32_t i) { return uint32_t{token.codes[h * q.dim + i]}; });
      }
    }
    if (cache.shape.ranges) {
      part<linear::RangeRecord>(cache, page, ranges_offset(cache.shape))[slot] = {token.range.scale, token.range.zero};
    }
    int64_t first = int64_t{slot} * 2 * cache.tail;
    if (cache.shape.sparse == linear::Sparse::csr) {
      uint32_t* row_end = part<uint32_t>(cache, page, row_ends_offset(cache.shape));
      first = slot > 0 ? row_end[slot - 1] : 0;
      row_end[slot] = static_cast<uint32_t>(first + token.sparse.size());
    }
    auto* record = part<linear::SparseRecord>(cache, page, entries_offset(cache.shape)) + first;
    for (const SparseEntry& entry : token.sparse) *record++ = {entry.column, entry.value};
  }
  return cache;
}

template <class Quantiser>
LinearCache pack_all(const Quantiser& q, std::span<const float> x, const CacheOptions& options,
                     const std::string& name) {
  return pack_rows(q, encode_all(q, x, options, name), options);
}

}  // namespace

int64_t exact_row(int sink, int residual, int64_t tokens, int64_t p) {
  if (p < sink) return p;
  if (p >= tokens - residual) return sink + (p - sink) % residual;
  return -1;
}

EncodedToken read_token(const LevelTable& table, const LinearCache& cache, int64_t p) {
  const int64_t page = (p - cache.sink) / linear::kPageTokens;
  const int slot = static_cast<int>((p - cache.sink) % linear::kPageTokens);
  EncodedToken token;
  token.codes.resize(int64_t{cache.heads} * cache.head_dim);
  for (int h = 0; h < cache.heads; ++h) {
    const uint32_t bits = table.bits[h];
    const uint32_t* words =
        part<uint32_t>(cache, page, uint64_t{cache.head_words[h]} * 4) + slot * linear::row_words(cache.head_dim, bits);
    for (int i = 0; i < cache.head_dim; ++i) {
      token.codes[h * cache.head_dim + i] = static_cast<uint8_t>(linear::get_code(words, i, bits));
    }
  }
  if (cache.shape.ranges) {
    const auto range = part<linear::RangeRecord>(cache, page, ranges_offset(cache.shape))[slot];
    token.range = {range.scale, range.zero};
  }
  int64_t begin = int64_t{slot} * 2 * cache.tail, end = begin + 2 * cache.tail;
  if (cache.shape.sparse == linear::Sparse::csr) {
    const uint32_t* row_end = part<uint32_t>(cache, page, row_ends_offset(cache.shape));
    begin = slot > 0 ? row_end[slot - 1] : 0;
    end = row_end[slot];
  }
  const auto* record = part<linear::SparseRecord>(cache, page, entries_offset(cache.shape));
  for (int64_t i = begin; i < end; ++i) token.sparse.push_back({record[i].column, record[i].value});
  return token;
}

LinearCache make_cache(const ChannelQuantiser& q, int64_t tokens, const CacheOptions& o) { return make(q, tokens, o); }
LinearCache make_cache(const TokenQuantiser& q, int64_t tokens, const CacheOptions& o) { return make(q, tokens, o); }
LinearCache pack(const ChannelQuantiser& q, std::span<const float> x, const CacheOptions& o) {
  return pack_all(q, x, o, "key");
}
LinearCache pack(const TokenQuantiser& q, std::span<const float> x, const CacheOptions& o) {
  return pack_all(q, x, o, "value");
}
EncodedRows encode_rows(const ChannelQuantiser& q, std::span<const float> x, const CacheOptions& o) {
  return encode_all(q, x, o, "key");
}
EncodedRows encode_rows(const TokenQuantiser& q, std::span<const float> x, const CacheOptions& o) {
  return encode_all(q, x, o, "value");
}
LinearCache from_rows(const ChannelQuantiser& q, const EncodedRows& r, const CacheOptions& o) {
  return pack_rows(q, r, o);
}
LinearCache from_rows(const TokenQuantiser& q, const EncodedRows& r, const CacheOptions& o) {
  return pack_rows(q, r, o);
}
std::vector<float> unpack(const ChannelQuantiser& q, const LinearCache& cache) { return unpack_tokens(q, cache); }
std::vector<float> unpack(const TokenQuantiser& q, const LinearCache& cache) { return unpack_tokens(q, cache); }

}  // namespace kvcc::reference
