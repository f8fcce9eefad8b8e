// The sparse part in the order in which tensor cores take it. A warp keeps a patch in shared memory: fp16 numbers of 16
// tokens (32 of a narrow head), every lane's where its fragments want them. Each lane takes one of the tokens' records,
// which lie one after another, and writes the number that its element needs; then the dense part reads the patch as it
// decodes, 128 bits a lane. Nothing is searched, nothing diverges, no two lanes write one number.
#pragma once

#include <type_traits>

#include "kernels/device/mma_common.cuh"

namespace kvcc::device {

/// [run of 16 tokens, step of 16 channels, lane]: one A fragment, 128 bits a lane. A warp's own has two runs of a
/// narrow head, so that the records of its tokens occupy its lanes.
template <int kHeadDim, int kRunsOf = kHeadDim <= 64 ? 2 : 1>
struct Patch {
  static constexpr int D = kHeadDim, kSteps = D / 16, kRuns = kRunsOf;
  static constexpr int kBands = 2 * kRuns;
  Words<4> fragment[kRuns * kSteps * 32];

  KVCC_DEVICE const Words<4>& at(int run, int step, uint32_t lane) const {
    return fragment[(run * kSteps + step) * 32 + static_cast<int>(lane)];
  }
  /// Where the numbers of an A fragment lie, counted in them. word: of the lane's four.
  static KVCC_HD constexpr uint32_t place(uint32_t step, uint32_t lane, uint32_t word, uint32_t half) {
    return ((step * 32u + lane) * 4u + word) * 2u + half;
  }
  static constexpr uint32_t kRun = kSteps * 32u * 8u;  ///< numbers of a run
  KVCC_DEVICE uint16_t& number(uint32_t place) { return reinterpret_cast<uint16_t*>(fragment)[place]; }
};

/// The patches of a block's warps, one each; little without sparse part.
struct NoPatch {
  uint32_t unused;
};
template <int D, bool kSparse>
struct Patches {
  std::conditional_t<kSparse, Patch<D>, NoPatch> of_warp[kSparse ? kMmaWarps : 1];
  KVCC_DEVICE auto& operator[](uint32_t warp) { return of_warp[warp]; }
};

/// A page's records of one head, as a warp walks them. kHeld: what says where they lie is held in registers; else found
/// anew for every run of tokens, where the dense part needs all registers.
template <bool kHeld>
struct PageRecords {
  const uint32_t* mine;  ///< mma::Record, place then value: from the lane's first on
  const uint16_t* ends;
  uint32_t capacity;
  Words<4> held;  ///< ends, two classes a word

  template <class Config>
  static KVCC_DEVICE PageRecords of(const KvccCache& c, uint8_t* page, int32_t head, uint32_t lane) {
    PageRecords out;
    out.capacity = static_cast<uint32_t>(c.sparse_capacity);
    out.ends = mma_ends<Config>(c, page, head);
    const auto* const mine = mma_records<Config>(c, page, head) + lane;
    out.mine = reinterpret_cast<const uint32_t*>(mine);
    if constexpr (kHeld) {
      // From a shuffle: the compiler would otherwise compute the address anew for every run of tokens.
      const auto from = static_cast<uint32_t>(reinterpret_cast<const uint8_t*>(mine) - page);
      out.mine = reinterpret_cast<const uint32_t*>(page + shuffle(from, lane));
      out.held = *reinterpret_cast<const Words<4>*>(out.ends);
    }
    return out;
  }
  /// Records of the bands before `band`, as the page has it.
  KVCC_DEVICE uint32_t end(int band) const {
    if (band == 0) return 0u;
    if constexpr (!kHeld) return ends[band - 1];
    const uint32_t both = held.word[(band - 1) / 2];
    return band % 2 == 0 ? both >> 16 : both & 0xffffu;
  }
};
/// Whether a configuration's registers suffice for kHeld.
template <class Config, int kTiles>
constexpr bool kHoldsRecords = Config::kBits <= 4 && Config::kHeadDim* kTiles <= 128;

/// The records of kBands bands of 8 tokens: [begin, end) of the list, the lane's first one loaded. No end that no pack
/// wrote leads past the list.
template <int kBands, bool kHeld>
struct BandRecords {
  uint32_t begin, end, first;

  KVCC_DEVICE BandRecords(const PageRecords<kHeld>& from, int band, uint32_t lane)
      : begin(from.end(band)), end(from.end(band + kBands)), first(0) {
    end = end < from.capacity ? end : from.capacity;
    if (kHeld && begin + lane < end) first = from.mine[begin];
  }
  KVCC_DEVICE bool many() const { return end > begin + 32u; }  ///< more than a warp's lanes

  /// Calls place(record, its band, whether it is one): for the lane's first record even if it has none, so that lanes
  /// do not part (kHeld).
  template <class Place>
  KVCC_DEVICE void each(const PageRecords<kHeld>& from, int band, uint32_t lane, const Place& place) const {
    const auto in = [&](uint32_t i) {
      uint32_t sum = 0;
      KVCC_UNROLL
      for (int b = 1; b < kBands; ++b) sum += i >= from.end(band + b) ? 1u : 0u;
      return sum;
    };
    uint32_t i = begin;
    if constexpr (kHeld) {
      place(first, in(begin + lane), begin + lane < end);
      if (!many()) return;
      i += 32u;
    }
    KVCC_ROLLED
    for (; i + lane < end; i += 32u) place(from.mine[i], in(i + lane), true);
  }
};

/// Whether a record is one of a head's: class ends that no pack wrote may count in what is none.
template <int D>
KVCC_DEVICE bool is_of_head(uint32_t record) {
  return D == 256 || (record & 255u) < static_cast<uint32_t>(D);
}

/// Level of the code that a record names, in the low half. band: of the page.
template <class Config, Table kTable>
KVCC_DEVICE Half2 patch_level(const LevelTable<Config::kBits, kTable>& levels, const uint32_t* tile, uint32_t record,
                              uint32_t band, uint32_t lane_offset) {
  const uint32_t place = record & 0xffffu;
  return record_level<Config>(levels, tile, place, mma::record_element(place, band), lane_offset);
}

/// The low half, infinities as the greatest number: one element out of range would poison what it is added to.
KVCC_DEVICE uint16_t finite_half(Half2 x) {
  const uint32_t magnitude = x & 0x7fffu;
  return static_cast<uint16_t>((magnitude < 0x7bffu ? magnitude : 0x7bffu) | (x & 0x8000u));
}

}  // namespace kvcc::device
