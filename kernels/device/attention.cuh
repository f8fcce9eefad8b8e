// attention: fused split-K decode attention. A block serves up to kGroupTile queries of one KV head over a part of the
// context; its warps stream whole tiles: codes of keys, scores, online softmax, codes of values, sums. Warps are merged
// in order through shared memory, parts by AttentionMerge; heads of more than 128 channels with 9 to 16 queries have
// blocks that take each page together (attention_block.cuh). No atomics: the same bits for every schedule.
//   grid  (splits, KV head x group tile, sequence); kvcc_grid_mma_attention
//   bound codes are read and decoded once a group tile, in 128-bit loads
//   error |out - exact| <= e * sensitivity + 2^-8 * max |value|, e the scores' (mma_keys.cuh), sensitivity as in
//   kernels/reference/attention.h; |value|, and at least 2^-14, as in mma_values.cuh
#pragma once

#include <type_traits>

#include "kernels/device/attention_block.cuh"
#include "kernels/device/mma_key_outliers.cuh"
#include "kernels/device/mma_merge.cuh"
#include "kernels/device/mma_value_outliers.cuh"

namespace kvcc::device {

/// Shared memory of a block, for one choice of tables.
template <class Config, Table kKeyTable, Table kValueTable, bool kRelative>
struct AttentionShared {
  using Key = typename Config::Key;
  using Value = typename Config::Value;
  static constexpr int D = Key::kHeadDim, G = Config::kGroupTile;
  static constexpr int kTiles = G / kMmaQueries;
  using Keys = KeyTables<Key, G, kKeyTable, kRelative>;
  using Values = ValueTables<Value, kValueTable>;
  struct Tables {
    Keys keys;
    Values values;
  };
  union {
    Tables tables;
    MergedSums<D, G> merged;  ///< after the last use of the tables
  };
  WarpTotals<G> totals;
  /// Where registers do not suffice for keys beside all that is gathered of the values.
  static constexpr bool kPark = D * kTiles > 192 || (Keys::kSparse && D > 80);
  static constexpr bool kSparse = Keys::kSparse || Values::kSparse;
  static constexpr int kParkedSums = D > 192 ? 8 : kSparse ? 2 : 0;
  float parked[kPark ? kMmaWarps : 1][kPark ? Mix<D, kTiles>::parked(kParkedSums) * 32 : 1];
  Work work;
  alignas(16) uint32_t key_word[4], value_word[4];  ///< of the head's tiles in a page, once a column
  Patches<D, kSparse> patch;                        ///< of keys, then of values
  using Outliers = OutlierSumsOfWarps<Value, kTiles>;
  Outliers outliers;
};

/// The fastest choice that every architecture can hold.
template <class Config>
struct AttentionLayout {
  static constexpr Table kFastKey = fastest_table(Config::Key::kBits), kSmallKey = smallest_table(Config::Key::kBits);
  static constexpr Table kFastValue = fastest_table(Config::Value::kBits);
  static constexpr Table kSmallValue = smallest_table(Config::Value::kBits);
  using Shared = FirstThatFits<
      AttentionShared<Config, kFastKey, kFastValue, true>, AttentionShared<Config, kFastKey, kFastValue, false>,
      AttentionShared<Config, kFastKey, kSmallValue, true>, AttentionShared<Config, kSmallKey, kSmallValue, true>,
      AttentionShared<Config, kSmallKey, kSmallValue, false>>;
  static_assert(sizeof(Shared) <= kMmaSharedLimit);
};

/// Warps take whole pages.
template <class Config>
struct AttentionByWarp {
  using Params = KvccAttentionParams;
  using Key = typename Config::Key;
  using Value = typename Config::Value;
  using Shared = typename AttentionLayout<Config>::Shared;
  using Keys = typename Shared::Keys;
  using Values = typename Shared::Values;
  using Outliers = typename Shared::Outliers;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Shared::D, G = Shared::G, kTiles = Shared::kTiles;
  /// Three where neither registers nor shared memory (228 KiB at most) forbid it.
  static constexpr int kMinBlocks =
      kTiles == 1 && D <= 128 && sizeof(Shared) <= 76 * 1024 &&
              (D <= 80 || (Key::kBits <= 3 && Value::kBits <= 3 &&
                           ((Key::kRope != Rope::interleaved && !Keys::kSparse) || Key::kAxis == Axis::channel)))
          ? 3
          : 2;
  static_assert(Value::kHeadDim == D && Key::kTensor == mma::Tensor::key && Value::kTensor == mma::Tensor::value);

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const Block block = block_index();
    const Work work = work_of(p.key, block, p.group, G, p.splits, p.window);
    if (!serves<Key>(p.key.layer, work.head) || !serves<Value>(p.value.layer, work.head)) return;
    const Lane at = this_lane();
    if (thread_index() == 0) shared.work = work;
    if (thread_index() < 4u) {
      shared.key_word[thread_index()] = first_word<Key>(p.key, work.head);
      shared.value_word[thread_index()] = first_word<Value>(p.value, work.head);
    }
    fill_key_tables<Keys, Key>(shared.tables.keys, p.key, p.rope, work.head, p.query,
                               work.row(block.z, p.key.heads, p.group), work.queries, G,
                               multiply(p.multiplier, kLog2E));
    shared.tables.values.levels.fill(Value::levels(p.value.layer, work.head), thread_index());
    if constexpr (Outliers::kOwn) shared.outliers[at.warp].clear(at.lane);
    sync_block();

