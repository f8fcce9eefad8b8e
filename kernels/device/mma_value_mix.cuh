// value_mix of layout mma-1: one block takes a part of the context and up to kGroupTile queries of one KV head; each
// warp streams whole tiles, and a decoded value meets all of a warp's weights on the tensor cores. Warps are merged in
// order through shared memory, parts by MmaValueMerge; heads of more than 128 channels with 9 to 16 queries have blocks
// that take each page together (mma_value_mix_block.cuh).
//   grid  (splits, KV head x group tile, sequence); kvcc_grid_mma_value_mix
//   bound codes are read and decoded once a group tile, in 128-bit loads
//   error of out[d] <= 2^-8 * max |weight| * sum over p of |value[p, d]'s channel or token range|, each at least 2^-14:
//   as in mma_values.cuh, with weights of any size and sign
#pragma once

#include <type_traits>

#include "kernels/device/mma_merge.cuh"
#include "kernels/device/mma_value_mix_block.cuh"
#include "kernels/device/mma_value_outliers.cuh"

namespace kvcc::device {

/// Warps take whole pages.
template <class Config>
struct ValueMixByWarp {
  using Params = KvccValueMixParams;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, G = Config::kGroupTile;
  using Values = ValueTables<Config, fastest_table(Config::kBits)>;
  static constexpr int kTiles = G / kMmaQueries;
  using Outliers = OutlierSumsOfWarps<Config, kTiles>;
  static constexpr int kMinBlocks = D * kTiles <= (kMmaSparse<Config> && Config::kBits == 8 ? 64 : 96) ? 4
                                    : D * kTiles <= 128                                                ? 3
                                                                                                       : 2;
  static_assert(Config::kTensor == mma::Tensor::value);

  struct Shared {
    union {
      Values values;
      MergedSums<D, G> merged;  ///< after the last use of the tables
    };
    WarpTotals<G> totals;
    Work work;
    Patches<D, Values::kSparse> patch;
    Outliers outliers;
  };
  static_assert(sizeof(Shared) <= kMmaSharedLimit);

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const Block block = block_index();
    const Work work = work_of(p.cache, block, p.group, G, p.splits, p.window);
    if (!serves<Config>(p.cache.layer, work.head)) return;
    const Lane at = this_lane();
    if (thread_index() == 0) shared.work = work;
    shared.values.levels.fill(Config::levels(p.cache.layer, work.head), thread_index());
    if constexpr (Outliers::kOwn) shared.outliers[at.warp].clear(at.lane);
    sync_block();

