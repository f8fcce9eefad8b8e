// What the two pack families share.
#pragma once

#include "kernels/device/common.cuh"

namespace kvcc::device {

/// x brought into [low, high]; the outlier's stored code is that of its clamped value.
KVCC_HD inline float clamp(float x, float low, float high) { return x < low ? low : (x > high ? high : x); }

/// Ranges, outliers and exact rows belong to all heads: with mixed widths, the unit of head 0's width writes them.
template <class Config>
KVCC_HD inline bool writes_shared_part(const KvccCache& c) {
  return serves<Config>(c.layer, 0);
}

/// Token `token` of x as the fp16 row of position p < sink.
template <class Config>
KVCC_HD inline void write_exact_row(const KvccPackParams& p, uint32_t s, int32_t token, int32_t position, int thread) {
  const int64_t columns = static_cast<int64_t>(p.cache.heads) * Config::kHeadDim;
  const int64_t from = (static_cast<int64_t>(s) * p.count + token) * columns;
  const int64_t to = (static_cast<int64_t>(s) * (p.cache.sink + p.cache.residual) + position) * columns;
  for (int64_t i = thread; i < columns; i += KVCC_THREADS) {
    p.cache.exact[to + i] = record_half(load<Config::kDtype>(p.x, from + i), p.status);
  }
}

}  // namespace kvcc::device