    Warp warp;
    warp.mix.clear(kNoReference);
    if constexpr (Key::kRope == Rope::none) {
      turn_queries<Key>(warp.query, shared.tables.keys, p.rope, 0, at);
    }
    int32_t i = work.part.page + static_cast<int32_t>(at.warp), next_key = 0, next_value = 0;
    if (i < work.part.page_end) {
      next_key = page_number(p.key, block.z, i);
      next_value = page_number(p.value, block.z, i);
    }
    KVCC_ROLLED
    for (; i < work.part.page_end; i += kMmaWarps) {
      uint8_t* const key_page = page_at(p.key, next_key);
      uint8_t* const value_page = page_at(p.value, next_value);
      if (i + kMmaWarps < work.part.page_end) {
        next_key = page_number(p.key, block.z, i + kMmaWarps);
        next_value = page_number(p.value, block.z, i + kMmaWarps);
      }
      add_page(p, shared, visible_slots(work.context, i), work.head, i, key_page, value_page, warp, at);
    }
    finish(p, shared, warp);
  }

 private:
  static constexpr float kLog2E = 1.44269504f;

  struct Warp {
    Mix<D, kTiles> mix;
    QueryFragments<Keys::kSteps, kTiles> query;
    float weight_exponent = kWeightExponent;
  };

