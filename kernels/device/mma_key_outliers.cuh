// Scores of keys with a sparse part: the zero-points that decoding adds come from a patch (mma_patch.cuh), and that of
// an outlier is such that level * scale + zero-point is the value of its record. No further arithmetic an element.
//   cost: see tests/kernels/ptx/test_full_outliers.py
#pragma once

#include "kernels/device/mma_keys.cuh"
#include "kernels/device/mma_patch.cuh"

namespace kvcc::device {

/// Zero-points of run `run` of the patch: of channels, or of tokens row and row + 8 of the run, ranges `range`.
template <class Config, class Tables, class Zeros>
KVCC_DEVICE void fill_zero_points(Zeros& zeros, int run, const uint32_t (&range)[2], const Tables& s, const Lane& at) {
  KVCC_UNROLL
  for (int k = 0; k < Tables::kSteps; ++k) {
    Words<4> to;
    if constexpr (Tables::kChannel) {
      const auto zero = *reinterpret_cast<const Words<2>*>(s.scale + s.zero_place(k, static_cast<int>(at.column), 0));
      to = {{zero.word[0], zero.word[0], zero.word[1], zero.word[1]}};
    } else {
      const Half2 first = broadcast_high(range[0]), second = broadcast_high(range[1]);
      to = {{first, second, first, second}};
    }
    zeros.fragment[(run * Tables::kSteps + k) * 32 + static_cast<int>(at.lane)] = to;
  }
}

/// Zero-point with which the level of an outlier's code decodes to what its record says.
KVCC_DEVICE uint16_t outlier_zero_point(Half2 level, uint32_t scale, uint32_t record) {
  return finite_half(fma_half2(negate_half2(level), scale, record >> 16));
}
/// Where it lies in a run of the patch. channel: of KeyTables; band: of the run.
template <int D>
KVCC_DEVICE uint32_t zero_point_place(const Words<2>& channel, uint32_t record, uint32_t band) {
  using Zeros = Patch<D>;
  return channel.word[1] + (record >> 8 & 7u) * Zeros::place(0, 4, 0, 0) + band * Zeros::place(0, 0, 1, 0);
}

/// As score_page, of a page with a sparse part.
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void score_patched_page(float (&score)[kMmaSteps][kTiles][4], MmaCodes<Config>& codes,
                                    Patch<Config::kHeadDim>& zeros, const KvccCache& c, uint8_t* page,
                                    const PageRecords<kHoldsRecords<Config, kTiles>>& records, const uint32_t* tile,
                                    const Slots& slots, const QueryFragments<Tables::kSteps, kTiles>& query,
                                    const Tables& s, const KvccRope& rope, const Lane& at) {
  using Codes = MmaCodes<Config>;
  using Zeros = Patch<Config::kHeadDim>;
  constexpr int kTogether = Tables::kTwo && Tables::kTurned > 0 ? 2 : 1;
  const uint32_t lane_at = s.levels.lane_offset(at.lane);
  const uint32_t first = shuffle(static_cast<uint32_t>(c.sink) % KVCC_ROPE_BLOCK + at.row, at.lane);
  const RelativeRow<Config> relative(rope, static_cast<int32_t>(first), at.column);
  constexpr uint32_t kNone = 0xffffffffu;
  uint32_t used = kNone;  // number that the lane's record of the runs before has taken, and its zero-point
  bool many = true;
  uint32_t range[Zeros::kBands] = {};  // as load_ranges has them, of the patch's tokens
  KVCC_UNROLL
  for (int m = 0; m < kMmaSteps; ++m) {
    const int run = m % Codes::kRuns, patched = m % Zeros::kRuns;
    if (m > 0 && run == 0) codes.load(tile, m / Codes::kRuns, at.lane);
    if (patched == 0) {
      const BandRecords<Zeros::kBands, kHoldsRecords<Config, kTiles>> these(records, 2 * m, at.lane);
      if constexpr (!Tables::kChannel) {
        const auto* const from = reinterpret_cast<const uint32_t*>(mma_ranges<Config>(c, page));
        KVCC_UNROLL
        for (int band = 0; band < Zeros::kBands; ++band) {
          const int32_t slot = 16 * m + 8 * band + static_cast<int32_t>(at.row);
          range[band] = slots.has(slot) ? from[slot] : 0u;
        }
      }
      sync_warp();
      if (!Tables::kChannel || many) {
        KVCC_UNROLL
        for (int i = 0; i < Zeros::kRuns; ++i) {
          const uint32_t both[2] = {range[2 * i], range[2 * i + 1]};
          fill_zero_points<Config>(zeros, i, both, s, at);
        }
      } else if (used != kNone) {
        zeros.number(used & 0xffffu) = static_cast<uint16_t>(used >> 16);
      }
      sync_warp();
      used = kNone;
      these.each(records, 2 * m, at.lane, [&](uint32_t record, uint32_t band, bool is) {
        is = is && is_of_head<Tables::D>(record);
        record = is ? record : 0u;
        const Words<2> channel = s.channel[record & 255u];
        uint32_t scale = channel.word[0];
        if constexpr (!Tables::kChannel) {
          const uint32_t token = static_cast<uint32_t>(16 * m) + 8u * band + (record >> 8 & 7u);
          scale = reinterpret_cast<const uint32_t*>(mma_ranges<Config>(c, page))[token];
        }
        const Half2 level = patch_level<Config>(s.levels, tile, record, static_cast<uint32_t>(2 * m) + band, lane_at);
        const uint32_t to = zero_point_place<Tables::D>(channel, record, band % 2u) + band / 2u * Zeros::kRun;
        const uint16_t zero = outlier_zero_point(level, scale, record);
        if (is) zeros.number(to) = zero;
        if (is && Tables::kChannel) used = to | (scale & 0xffff0000u);
      });
      many = these.many();
      sync_warp();
    }
    Words<4> scale{};  // of two steps
    KVCC_UNROLL
    for (int k0 = 0; k0 < Tables::kSteps; k0 += kTogether) {
      Words<2> turn[kTogether][2];
      load_turns(turn, s, relative, 16 * m, k0, at);
      KVCC_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        const int k = k0 + i;
        if (k >= Tables::kSteps) continue;
        const Words<4> zero = zeros.at(patched, k, at.lane);
        if (Tables::kChannel && k % 2 == 0) {
          scale = *reinterpret_cast<const Words<4>*>(s.scale + s.scale_place(k, static_cast<int>(at.column), 0));
        }
        uint32_t a[4];
        KVCC_UNROLL
        for (int part = 0; part < 4; ++part) {
          const int band = part % 2, second = part / 2;
          const Half2 level = level_pair(s.levels, codes, 2 * run + band, Tables::octet(k, second), lane_at);
          const Half2 by = Tables::kChannel ? scale.word[k % 2 * 2 + second] : broadcast_low(range[2 * patched + band]);
          a[part] = fma_half2(level, by, zero.word[part]);
        }
        multiply_step<Config>(score[m], a, turn[i], k < Tables::kTurned, query.b[k]);
      }
    }
  }
}

}  // namespace kvcc::device
