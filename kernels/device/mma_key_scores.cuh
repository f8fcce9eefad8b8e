// key_scores of layout mma-1: one block takes a part of the context and up to kGroupTile queries of one KV head; each
// warp streams whole tiles, and a decoded key meets all of a warp's queries on the tensor cores; heads of more than 128
// channels with 9 to 16 queries have blocks that take each page together (mma_key_scores_block.cuh).
//   grid  (splits, KV head x group tile, sequence); kvcc_grid_mma_key_scores
//   bound codes are read and decoded once a group tile, in 128-bit loads
//   error as in mma_keys.cuh
#pragma once

#include <type_traits>

#include "kernels/device/mma_key_outliers.cuh"
#include "kernels/device/mma_key_scores_block.cuh"

namespace kvcc::device {

template <class Config, Table kTable, bool kRelative>
struct KeyScoresShared {
  static constexpr int G = Config::kGroupTile;
  using Keys = KeyTables<Config, G, kTable, kRelative>;
  Keys keys;
  Work work;
  Patches<Config::kHeadDim, Keys::kSparse> patch;
};

/// Warps take whole pages.
template <class Config>
struct KeyScoresByWarp {
  using Params = KvccMmaKeyScoresParams;
  static constexpr Table kFast = fastest_table(Config::kBits), kSmall = smallest_table(Config::kBits);
  using Shared = FirstThatFits<KeyScoresShared<Config, kFast, true>, KeyScoresShared<Config, kFast, false>,
                               KeyScoresShared<Config, kSmall, false>>;
  static_assert(sizeof(Shared) <= kMmaSharedLimit);
  using Keys = typename Shared::Keys;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, G = Config::kGroupTile, kTiles = G / kMmaQueries;
  static constexpr int kMinBlocks = D * kTiles < 128 ? 4 : kTiles == 1 && D <= 192 ? 3 : 2;
  static_assert(Config::kTensor == mma::Tensor::key);

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const Block block = block_index();
    const Work work = work_of(p.cache, block, p.group, G, p.splits, p.window);
    if (!serves<Config>(p.cache.layer, work.head)) return;
    if (work.part.page >= work.part.page_end && work.part.tile >= work.part.tile_end) return;
    const Lane at = this_lane();
    Warp warp;
    warp.row = work.row(block.z, p.cache.heads, p.group);
    warp.queries = work.queries;
    if (thread_index() == 0) shared.work = work;
    fill_key_tables<Keys, Config>(shared.keys, p.cache, p.rope, work.head, p.query, warp.row, warp.queries, G,
                                  p.multiplier);
    sync_block();
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        warp.back[j][q] = shared.keys.back[j * kMmaQueries + 2 * at.column + q];
      }
    }
    if constexpr (Config::kRope == Rope::none) {
      turn_queries<Config>(warp.query, shared.keys, p.rope, 0, at);
    }
    warp.word = first_word<Config>(p.cache, work.head);
    int32_t i = work.part.page + static_cast<int32_t>(at.warp), next = 0;
    if (i < work.part.page_end) next = page_number(p.cache, block.z, i);
    KVCC_ROLLED
    for (; i < work.part.page_end; i += kMmaWarps) {
      uint8_t* const page = page_at(p.cache, next);
      if (i + kMmaWarps < work.part.page_end) next = page_number(p.cache, block.z, i + kMmaWarps);
      score_one_page(p, shared, visible_slots(work.context, i), work.head, i, page, warp, at);
    }
    KVCC_ROLLED
    for (int32_t i = shared.work.part.tile + static_cast<int32_t>(at.warp); i < shared.work.part.tile_end;
         i += kMmaWarps) {
      score_one_exact(p, shared, block.z, exact_block(shared.work.context, i), warp, at);
    }
  }

 private:
  struct Warp {
    QueryFragments<Keys::kSteps, kTiles> query;
    float back[kTiles][2];
    int64_t row;  ///< of the group tile's first query
    int queries;
    uint32_t word;  ///< of the head's tile in a page
  };

  /// Page i of the sequence.
  static KVCC_DEVICE void score_one_page(const Params& p, Shared& shared, const Slots& slots, int32_t head, int32_t i,
                                         uint8_t* page, Warp& warp, const Lane& at) {
    const uint32_t* const tile = tile_at(page, warp.word);
    const int32_t block = i + p.cache.sink / KVCC_ROPE_BLOCK;
    MmaCodes<Config> codes;
    codes.load(tile, 0, at.lane);
    uint32_t range[8] = {};
    if constexpr (Config::kAxis == Axis::token && !Keys::kSparse)
      load_ranges<Config>(p.cache, page, slots, at.row, range);
    if constexpr (Config::kRope != Rope::none) {
      turn_queries<Config>(warp.query, shared.keys, p.rope, block, at);
    }
    float score[kMmaSteps][kTiles][4] = {};
    if constexpr (Keys::kSparse) {
      const auto records =
          PageRecords<kHoldsRecords<Config, kTiles>>::template of<Config>(p.cache, page, head, at.lane);
      score_patched_page<Config>(score, codes, shared.patch[at.warp], p.cache, page, records, tile, slots, warp.query,
                                 shared.keys, p.rope, at);
    } else {
      score_page<Config>(score, codes, tile, range, warp.query, shared.keys, p.rope, p.cache.sink, at);
    }
    const int32_t first = p.cache.sink + i * KVCC_PAGE_TOKENS + static_cast<int32_t>(at.row);
    KVCC_UNROLL
    for (int m = 0; m < kMmaSteps; ++m) {
      KVCC_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int32_t slot = 16 * m + 8 * half;
        store(p, warp, at, score[m], half, first + slot, slots.has(slot + static_cast<int32_t>(at.row)));
      }
    }
  }

  static KVCC_DEVICE void score_one_exact(const Params& p, Shared& shared, uint32_t sequence, int32_t block, Warp& warp,
                                          const Lane& at) {
    const Context& context = shared.work.context;
    const int32_t head = shared.work.head;
    if constexpr (Config::kRope != Rope::none) {
      turn_queries<Config>(warp.query, shared.keys, p.rope, block, at);
    }
    KVCC_ROLLED
    for (int32_t r = static_cast<int32_t>(at.row); r < KVCC_ROPE_BLOCK; r += 16) {
      const int32_t first = block * KVCC_ROPE_BLOCK + r;
      const uint16_t* key[2];
      KVCC_UNROLL
      for (int i = 0; i < 2; ++i) key[i] = exact_values<Config>(p.cache, context, sequence, head, first + 8 * i);
      if (ballot(key[0] != nullptr || key[1] != nullptr) == 0) continue;
      float score[kTiles][4] = {};
      score_exact<Config, Keys>(score, key, r, warp.query, p.rope, at);
      KVCC_UNROLL
      for (int half = 0; half < 2; ++half) store(p, warp, at, score, half, first + 8 * half, key[half] != nullptr);
    }
  }

  static KVCC_DEVICE void store(const Params& p, const Warp& warp, const Lane& at, const float (&score)[kTiles][4],
                                int half, int32_t position, bool visible) {
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        const int query = j * kMmaQueries + 2 * static_cast<int>(at.column) + q;
        if (visible && query < warp.queries) {
          p.scores[(warp.row + query) * p.scores_stride + position] = multiply(score[j][2 * half + q], warp.back[j][q]);
        }
      }
    }
  }
};

template <class Config>
struct MmaKeyScores : std::conditional_t<kByBlock<Config::kHeadDim, Config::kGroupTile>, KeyScoresByBlock<Config>,
                                         KeyScoresByWarp<Config>> {};

}  // namespace kvcc::device