  /// Page i of the sequence.
  static KVCC_DEVICE void add_page(const Params& p, Shared& shared, const Slots& slots, int32_t head, int32_t i,
                                   uint8_t* key_page, uint8_t* value_page, Warp& warp, const Lane& lane) {
    const Lane at = kTiles > 1 || Shared::kPark ? fresh_lane() : lane;
    const uint32_t* const key_tile = tile_at(key_page, shared.key_word[at.column]);
    const uint32_t* const value_tile = tile_at(value_page, shared.value_word[at.column]);
    const int32_t block = i + p.key.sink / KVCC_ROPE_BLOCK;
    MmaCodes<Key> key_codes;
    constexpr bool kLate =
        Shared::kPark && kTiles == 1;  // codes are loaded after the outliers, whose code needs the registers
    if constexpr (!kLate) key_codes.load(key_tile, 0, at.lane);
    uint32_t key_range[8] = {};
    if constexpr (Key::kAxis == Axis::token && !Keys::kSparse)
      load_ranges<Key>(p.key, key_page, slots, at.row, key_range);
    if constexpr (Shared::kPark) warp.mix.template park<Shared::kParkedSums>(shared.parked[at.warp], at.lane);
    float score[kMmaSteps][kTiles][4] = {};
    if constexpr (kLate) key_codes.load(key_tile, 0, at.lane);
    if constexpr (Key::kRope != Rope::none) {
      turn_queries<Key>(warp.query, shared.tables.keys, p.rope, block, at);
    }
    if constexpr (Keys::kSparse) {
      const auto records = PageRecords<kHoldsRecords<Key, kTiles>>::template of<Key>(p.key, key_page, head, at.lane);
      score_patched_page<Key>(score, key_codes, shared.patch[at.warp], p.key, key_page, records, key_tile, slots,
                              warp.query, shared.tables.keys, p.rope, at);
    } else {
      score_page<Key>(score, key_codes, key_tile, key_range, warp.query, shared.tables.keys, p.rope, p.key.sink, at);
    }
    if constexpr (Shared::kPark) warp.mix.template unpark<Shared::kParkedSums>(shared.parked[at.warp], at.lane);
    MmaCodes<Value> value_codes;  // in flight during the softmax; earlier, they would take the keys' registers
    if constexpr (!kLate) value_codes.load(value_tile, 0, at.lane);
    uint32_t value_range[8] = {};
    if constexpr (Value::kAxis == Axis::token) load_ranges<Value>(p.value, value_page, slots, at.row, value_range);
    if (!slots.all()) [[unlikely]] {
      KVCC_UNROLL
      for (int m = 0; m < kMmaSteps; ++m) {
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) {
          const bool visible = slots.has(16 * m + e / 2 * 8 + static_cast<int32_t>(at.row));
          KVCC_UNROLL
          for (int j = 0; j < kTiles; ++j) score[m][j][e] = visible ? score[m][j][e] : -kInfinity;
        }
      }
    }
    bool large = false;
    if constexpr (Value::kAxis == Axis::token) large = large_scales(value_range);
    soften(score, large, shared, warp, at);
    if constexpr (Values::kSparse) {
      mix_outliers<Value>(warp.mix, shared.outliers[at.warp], shared.patch[at.warp], p.value, value_page, head,
                          value_tile, score, shared.tables.values, at);
    }
    if constexpr (kLate) value_codes.load(value_tile, 0, at.lane);
    mix_page<Value>(warp.mix, value_codes, value_tile, score, value_range, shared.tables.values, at);
  }

  /// What comes after the pages. Nothing that it can find again is held in registers over the loop before.
  static KVCC_DEVICE void finish(const Params& p, Shared& shared, Warp& warp) {
    const Block block = block_index();
    const Lane at = this_lane();
    const Part& part = shared.work.part;
    settle<Value, Values>(warp.mix, p.value, shared.work.head, at);
    if constexpr (Outliers::kOwn) add_outliers(warp.mix, shared.outliers[at.warp], at.lane);
    KVCC_ROLLED
    for (int32_t i = part.tile + static_cast<int32_t>(at.warp); i < part.tile_end; i += kMmaWarps) {
      add_exact(p, shared, block.z, exact_block(shared.work.context, i), warp, at);
    }
    merge_warps(warp.mix, shared.merged, shared.totals, this_lane());
    store(p, shared, block);
  }

  /// Block of 64 positions of which some are exact.
  static KVCC_DEVICE void add_exact(const Params& p, Shared& shared, uint32_t sequence, int32_t block, Warp& warp,
                                    const Lane& at) {
    const Context& context = shared.work.context;
    const int32_t head = shared.work.head;
    if constexpr (Key::kRope != Rope::none) {
      turn_queries<Key>(warp.query, shared.tables.keys, p.rope, block, at);
    }
    KVCC_ROLLED
    for (int32_t r = static_cast<int32_t>(at.row); r < KVCC_ROPE_BLOCK; r += 16) {
      const int32_t first = block * KVCC_ROPE_BLOCK + r;
      const uint16_t *key[2], *value[2];
      KVCC_UNROLL
      for (int i = 0; i < 2; ++i) {
        key[i] = exact_values<Key>(p.key, context, sequence, head, first + 8 * i);
        value[i] = exact_values<Value>(p.value, context, sequence, head, first + 8 * i);
      }
      if (ballot(key[0] != nullptr || key[1] != nullptr) == 0) continue;
      float score[1][kTiles][4] = {};
      score_exact<Key, Keys>(score[0], key, r, warp.query, p.rope, at);
      KVCC_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) score[0][j][e] = key[e / 2] != nullptr ? score[0][j][e] : -kInfinity;
      }
      soften(score, false, shared, warp, at);
      mix_exact(warp.mix, score[0], value, at);
    }
  }

  /// Scores to weights, and everything gathered so far to the new reference, where the greatest score has risen.
  template <int kRuns>
  static KVCC_DEVICE void soften(float (&score)[kRuns][kTiles][4], bool large, Shared& shared, Warp& warp,
                                 const Lane& at) {
    if constexpr (Value::kAxis == Axis::token && kRuns > 1) {
      if (ballot(large) != 0) warp.weight_exponent = 0;
    }
    // 0, which ptxas does not know: with constant addresses it spills two registers of 256 channels on sm_100.
    const uint32_t none = D > 192 ? at.warp / kMmaWarps : 0u;
    float factor[kTiles][2], back[kTiles][2];
    bool rises = false;
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        back[j][q] = shared.tables.keys.back[(none + j) * kMmaQueries + 2 * at.column + q];
        float most = maximum(score[0][j][q], score[0][j][q + 2]);
        KVCC_UNROLL
        for (int m = 1; m < kRuns; ++m) most = maximum(most, maximum(score[m][j][q], score[m][j][q + 2]));
        most = maximum_over_rows(most);
        const float old = warp.mix.reference[j][q];
        const float next = maximum(old, fused_multiply_add(most, back[j][q], -warp.weight_exponent));
        rises = rises || next > old;
        factor[j][q] = add(old, -next);
        warp.mix.reference[j][q] = next;
      }
    }
    if (ballot(rises) != 0) [[unlikely]] {
      KVCC_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        KVCC_UNROLL
        for (int q = 0; q < 2; ++q) factor[j][q] = exp2_approximate(factor[j][q]);
      }
      warp.mix.scale(factor);
      if constexpr (Outliers::kOwn && kRuns > 1) shared.outliers[at.warp].scale(factor, at.lane);
    }
    KVCC_UNROLL
    for (int m = 0; m < kRuns; ++m) {
      KVCC_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) {
          float& s = score[m][j][e];
          s = exp2_approximate(fused_multiply_add(s, back[j][e % 2], -warp.mix.reference[j][e % 2]));
          warp.mix.total[j][e % 2] = add(warp.mix.total[j][e % 2], s);
        }
      }
    }
  }

  static KVCC_DEVICE void store(const Params& p, const Shared& shared, const Block& block) {
    const Work& work = shared.work;
    const int64_t first_row = work.row(0, p.key.heads, p.group);
    const int64_t rows = static_cast<int64_t>(p.key.heads) * p.group;  // of one sequence
    for (int i = static_cast<int>(thread_index()); i < work.queries * D; i += kThreads) {
      const int query = i / D, channel = i % D;
      const MergedTotal total = merged_total(shared.totals, query);
      const float sum = shared.merged.sum[query * shared.merged.kStride + channel];
      if (p.splits == 1) {
        p.out[(block.z * rows + first_row + query) * D + channel] = total.total > 0.0f ? sum / total.total : 0.0f;
        continue;
      }
      float* partial =
          p.partial + ((static_cast<int64_t>(block.z) * p.splits + block.x) * rows + first_row + query) * (D + 2);
      partial[channel] = sum;
      if (channel == 0) {
        partial[D] = total.reference;
        partial[D + 1] = total.total;
      }
    }
  }
};

