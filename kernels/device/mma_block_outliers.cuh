// The sparse part where a block takes each page together (mma_block.cuh). A warp's lanes take the records of its run of
// tokens, and write what they change into A fragments in shared memory: no lane waits for another, and products are the
// tensor cores'.
//   keys    a zero-point with which the decoded outlier comes out as recorded; past what fp16 holds it is the greatest
//           that it holds (values and scales above 2^15 only)
//   values  half of the difference to the decoded value, so that fp16 holds it, times twice the weight
#pragma once

#include "kernels/device/mma_block_codes.cuh"
#include "kernels/device/mma_keys.cuh"
#include "kernels/device/mma_values.cuh"

namespace kvcc::device {

/// Halves of A fragments that outliers change: of a run of keys, zero-points with which a decoded outlier comes out as
/// recorded; of values, half of what each differs from its decoded value. [run]: [step, lane, 4] as mma takes them.
template <int D>
struct OutlierTiles {
  static constexpr int kSteps = D / 16;
  alignas(16) uint16_t half[kMmaWarps][kSteps * 32 * 4 * 2];

  KVCC_DEVICE OutlierTiles* get() { return this; }
  KVCC_DEVICE Words<4> read(int run, int step, uint32_t lane) const {
    return *reinterpret_cast<const Words<4>*>(half[run] + (step * 32 + lane) * 8);
  }
  KVCC_DEVICE void fill(uint32_t run, int step, uint32_t lane, const Words<4>& a) {
    *reinterpret_cast<Words<4>*>(half[run] + (step * 32 + lane) * 8) = a;
  }
};

template <int D>
struct NoOutlierTiles {
  KVCC_DEVICE OutlierTiles<D>* get() { return nullptr; }
};
template <int D, bool kSparse>
using OutlierTilesWhere = std::conditional_t<kSparse, OutlierTiles<D>, NoOutlierTiles<D>>;

/// Calls action(record, element) for each record of a run that the lane takes, of visible tokens.
template <class Config, class Do>
KVCC_DEVICE void each_record(const KvccCache& c, uint8_t* page, int32_t head, uint32_t run, const Slots& slots,
                             uint32_t lane, const Do& action) {
  const uint16_t* const ends = mma_ends<Config>(c, page, head);
  const mma::Record* const list = mma_records<Config>(c, page, head);
  const uint32_t capacity = static_cast<uint32_t>(c.sparse_capacity), of_second = ends[2u * run];
  const uint32_t end = ends[2u * run + 1u] < capacity ? ends[2u * run + 1u] : capacity;
  KVCC_ROLLED
  for (uint32_t i = (run > 0 ? ends[2u * run - 1u] : 0u) + lane; i < end; i += 32) {
    const mma::Record record = list[i];
    const mma::Element element = mma::record_element(record.place, 2u * run + (i < of_second ? 0u : 1u));
    if (slots.has(static_cast<int32_t>(element.token)) && element.channel < static_cast<uint32_t>(Config::kHeadDim)) {
      action(record, element);
    }
  }
}

/// The nearest number that fp16 holds as finite.
KVCC_DEVICE float within_half(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

/// Zero-points of the warp's run of keys, for score_run.
template <class Config, class Tables>
KVCC_DEVICE void fill_zeros(OutlierTiles<Config::kHeadDim>& to, const Tables& s, const KvccCache& c, uint8_t* page,
                            const uint32_t* tile, int32_t head, const Slots& slots, const uint32_t (&range)[2],
                            const Lane& at) {
  KVCC_UNROLL
  for (int k = 0; k < Tables::kSteps; ++k) {
    Words<4> zero;
    if constexpr (Tables::kChannel) {
      const auto of = *reinterpret_cast<const Words<2>*>(s.scale + s.zero_place(k, static_cast<int>(at.column), 0));
      zero = {{of.word[0], of.word[0], of.word[1], of.word[1]}};
    } else {
      zero = {{broadcast_high(range[0]), broadcast_high(range[1]), broadcast_high(range[0]), broadcast_high(range[1])}};
    }
    to.fill(at.warp, k, at.lane, zero);
  }
  sync_warp();
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  each_record<Config>(c, page, head, at.warp, slots, at.lane, [&](mma::Record record, mma::Element element) {
    const float level = low_half(record_level<Config>(s.levels, tile, record.place, element, lane_at));
    uint32_t scale;
    if constexpr (Tables::kChannel) {
      scale = s.channel[element.channel].word[0];
    } else {
      scale = reinterpret_cast<const uint32_t*>(mma_ranges<Config>(c, page))[element.token];
    }
    const float zero = fused_multiply_add(-level, low_half(scale), half_to_float(record.value));
    const uint32_t octet = element.channel / 8u, turned = static_cast<uint32_t>(Tables::kTurned);
    const bool apart = Config::kRope == Rope::half && octet < 2u * turned;  // partners meet in a step
    const uint32_t step = apart ? octet % (turned > 0 ? turned : 1u) : octet / 2u;
    const uint32_t second = apart ? octet / (turned > 0 ? turned : 1u) : octet % 2u;
    const uint32_t lane = element.token % 8u * 4u + element.channel % 8u / 2u;
    to.half[at.warp][((step * 32u + lane) * 4u + second * 2u + element.token / 8u % 2u) * 2u + element.channel % 2u] =
        float_to_half(within_half(zero));
  });
  sync_warp();
}

/// Half of what the outliers of the warp's run of values differ from their decoded values, for mix_quarter.
template <class Config, class Tables>
KVCC_DEVICE void fill_differences(OutlierTiles<Config::kHeadDim>& to, const Tables& s, const KvccCache& c,
                                  uint8_t* page, const uint32_t* tile, int32_t head, const Slots& slots,
                                  const Lane& at) {
  KVCC_UNROLL
  for (int k = 0; k < Config::kHeadDim / 16; ++k) to.fill(at.warp, k, at.lane, {});
  sync_warp();
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  each_record<Config>(c, page, head, at.warp, slots, at.lane, [&](mma::Record record, mma::Element element) {
    const float level = low_half(record_level<Config>(s.levels, tile, record.place, element, lane_at));
    float scale, zero;
    if constexpr (Tables::kChannel) {
      const int64_t channel = static_cast<int64_t>(head) * Config::kHeadDim + element.channel;
      scale = c.scale[channel];
      zero = c.zero[channel];
    } else {
      const linear::RangeRecord range = mma_ranges<Config>(c, page)[element.token];
      scale = half_to_float(range.scale);
      zero = half_to_float(range.zero);
    }
    const float differs = add(half_to_float(record.value), -fused_multiply_add(level, scale, zero));
    const uint32_t lane = element.channel % 8u * 4u + element.token % 8u / 2u;
    const uint32_t part = element.token / 8u % 2u * 2u + element.channel / 8u % 2u;
    to.half[at.warp][((element.channel / 16u * 32u + lane) * 4u + part) * 2u + element.token % 2u] =
        float_to_half(multiply(0.5f, differs));
  });
}

/// Sums of the warp's channels.
template <int D>
using QuarterMix = Mix<D / kMmaWarps, kBlockTiles>;
/// Where the outliers' shares of them are added. Mix has levels where scales are the channels', so there they need sums
/// of their own.
template <class Config>
struct OutlierQuarter {
  static constexpr int D = Config::kHeadDim;
  static constexpr bool kOwn = kMmaSparse<Config> && Config::kAxis == Axis::channel;
  float sum[kOwn ? kBlockTiles : 1][kOwn ? D / 64 : 1][4];

  KVCC_DEVICE float (&of(QuarterMix<D>& mix, int tile, int block))[4] {
    if constexpr (kOwn) {
      return sum[tile][block];
    } else {
      return mix.sum[tile][block];
    }
  }
  template <class Do>
  KVCC_DEVICE void each(const Do& action) {
    if constexpr (kOwn) {
      KVCC_UNROLL
      for (int j = 0; j < kBlockTiles; ++j) {
        KVCC_UNROLL
        for (int i = 0; i < D / 64; ++i) {
          KVCC_UNROLL
          for (int e = 0; e < 4; ++e) action(sum[j][i][e], j, i, e);
        }
      }
    }
  }
};

}  // namespace kvcc::device
