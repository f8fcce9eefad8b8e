// The sparse part of a page of values: what each outlier differs from the decoded value that stands in its place, times
// its token's weights, added to its channel's sums. Each lane prepares one record of 32, and adds all of them to the
// sums of one query: no two lanes write one sum.
#pragma once

#include "kernels/device/mma_values.cuh"

namespace kvcc::device {

/// A warp's memory: the weights of a page, and sums of the outliers' shares in the unit of Mix::reference.
template <int D, int kTiles>
struct OutlierSums {
  alignas(16) float weight[kTiles * 64 * 8];  ///< [tile of queries, token, 8]
  alignas(16) float sum[kTiles * 2 * D * 4];  ///< [tile of queries, 8 / 4, channel, 4]

  /// Of query 2 t (and 2 t + 1 beside it), as C fragments have them.
  static KVCC_HD constexpr int place(int tile, int channel, int column) {
    return ((tile * 2 + column / 2) * D + channel) * 4 + column % 2 * 2;
  }
  /// The warp's own order; a warp barrier must follow.
  KVCC_DEVICE void clear(uint32_t lane) {
    for (uint32_t i = lane; i < kTiles * 2 * D; i += 32) *reinterpret_cast<Float4*>(sum + 4 * i) = {};
  }
  /// As Mix::scale. Barriers before and after: other lanes write these sums.
  KVCC_DEVICE void scale(const float (&factor)[kTiles][2], const Lane& at) {
    sync_warp();
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      for (int i = 0; i < D / 8; ++i) {
        auto* both = reinterpret_cast<Float2*>(sum + place(j, 8 * i + at.row, at.column));
        Float2 now = *both;
        now.x[0] = multiply(now.x[0], factor[j][0]);
        now.x[1] = multiply(now.x[1], factor[j][1]);
        *both = now;
      }
    }
    sync_warp();
  }
};

/// Adds a page's outliers: weight as mix_page takes it.
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void mix_outliers(OutlierSums<Config::kHeadDim, kTiles>& sums, const KvccCache& c, uint8_t* page,
                              const uint32_t* tile, int32_t head, const float (&weight)[kMmaSteps][kTiles][4],
                              const Tables& s) {
  const Lane at = fresh_lane();
  constexpr int D = Config::kHeadDim;
  const uint16_t* const ends = mma_ends<Config>(c, page, head);
  const mma::Record* const list = mma_records<Config>(c, page, head);
  const uint32_t count = record_count<Config>(c, ends);
  if (count == 0) return;
  KVCC_UNROLL
  for (int m = 0; m < kMmaSteps; ++m) {
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint32_t token = 16 * m + 8 * i + at.row;
        *reinterpret_cast<Float2*>(sums.weight + (j * 64 + token) * 8 +
                                   2 * at.column) = {{weight[m][j][2 * i], weight[m][j][2 * i + 1]}};
      }
    }
  }
  sync_warp();
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  const uint32_t query = at.lane % (kTiles * kMmaQueries), tile_of = query / kMmaQueries, in_tile = query % kMmaQueries;
  KVCC_ROLLED
  for (uint32_t first = 0; first < count; first += 32) {
    const bool any = first + at.lane < count;
    const uint32_t mine = any ? first + at.lane : first;
    const mma::Record record = list[mine];
    const mma::Element element = mma::record_element(record.place, class_of_record<Config>(ends, mine));
    const float level = low_half(record_level<Config>(s.levels, tile, record.place, element, lane_at));
    float scale, zero;
    if constexpr (Tables::kChannel) {
      const int64_t channel = static_cast<int64_t>(head) * D + element.channel;
      scale = c.scale[channel];
      zero = c.zero[channel];
    } else {
      const linear::RangeRecord range = mma_ranges<Config>(c, page)[element.token];
      scale = half_to_float(range.scale);
      zero = half_to_float(range.zero);
    }
    const float differs = add(half_to_float(record.value), -fused_multiply_add(level, scale, zero));
    const uint32_t places = element.token | element.channel << 8, last = count - first < 32u ? count - first : 32u;
    KVCC_ROLLED
    for (uint32_t i = 0; i < last; ++i) {
      const uint32_t where = shuffle(places, i);
      const float by = bits_float(shuffle(float_bits(differs), i));
      const float w = sums.weight[(tile_of * 64 + (where & 255u)) * 8 + in_tile];
      float& sum = sums.sum[((tile_of * 2 + in_tile / 4) * D + (where >> 8)) * 4 + in_tile % 4];
      if (at.lane < kTiles * kMmaQueries) sum = fused_multiply_add(w, by, sum);
    }
  }
  sync_warp();  // before the weights are written again, and sums by other lanes
}

/// Adds all outliers' shares, after settle().
template <int D, int kTiles>
KVCC_DEVICE void add_outliers(Mix<D, kTiles>& mix, const OutlierSums<D, kTiles>& sums, const Lane& at) {
  sync_warp();
  KVCC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    KVCC_UNROLL
    for (int i = 0; i < D / 8; ++i) {
      const Float2 both = *reinterpret_cast<const Float2*>(sums.sum + sums.place(j, 8 * i + at.row, at.column));
      mix.sum[j][i / 2][i % 2 * 2] = add(mix.sum[j][i / 2][i % 2 * 2], both.x[0]);
      mix.sum[j][i / 2][i % 2 * 2 + 1] = add(mix.sum[j][i / 2][i % 2 * 2 + 1], both.x[1]);
    }
  }
}

}  // namespace kvcc::device
