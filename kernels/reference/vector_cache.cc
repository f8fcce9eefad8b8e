#include "kernels/reference/vector_cache.h"

#include <algorithm>
#include <map>
#include <string>

#include "formats/codec/reference.h"
#include "formats/core/error.h"
#include "formats/layout/half.h"

namespace kvcc::reference {
namespace {

/// Of each group, which part of CodedTokens has its codes, and where in a token's (vector_codec.h: one part for each
/// width that occurs, ascending; in a part by token, then by group).
struct Places {
  explicit Places(const std::vector<CodeGroup>& groups) {
    for (const CodeGroup& group : groups) {
      index.push_back(group.bits > 0 ? each[group.bits]++ : 0);
    }
    for (const CodeGroup& group : groups) part.push_back(std::distance(each.begin(), each.find(group.bits)));
  }
  std::map<int, int64_t> each;  ///< groups of each width but 0
  std::vector<int64_t> index, part;
};

/// Positions that are packed, ascending.
std::vector<int64_t> packed_positions(const VectorCache& cache) {
  std::vector<int64_t> positions;
  for (int64_t p = 0; p < cache.tokens; ++p) {
    if (cache.exact_row(p) < 0) positions.push_back(p);
  }
  return positions;
}

/// f(group, token of `positions`, tile, slot) for every code.
template <class F>
void for_each_code(const VectorShape& shape, const std::vector<int64_t>& positions, int sink, const F& f) {
  for (size_t t = 0; t < positions.size(); ++t) {
    const int64_t packed = positions[t] - sink;
    for (size_t g = 0; g < shape.groups.size(); ++g) {
      if (shape.groups[g].bits == 0) continue;
      f(g, static_cast<int64_t>(t), packed / vector_page::kPageTokens,
        static_cast<uint32_t>(packed % vector_page::kPageTokens));
    }
  }
}

}  // namespace

VectorShape vector_shape(const VectorQuantiser& q) {
  const auto refuse = [](const std::string& found, const std::string& wanted) {
    throw Error(ErrorKind::failed, "cache of layout vector-1", found, wanted);
  };
  VectorShape shape;
  shape.groups = groups_of(q);
  if (q.units != q.heads) refuse("groups across heads", "groups of one head");
  if (!vector_page::supports(static_cast<uint32_t>(q.dim))) {
    refuse("heads of " + std::to_string(q.dim) + " channels", "16 to 256, a multiple of 16");
  }
  shape.heads = q.heads;
  shape.head_dim = q.dim;
  shape.head_bits.assign(q.heads, 0);
  for (const CodeGroup& group : shape.groups) {
    shape.first_bit.push_back(shape.head_bits[group.unit]);
    shape.head_bits[group.unit] += static_cast<uint32_t>(group.bits);
  }
  for (const uint32_t bits : shape.head_bits) {
    shape.head_words.push_back(shape.code_words);
    shape.code_words += vector_page::tile_words(bits);
  }
  return shape;
}

VectorCache pack_vector(const VectorQuantiser& q, std::span<const float> x, const CacheOptions& options) {
  const int64_t columns = int64_t{q.heads} * q.dim;
  VectorCache cache;
  cache.shape = vector_shape(q);
  cache.sink = options.sink;
  cache.residual = options.residual;
  cache.tokens = static_cast<int64_t>(x.size()) / columns;
  const int64_t slots = std::max<int64_t>(0, cache.tokens - cache.sink);
  cache.pages.assign((slots + vector_page::kPageTokens - 1) / vector_page::kPageTokens * cache.shape.page_bytes(), 0);
  cache.exact.assign((options.sink + options.residual) * columns, 0);
  std::vector<float> rows, exact(columns);
  const std::vector<int64_t> positions = packed_positions(cache);
  for (int64_t p = 0, next = 0; p < cache.tokens; ++p) {
    const auto values = x.subspan(p * columns, columns);
    if (next < static_cast<int64_t>(positions.size()) && positions[next] == p) {
      rows.insert(rows.end(), values.begin(), values.end());
      ++next;
      continue;
    }
    round_to_record(values, exact, "token " + std::to_string(p));
    std::transform(exact.begin(), exact.end(), cache.exact.begin() + cache.exact_row(p) * columns, float_to_half);
  }
  if (positions.empty()) return cache;
  CodedTokens coded;
  make_codec(q)->encode(rows, coded, "rows", positions.front());
  const Places places(cache.shape.groups);
  for_each_code(cache.shape, positions, cache.sink, [&](size_t g, int64_t t, int64_t page, uint32_t slot) {
    const CodeGroup& group = cache.shape.groups[g];
    const uint32_t code = coded[places.part[g]].values[t * places.each.at(group.bits) + places.index[g]];
    vector_page::put_code(cache.tile(page, group.unit), cache.shape.head_bits[group.unit], slot,
                          cache.shape.first_bit[g], static_cast<uint32_t>(group.bits), code);
  });
  return cache;
}

std::vector<float> unpack(const VectorQuantiser& q, const VectorCache& cache) {
  const int64_t columns = int64_t{q.heads} * q.dim;
  std::vector<float> out(cache.tokens * columns);
  const std::vector<int64_t> positions = packed_positions(cache);
  const auto codec = make_codec(q);
  CodedTokens coded;
  for (const PartShape& part : codec->parts(static_cast<int64_t>(positions.size()))) {
    coded.push_back({part.name, part.bits, std::vector<uint16_t>(part.count)});
  }
  const Places places(cache.shape.groups);
  for_each_code(cache.shape, positions, cache.sink, [&](size_t g, int64_t t, int64_t page, uint32_t slot) {
    const CodeGroup& group = cache.shape.groups[g];
    coded[places.part[g]].values[t * places.each.at(group.bits) + places.index[g]] =
        static_cast<uint16_t>(vector_page::get_code(cache.tile(page, group.unit), cache.shape.head_bits[group.unit],
                                                    slot, cache.shape.first_bit[g], static_cast<uint32_t>(group.bits)));
  });
  std::vector<float> rows(positions.size() * columns);
  codec->decode(coded, rows);
  for (size_t t = 0; t < positions.size(); ++t) {
    std::copy_n(rows.begin() + static_cast<int64_t>(t) * columns, columns, out.begin() + positions[t] * columns);
  }
  for (int64_t p = 0; p < cache.tokens; ++p) {
    const int64_t row = cache.exact_row(p);
    if (row < 0) continue;
    std::transform(cache.exact.begin() + row * columns, cache.exact.begin() + (row + 1) * columns,
                   out.begin() + p * columns, half_to_float);
  }
  return out;
}

}  // namespace kvcc::reference
