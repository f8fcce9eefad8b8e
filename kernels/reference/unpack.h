// Unpacking, the same for caches of every layout: what differs is how a token is read. Host only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/codec/reference.h"
#include "formats/layout/half.h"

namespace kvcc::reference {

/// All tokens of a cache, [T, H, D]: exact rows as they are, packed ones through read_token(table, cache, position).
template <class Quantiser, class Cache>
std::vector<float> unpack_tokens(const Quantiser& q, const Cache& cache) {
  const int64_t columns = int64_t{q.heads} * q.dim;
  std::vector<float> out(cache.tokens * columns);
  for (int64_t p = 0; p < cache.tokens; ++p) {
    const auto values = std::span(out).subspan(p * columns, columns);
    if (const int64_t row = cache.exact_row(p); row >= 0) {
      for (int64_t i = 0; i < columns; ++i) values[i] = half_to_float(cache.exact[row * columns + i]);
    } else {
      decode(q, read_token(q.table, cache, p), values);
    }
  }
  return out;
}

}  // namespace kvcc::reference
