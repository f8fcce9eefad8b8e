// key_scores of layout mma-1: one block takes a part of the context and up to kGroupTile queries of one KV head; each
// warp streams whole tiles, and a decoded key meets all of a warp's queries on the tensor cores.
//   grid  (splits, KV head x group tile, sequence); kvcc_grid_mma_key_scores
//   bound codes are read once a group tile, in 128-bit loads
//   error as in mma_keys.cuh
#pragma once

#include <type_traits>

#include "kernels/device/mma_key_outliers.cuh"
#include "kernels/device/mma_merge.cuh"

namespace kvcc::device {

template <class Config, Table kTable, bool kRelative>
struct KeyScoresShared {
  static constexpr int G = Config::kGroupTile;
  using Plan = WarpPlan<Config::kHeadDim, G>;
  using Keys = KeyTables<Config, G, kTable, kRelative>;
  Keys keys;
  alignas(16) float outliers[Keys::kSparse ? kMmaWarps : 1][Keys::kSparse ? Plan::kTiles * 64 * 8 : 4];
};

template <class Config>
struct MmaKeyScores {
  using Params = KvccMmaKeyScoresParams;
  static constexpr Table kFast = fastest_table(Config::kBits), kSmall = smallest_table(Config::kBits);
  template <class A, class B>
  using First = std::conditional_t<sizeof(A) <= kMmaSharedLimit, A, B>;
  using Shared = First<KeyScoresShared<Config, kFast, true>,
                       First<KeyScoresShared<Config, kFast, false>, KeyScoresShared<Config, kSmall, false>>>;
  static_assert(sizeof(Shared) <= kMmaSharedLimit);
  using Keys = typename Shared::Keys;
  using Plan = typename Shared::Plan;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, G = Config::kGroupTile, kTiles = Plan::kTiles;
  static constexpr int kMinBlocks = D * kTiles <= 128 ? 4 : 3;
  static_assert(Config::kTensor == mma::Tensor::key);

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const Block block = block_index();
    const int32_t group_tiles = (p.group + G - 1) / G;
    const int32_t head = static_cast<int32_t>(block.y) / group_tiles;
    const int32_t group_first = static_cast<int32_t>(block.y) % group_tiles * G;
    if (!serves<Config>(p.cache.layer, head)) return;
    const Context context = context_of(p.cache, p.cache.lengths[block.z], p.window);
    const Part part = part_of(context, static_cast<int32_t>(block.x), p.splits);
    if (part.page >= part.page_end && part.tile >= part.tile_end) return;
    const Lane at = this_lane();
    Warp warp;
    warp.row = (static_cast<int64_t>(block.z) * p.cache.heads + head) * p.group + group_first;
    warp.queries = smaller(p.group - group_first, G);
    warp.first_tile = Plan::set(at.warp) * kTiles;

    fill_key_tables<Keys, Config>(shared.keys, p.cache, p.rope, head, p.query, warp.row, warp.queries, G, p.multiplier);
    sync_block();
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        warp.back[j][q] = shared.keys.back[(warp.first_tile + j) * kMmaQueries + 2 * at.column + q];
      }
    }
    if constexpr (Config::kRope == Rope::none) {
      turn_queries<Config>(warp.query, shared.keys, p.rope, warp.first_tile, 0, at);
    }
    const int member = Plan::member(at.warp);
    KVCC_ROLLED
    for (int32_t i = part.page + member; i < part.page_end; i += Plan::kWarps) {
      score_one_page(p, shared, context, block.z, head, i, warp, at);
    }
    KVCC_ROLLED
    for (int32_t i = part.tile + member; i < part.tile_end; i += Plan::kWarps) {
      score_one_exact(p, shared, context, block.z, head, exact_block(context, i), warp, at);
    }
  }

 private:
  struct Warp {
    QueryFragments<Keys::kSteps, kTiles> query;
    float back[kTiles][2];
    int64_t row;  ///< of the group tile's first query
    int queries, first_tile;
  };

  static KVCC_DEVICE void score_one_page(const Params& p, Shared& shared, const Context& context, uint32_t sequence,
                                         int32_t head, int32_t i, Warp& warp, const Lane& at) {
    uint8_t* const base = page(p.cache, sequence, i);
    const uint32_t* const tile = mma_tile<Config>(p.cache, base, head);
    const Slots slots = visible_slots(context, i);
    const int32_t block = i + p.cache.sink / KVCC_ROPE_BLOCK;
    MmaCodes<Config> codes;
    codes.load(tile, 0, at.lane);
    uint32_t range[8] = {};
    if constexpr (Config::kAxis == Axis::token) load_ranges<Config>(p.cache, base, slots, at.row, range);
    if constexpr (Config::kRope != Rope::none) {
      turn_queries<Config>(warp.query, shared.keys, p.rope, warp.first_tile, block, at);
    }
    float score[kMmaSteps][kTiles][4] = {};
    if constexpr (Keys::kSparse) {
      score_outliers<Config>(score, shared.outliers[at.warp], p.cache, base, tile, head, block, warp.first_tile,
                             shared.keys, p.rope, at);
    }
    score_page<Config>(score, codes, tile, range, warp.query, shared.keys, p.rope, p.cache.sink, at);
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

  static KVCC_DEVICE void score_one_exact(const Params& p, Shared& shared, const Context& context, uint32_t sequence,
                                          int32_t head, int32_t block, Warp& warp, const Lane& at) {
    if constexpr (Config::kRope != Rope::none) {
      turn_queries<Config>(warp.query, shared.keys, p.rope, warp.first_tile, block, at);
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
        const int query = (warp.first_tile + j) * kMmaQueries + 2 * static_cast<int>(at.column) + q;
        if (visible && query < warp.queries) {
          p.scores[(warp.row + query) * p.scores_stride + position] = multiply(score[j][2 * half + q], warp.back[j][q]);
        }
      }
    }
  }
};

}  // namespace kvcc::device
