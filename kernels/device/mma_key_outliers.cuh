// The sparse part of a page of keys: what each outlier differs from the decoded value that stands in its place, times
// the queries, added to its token's score.
//   cost: 170 instructions of a warp for up to four records of each class (8 queries, half-split pairs, sm_90), until
//   the longest class is done; about 8 an outlier where 1 % of a tile of 128 channels are
#pragma once

#include "kernels/device/mma_keys.cuh"

namespace kvcc::device {

/// score = sums of a page's outliers, C fragments as score_page adds to. Quad g takes the records of class g, lane t of
/// it queries 2 t and 2 t + 1: no two lanes write one sum. `sums`: the warp's own [tile of queries, 64, 8].
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void score_outliers(float (&score)[kMmaSteps][kTiles][4], float* sums, const KvccCache& c, uint8_t* page,
                                const uint32_t* tile, int32_t head, int32_t block, const Tables& s,
                                const KvccRope& rope) {
  const Lane at = fresh_lane();
  constexpr int D = Tables::D, kHalfR = Config::kRotaryDim / 2;
  const Records records = records_of<Config>(c, page, head, at.row);
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  uint32_t steps = records.end - records.begin;  // of the longest class: shuffles need all lanes
  KVCC_UNROLL
  for (uint32_t lanes = 4; lanes < 32; lanes *= 2) {
    const uint32_t other = shuffle_xor(steps, lanes);
    steps = other > steps ? other : steps;
  }
  KVCC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    KVCC_UNROLL
    for (int token = 0; token < 8; ++token) {
      float* sum = sums + (j * 64 + at.row * 8 + token) * 8 + 2 * at.column;
      sum[0] = 0;
      sum[1] = 0;
    }
  }
  KVCC_ROLLED
  for (uint32_t i = 0; i < steps; i += 4) {
    // Each lane prepares one record: the queries' factors of its channel and of the channel's rotary partner.
    const uint32_t mine = records.begin + i + at.column;
    const bool any = mine < records.end;
    const mma::Record record = any ? records.list[mine] : mma::Record{0, 0};
    const mma::Element element = mma::record_element(record.place, at.row);
    const Half2 level = record_level<Config>(s.levels, tile, record.place, element, lane_at);
    uint32_t scale;
    if constexpr (Tables::kChannel) {
      scale = s.channel_scale[element.channel];
    } else {
      scale = any ? reinterpret_cast<const uint32_t*>(mma_ranges<Config>(c, page))[element.token] : 0u;
    }
    const Half2 decoded = fma_half2(level, broadcast_low(scale), broadcast_high(scale));
    const float differs = any ? add(half_to_float(record.value), -low_half(decoded)) : 0.0f;
    float own = differs, other = 0;
    uint32_t partner = element.channel;
    if constexpr (Config::kRope != Rope::none) {
      if (any && element.channel < static_cast<uint32_t>(Config::kRotaryDim)) {
        constexpr bool kHalf = Config::kRope == Rope::half;
        const bool first = kHalf ? element.channel < static_cast<uint32_t>(kHalfR) : element.channel % 2u == 0;
        const uint32_t pair = !kHalf ? element.channel / 2u : first ? element.channel : element.channel - kHalfR;
        partner = !kHalf ? element.channel ^ 1u : first ? element.channel + kHalfR : pair;
        const int32_t r = c.sink % KVCC_ROPE_BLOCK + static_cast<int32_t>(element.token);
        const float rc = half_to_float(rope.relative_cosine[r * kHalfR + pair]);
        const float rs = half_to_float(rope.relative_sine[r * kHalfR + pair]);
        const int64_t base = static_cast<int64_t>(block) * kHalfR + pair;
        const float bc = rope.base_cosine[base], bs = rope.base_sine[base];
        const float cosine = fused_multiply_add(bc, rc, -multiply(bs, rs));
        const float sine = fused_multiply_add(bs, rc, multiply(bc, rs));
        own = multiply(differs, cosine);
        other = multiply(differs, first ? sine : -sine);
      }
    }
    const uint32_t places = element.channel | partner << 8 | element.token << 16;
    KVCC_UNROLL
    for (uint32_t from = 0; from < 4; ++from) {
      const uint32_t source = (at.lane & 28u) + from;
      const uint32_t where = shuffle(places, source);
      const float factor = bits_float(shuffle(float_bits(own), source));
      const float partner_factor = bits_float(shuffle(float_bits(other), source));
      KVCC_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        const float* query = s.plain_query + j * D * 8 + 2 * at.column;
        const Float2 x = *reinterpret_cast<const Float2*>(query + (where & 255u) * 8);
        const Float2 y = *reinterpret_cast<const Float2*>(query + (where >> 8 & 255u) * 8);
        auto* sum = reinterpret_cast<Float2*>(sums + (j * 64 + (where >> 16)) * 8 + 2 * at.column);
        Float2 now = *sum;
        KVCC_UNROLL
        for (int q = 0; q < 2; ++q) {
          now.x[q] = fused_multiply_add(factor, x.x[q], now.x[q]);
          now.x[q] = fused_multiply_add(partner_factor, y.x[q], now.x[q]);
        }
        *sum = now;
      }
    }
  }
  sync_warp();
  KVCC_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    KVCC_UNROLL
    for (int band = 0; band < 8; ++band) {
      const float* sum = sums + (j * 64 + band * 8 + at.row) * 8 + 2 * at.column;
      score[band / 2][j][band % 2 * 2] = sum[0];
      score[band / 2][j][band % 2 * 2 + 1] = sum[1];
    }
  }
  sync_warp();  // before the sums are written again
}

}  // namespace kvcc::device