template <class Config>
struct Attention : std::conditional_t<kByBlock<Config::Key::kHeadDim, Config::kGroupTile>, AttentionByBlock<Config>,
                                      AttentionByWarp<Config>> {};

/// Combines the splits of Attention, in order. Grid: kvcc_grid_mma_attention_merge. Launched only when splits > 1.
template <class Config>
struct AttentionMerge {
  using Params = KvccAttentionParams;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 4;
  static constexpr int D = Config::Value::kHeadDim;
  struct Shared {
    uint32_t unused;
  };

  static KVCC_DEVICE void run(const Params& p, Shared&) {
    const Block block = block_index();
    const int32_t head = static_cast<int32_t>(block.x) / p.group;
    if (!serves<typename Config::Key>(p.key.layer, head) || !serves<typename Config::Value>(p.value.layer, head))
      return;
    const int64_t rows = static_cast<int64_t>(p.key.heads) * p.group, stride = rows * (D + 2);
    const float* first = p.partial + (static_cast<int64_t>(block.z) * p.splits * rows + block.x) * (D + 2);
    float reference = first[D];
    for (int32_t split = 1; split < p.splits; ++split) reference = maximum(reference, first[split * stride + D]);
    float total = 0;
    for (int32_t split = 0; split < p.splits; ++split) {
      const float* from = first + split * stride;
      total = fused_multiply_add(from[D + 1], exp2_approximate(add(from[D], -reference)), total);
    }
    for (int channel = static_cast<int>(thread_index()); channel < D; channel += kThreads) {
      float sum = 0;
      for (int32_t split = 0; split < p.splits; ++split) {
        const float* from = first + split * stride;
        sum = fused_multiply_add(from[channel], exp2_approximate(add(from[D], -reference)), sum);
      }
      p.out[(block.z * rows + block.x) * D + channel] = total > 0.0f ? sum / total : 0.0f;
    }
  }
};

}  // namespace kvcc::device
