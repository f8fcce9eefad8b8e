// key_scores of layout mma-1 where a block takes each page together (mma_block.cuh).
//   grid  (splits, KV head x group tile, sequence); kvcc_grid_mma_key_scores
//   bound codes are read and decoded once a group tile
//   error as in mma_keys.cuh
#pragma once

#include "kernels/device/mma_block.cuh"

namespace kvcc::device {

template <class Config, Table kTable, bool kRelative>
struct KeyScoresBlockShared {
  using Keys = KeyTables<Config, Config::kGroupTile, kTable, kRelative>;
  Keys keys;
  Work work;
  TurnedQueries<Keys::kSteps> turned[Config::kRope == Rope::none ? 1 : 2];  ///< of a page, and of the next
  BlockPatchWhere<Config::kHeadDim, kMmaSparse<Config>> outliers;
};

template <class Config>
struct KeyScoresByBlock {
  using Params = KvccMmaKeyScoresParams;
  static constexpr Table kFast = fastest_table(Config::kBits), kSmall = smallest_table(Config::kBits);
  using Shared = FirstThatFits<KeyScoresBlockShared<Config, kFast, true>, KeyScoresBlockShared<Config, kFast, false>,
                               KeyScoresBlockShared<Config, kSmall, false>>;
  static_assert(sizeof(Shared) <= kMmaSharedLimit);
  using Keys = typename Shared::Keys;
  // With outliers some take 175 to 206 registers a thread; three blocks leave 168.
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = kMmaSparse<Config> ? 2 : 3;
  static_assert(Config::kTensor == mma::Tensor::key && kByBlock<Config::kHeadDim, Config::kGroupTile>);

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const Block block = block_index();
    const Work work = work_of(p.cache, block, p.group, kBlockQueries, p.splits, p.window);
    if (!serves<Config>(p.cache.layer, work.head)) return;
    if (work.part.page >= work.part.page_end && work.part.tile >= work.part.tile_end) return;
    const Lane at = this_lane();
    const int64_t row = work.row(block.z, p.cache.heads, p.group);
    if (thread_index() == 0) shared.work = work;
    fill_key_tables<Keys, Config>(shared.keys, p.cache, p.rope, work.head, p.query, row, work.queries, kBlockQueries,
                                  p.multiplier);
    sync_block();
    Warp warp{{}, row, work.queries, first_word<Config>(p.cache, work.head), 0};
    KVCC_UNROLL
    for (int i = 0; i < kBlockTiles * 2; ++i) {
      warp.back[i / 2][i % 2] = shared.keys.back[i / 2 * kMmaQueries + 2 * at.column + i % 2];
    }
    RunCodes<Config> codes;
    int32_t number = 0, next = 0;
    if (work.part.page < work.part.page_end) {
      number = page_number(p.cache, block.z, work.part.page);
      codes.load(tile_at(page_at(p.cache, number), warp.word), at.warp, at.lane);
      if (work.part.page + 1 < work.part.page_end) next = page_number(p.cache, block.z, work.part.page + 1);
    }
    turn(p, shared, 0, base_of(p, work, work.part.page, work.part.tile), at);
    sync_block();
    KVCC_ROLLED
    for (int32_t i = work.part.page; i < work.part.page_end; ++i) {
      uint8_t* const page = page_at(p.cache, number);
      const Slots slots = visible_slots(work.context, i);
      uint32_t range[2] = {};
      if constexpr (Config::kAxis == Axis::token) load_run_ranges<Config>(p.cache, page, slots, at, range);
      if constexpr (Keys::kSparse) {
        fill_zeros<Config>(*shared.outliers.get(), shared.keys, p.cache, page, tile_at(page, warp.word), work.head,
                           slots, range, at);
      }
      float score[kBlockTiles][4] = {};
      score_run<Config>(score, codes, range, turned(shared, warp), shared.outliers.get(), shared.keys, p.rope,
                        p.cache.sink, at);
      if (i + 1 < work.part.page_end) {
        codes.load(tile_at(page_at(p.cache, next), warp.word), at.warp, at.lane);
        number = next;
        if (i + 2 < work.part.page_end) next = page_number(p.cache, block.z, i + 2);
      }
      KVCC_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int32_t slot = static_cast<int32_t>(16 * at.warp + 8 * half + at.row);
        store(p, warp, at, score, half, p.cache.sink + i * KVCC_PAGE_TOKENS + slot, slots.has(slot));
      }
      next_turn(p, shared, warp, i + 1, work.part.tile, at);
    }
    KVCC_ROLLED
    for (int32_t tile = work.part.tile; tile < work.part.tile_end; ++tile) {
      const int32_t r = static_cast<int32_t>(16 * at.warp + at.row);
      const int32_t first = exact_block(work.context, tile) * KVCC_ROPE_BLOCK + r;
      const uint16_t* key[2];
      KVCC_UNROLL
      for (int i = 0; i < 2; ++i)
        key[i] = exact_values<Config>(p.cache, work.context, block.z, work.head, first + 8 * i);
      if (ballot(key[0] != nullptr || key[1] != nullptr) != 0) {
        float score[kBlockTiles][4] = {};
        score_exact<Config, Keys>(score, key, r, turned(shared, warp), p.rope, at);
        KVCC_UNROLL
        for (int half = 0; half < 2; ++half) store(p, warp, at, score, half, first + 8 * half, key[half] != nullptr);
      }
      next_turn(p, shared, warp, work.part.page_end, tile + 1, at);
    }
  }

 private:
  struct Warp {
    float back[kBlockTiles][2];
    int64_t row;  ///< of the group tile's first query
    int queries;
    uint32_t word;  ///< of the head's tile in a page
    uint32_t buffer;
  };

  /// Block of 64 positions of page i, or of exact tile `tile` where the pages are done; -1 after the last.
  static KVCC_DEVICE int32_t base_of(const Params& p, const Work& work, int32_t i, int32_t tile) {
    if (i < work.part.page_end) return i + p.cache.sink / KVCC_ROPE_BLOCK;
    return tile < work.part.tile_end ? exact_block(work.context, tile) : -1;
  }
  static KVCC_DEVICE void turn(const Params& p, Shared& shared, uint32_t buffer, int32_t base, const Lane& at) {
    shared.turned[buffer].template turn<Config>(shared.keys, p.rope, base, at);
  }
  static KVCC_DEVICE const TurnedQueries<Keys::kSteps>& turned(const Shared& shared, const Warp& warp) {
    return shared.turned[warp.buffer];
  }
  /// Queries for what comes next. Without rotation they stay as they are.
  static KVCC_DEVICE void next_turn(const Params& p, Shared& shared, Warp& warp, int32_t i, int32_t tile,
                                    const Lane& at) {
    if constexpr (Config::kRope != Rope::none) {
      const int32_t base = base_of(p, shared.work, i, tile);
      if (base < 0) return;
      warp.buffer ^= 1u;
      turn(p, shared, warp.buffer, base, at);
      sync_block();  // a warp that is still at the last page reads the other buffer
    }
  }

  static KVCC_DEVICE void store(const Params& p, const Warp& warp, const Lane& at, const float (&score)[kBlockTiles][4],
                                int half, int32_t position, bool visible) {
    KVCC_UNROLL
    for (int i = 0; i < kBlockTiles * 2; ++i) {
      const int j = i / 2, q = i % 2, query = j * kMmaQueries + 2 * static_cast<int>(at.column) + q;
      if (visible && query < warp.queries) {
        p.scores[(warp.row + query) * p.scores_stride + position] = multiply(score[j][2 * half + q], warp.back[j][q]);
      }
    }
  }
};

}  // namespace kvcc::device