    Warp warp;
    const int first_query = 2 * static_cast<int>(at.column);
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        // Columns past the last query repeat it, and are not stored.
        const int64_t query =
            work.row(block.z, p.cache.heads, p.group) + smaller(first_query + j * kMmaQueries + q, work.queries - 1);
        warp.weights[j][q] = static_cast<const Element*>(p.weights) + query * p.weights_stride;
        warp.limit[j][q] = 0;
        warp.unit[j][q] = 0;
      }
    }
    warp.mix.clear(kNoReference);
    warp.word = first_word<Config>(p.cache, work.head);
    int32_t i = work.part.page + static_cast<int32_t>(at.warp), number = 0;
    if (i < work.part.page_end) number = page_number(p.cache, block.z, i);
    KVCC_ROLLED
    while (i < work.part.page_end) {  // once, and again whenever weights need a new unit: the loop inside stays short
      Most most;
      KVCC_ROLLED
      while (i < work.part.page_end) {
        const int32_t next = i + kMmaWarps;
        const int32_t next_number = next < work.part.page_end ? page_number(p.cache, block.z, next) : 0;
        uint8_t* const page = page_at(p.cache, number);
        if (!add_page(p, shared, visible_slots(work.context, i), work.head, i, page, warp, most, at)) break;
        i = next;
        number = next_number;
      }
      if (i < work.part.page_end) new_units<true>(most, shared, warp, at);
    }
    finish(p, shared, warp);
  }

 private:
  using Element = std::conditional_t<Config::kDtype == Dtype::f32, float, uint16_t>;

  struct Warp {
    Mix<D, kTiles> mix;
    const Element* weights[kTiles][2];
    float limit[kTiles][2];  ///< a power of two above the weights so far
    float unit[kTiles][2];   ///< 2^-reference
    int32_t weight_exponent = kWeightExponent;
    uint32_t word;  ///< of the head's tile in a page
  };
  /// What a lane found that asks for a new unit.
  struct Most {
    float weight[kTiles][2];
    bool large = false;  ///< a token's scale is
  };

  /// Page i of the sequence; false, and nothing done, where its weights need a new unit.
  static KVCC_DEVICE bool add_page(const Params& p, Shared& shared, const Slots& slots, int32_t head, int32_t i,
                                   uint8_t* page, Warp& warp, Most& most, const Lane& at) {
    const uint32_t* const tile = tile_at(page, warp.word);
    MmaCodes<Config> codes;
    codes.load(tile, 0, at.lane);
    uint32_t range[8] = {};
    if constexpr (Config::kAxis == Axis::token) load_ranges<Config>(p.cache, page, slots, at.row, range);
    float weight[kMmaSteps][kTiles][4];
    const int32_t row = static_cast<int32_t>(at.row);
    KVCC_UNROLL
    for (int m = 0; m < kMmaSteps; ++m) {
      KVCC_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int32_t slot = 16 * m + 8 * half + row;
        load_weights(warp, weight[m], half, p.cache.sink + i * KVCC_PAGE_TOKENS + slot, slots.has(slot));
      }
    }
    if constexpr (Config::kAxis == Axis::token) most.large = large_scales(range);
    if (exceeds(weight, warp, most)) return false;
    scale_weights(weight, warp);
    if constexpr (Values::kSparse) {
      mix_outliers<Config>(warp.mix, shared.outliers[at.warp], shared.patch[at.warp], p.cache, page, head, tile, weight,
                           shared.values, at);
    }
    mix_page<Config>(warp.mix, codes, tile, weight, range, shared.values, at);
    return true;
  }

  /// What comes after the pages. Nothing that it can find again is held in registers over the loop before.
  static KVCC_DEVICE void finish(const Params& p, Shared& shared, Warp& warp) {
    const Block block = block_index();
    const Lane at = this_lane();
    const Part& part = shared.work.part;
    settle<Config, Values>(warp.mix, p.cache, shared.work.head, at);
    if constexpr (Outliers::kOwn) add_outliers(warp.mix, shared.outliers[at.warp], at.lane);
    KVCC_ROLLED
    for (int32_t i = part.tile + static_cast<int32_t>(at.warp); i < part.tile_end; i += kMmaWarps) {
      add_exact(p, shared, block.z, exact_block(shared.work.context, i), warp, at);
    }
    merge_warps(warp.mix, shared.merged, shared.totals, this_lane());
    store(p, shared, block);
  }

  static KVCC_DEVICE void add_exact(const Params& p, Shared& shared, uint32_t sequence, int32_t block, Warp& warp,
                                    const Lane& at) {
    const Context& context = shared.work.context;
    const int32_t head = shared.work.head;
    KVCC_ROLLED
    for (int32_t r = static_cast<int32_t>(at.row); r < KVCC_ROPE_BLOCK; r += 16) {
      const int32_t first = block * KVCC_ROPE_BLOCK + r;
      const uint16_t* value[2];
      float weight[1][kTiles][4];
      KVCC_UNROLL
      for (int half = 0; half < 2; ++half) {
        value[half] = exact_values<Config>(p.cache, context, sequence, head, first + 8 * half);
        load_weights(warp, weight[0], half, first + 8 * half, value[half] != nullptr);
      }
      if (ballot(value[0] != nullptr || value[1] != nullptr) == 0) continue;
      Most most;
      if (exceeds(weight, warp, most)) new_units<false>(most, shared, warp, at);
      scale_weights(weight, warp);
      mix_exact(warp.mix, weight[0], value, at);
    }
  }

  static KVCC_DEVICE void load_weights(const Warp& warp, float (&weight)[kTiles][4], int half, int32_t position,
                                       bool visible) {
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        weight[j][2 * half + q] = visible ? load<Config::kDtype>(warp.weights[j][q], position) : 0.0f;
      }
    }
  }

  /// Whether a weight exceeds the limit, or the weights must leave their factor, in any lane.
  template <int kRuns>
  static KVCC_DEVICE bool exceeds(const float (&weight)[kRuns][kTiles][4], const Warp& warp, Most& most) {
    bool any = most.large && warp.weight_exponent > 0;
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        float& greatest = most.weight[j][q];
        greatest = 0;
        KVCC_UNROLL
        for (int m = 0; m < kRuns; ++m) {
          KVCC_UNROLL
          for (int half = 0; half < 2; ++half) greatest = maximum(greatest, magnitude(weight[m][j][2 * half + q]));
        }
        any = any || greatest > warp.limit[j][q];
      }
    }
    return ballot(any) != 0;
  }

  /// Weights in the unit of the reference.
  template <int kRuns>
  static KVCC_DEVICE void scale_weights(float (&weight)[kRuns][kTiles][4], Warp& warp) {
    KVCC_UNROLL
    for (int m = 0; m < kRuns; ++m) {
      KVCC_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) {
          float& w = weight[m][j][e];
          w = multiply(w, warp.unit[j][e % 2]);
          if constexpr (Values::kChannel) warp.mix.total[j][e % 2] = add(warp.mix.total[j][e % 2], w);
        }
      }
    }
  }

  /// A new reference, the least power of two above the weights so far, less the weights' exponent, and what was
  /// gathered so far in its unit.
  template <bool kPages>
  static KVCC_DEVICE void new_units(const Most& most, Shared& shared, Warp& warp, const Lane& at) {
    if (ballot(most.large) != 0) warp.weight_exponent = 0;
    float factor[kTiles][2];
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        const float all = maximum_over_rows(maximum(most.weight[j][q], multiply(0.5f, warp.limit[j][q])));
        // `all` is below 2^above. The bounds keep unit a normal number; infinity is never exceeded.
        int32_t above = static_cast<int32_t>(float_bits(all) >> 23) - 126;
        above = smaller(larger(above, -100), 126);
        const float reference = static_cast<float>(above - warp.weight_exponent);
        factor[j][q] = exp2_approximate(add(warp.mix.reference[j][q], -reference));
        warp.mix.reference[j][q] = reference;
        warp.limit[j][q] = above < 126 ? power_of_two(above) : kInfinity;
        warp.unit[j][q] = power_of_two(warp.weight_exponent - above);
      }
    }
    warp.mix.scale(factor);
    if constexpr (kPages && Outliers::kOwn) shared.outliers[at.warp].scale(factor, at.lane);
  }

  static KVCC_DEVICE void store(const Params& p, const Shared& shared, const Block& block) {
    const Work& work = shared.work;
    const int64_t first_row = work.row(0, p.cache.heads, p.group);
    const int64_t rows = static_cast<int64_t>(p.cache.heads) * p.group;  // of one sequence
    for (int i = static_cast<int>(thread_index()); i < work.queries * D; i += kThreads) {
      const int query = i / D, channel = i % D;
      const MergedTotal total = merged_total(shared.totals, query);
      const int32_t unit = static_cast<int32_t>(maximum(total.reference, -120.0f));  // in two steps: sums may be small
      const float sum =
          multiply(multiply(shared.merged.sum[query * shared.merged.kStride + channel], power_of_two(unit / 2)),
                   power_of_two(unit - unit / 2));
      float* to =
          p.splits == 1
              ? p.out + (block.z * rows + first_row + query) * D
              : p.partial + ((static_cast<int64_t>(block.z) * p.splits + block.x) * rows + first_row + query) * D;
      to[channel] = sum;
    }
  }
};

template <class Config>
struct MmaValueMix : std::conditional_t<kByBlock<Config::kHeadDim, Config::kGroupTile>, ValueMixByBlock<Config>,
                                        ValueMixByWarp<Config>> {};

/// Adds the splits of MmaValueMix in order. Grid: kvcc_grid_value_merge. Launched only when splits > 1.
template <class Config>
struct MmaValueMerge {
  using Params = KvccValueMixParams;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 4;
  struct Shared {
    uint32_t unused;
  };

  static KVCC_DEVICE void run(const Params& p, Shared&) {
    constexpr int D = Config::kHeadDim;
    const Block block = block_index();
    const int64_t elements = static_cast<int64_t>(p.cache.heads) * p.group * D;  // of one sequence
    const int64_t i = static_cast<int64_t>(block.x) * kThreads + thread_index();
    if (i >= elements || !serves<Config>(p.cache.layer, static_cast<int32_t>(i / (p.group * D)))) return;
    const float* from = p.partial + block.z * p.splits * elements + i;
    float sum = from[0];
    for (int32_t split = 1; split < p.splits; ++split) sum = add(sum, from[split * elements]);
    p.out[block.z * elements + i] = sum;
  }
};

}  // namespace kvcc::device
