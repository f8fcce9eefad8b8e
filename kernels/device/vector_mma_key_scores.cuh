// key_scores of vector codebooks on tensor cores: one block takes a part of the context and up to kGroupTile queries of
// one KV head; each warp streams whole tiles. A decoded key is transformed by D x D products, turned, and meets all of
// the group's queries, all on tensor cores.
//   grid  (splits, KV head x group tile, sequence); kvcc_grid_mma_key_scores
//   bound the transform: D multiply-adds an element on tensor cores
//   error as in vector_mma.cuh
#pragma once

#include "kernels/device/vector_mma.cuh"

namespace kvcc::device {

template <class Config, bool kRelative, uint32_t kMostRows>
struct VectorMmaKeyScoresShared {
  using Keys = VectorKeyTables<Config, Config::kGroupTile, kRelative, row_bytes<Config>(kMostRows)>;
  Keys keys;
  Work work;
  StagedCodes<Config> codes[kMmaWarps];
};

template <class Config>
struct VectorMmaKeyScores {
  using Params = KvccVectorMmaKeyScoresParams;
  template <uint32_t kMostRows>
  using Of = VectorMmaKeyScoresShared<Config, true, kMostRows>;
  using Shared = FirstThatFits<Of<kAllRows>, Of<kSomeRows[0]>, Of<kSomeRows[1]>, Of<kSomeRows[2]>, Of<0>,
                               VectorMmaKeyScoresShared<Config, false, 0>>;
  static_assert(sizeof(Shared) <= kMmaSharedLimit);
  using Keys = typename Shared::Keys;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, G = Config::kGroupTile, kTiles = G / kMmaQueries;
  static constexpr int kMinBlocks = D <= 64 ? 3 : 2;

  static KVCC_DEVICE void run(const Params& params, Shared& shared) {
    const KvccMmaKeyScoresParams& p = params.scores;
    const Block block = block_index();
    const Work work = work_of(p.cache, block, p.group, G, p.splits, p.window);
    if (work.part.page >= work.part.page_end && work.part.tile >= work.part.tile_end) return;
    const Lane at = this_lane();
    Warp warp;
    warp.row = work.row(block.z, p.cache.heads, p.group);
    warp.queries = work.queries;
    if (thread_index() == 0) shared.work = work;
    fill_queries<Config>(shared.keys, p.query, warp.row, warp.queries, G, p.multiplier, at);
    fill_relative<Config>(shared.keys, p.cache, p.rope, thread_index());
    const VectorHead head = vector_head(params.tensor, p.cache, work.head,
                                        shared.keys.fill_vectors(params.tensor, work.head, thread_index()));
    sync_block();
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) warp.back[j][q] = shared.keys.back[j * kMmaQueries + 2 * at.column + q];
    }
    if constexpr (Config::kRope == Rope::none) turn_queries<Config>(warp.query, shared.keys, p.rope, 0, at);
    StagedCodes<Config>& codes = shared.codes[at.warp];
    codes.clear(at.lane, head.lane_bytes);
    int32_t i = work.part.page + static_cast<int32_t>(at.warp);
    uint32_t buffer = 0;
    if (i < work.part.page_end) begin(p, block.z, i, head, codes, buffer, at);
    KVCC_ROLLED
    for (; i < work.part.page_end; i += kMmaWarps) {
      const bool more = i + kMmaWarps < work.part.page_end;
      if (more) {
        begin(p, block.z, i + kMmaWarps, head, codes, buffer ^ 1u, at);
        copy_async_wait<1>();
      } else {
        copy_async_wait<0>();
      }
      codes.finish(buffer, head.lane_bytes, at.lane);
      score_one_page(p, shared, i, head, codes.word[buffer], warp, at);
      sync_warp();  // the next copy but one goes where this page was read
      buffer ^= 1u;
    }
    KVCC_ROLLED
    for (int32_t tile = shared.work.part.tile + static_cast<int32_t>(at.warp); tile < shared.work.part.tile_end;
         tile += kMmaWarps) {
      score_one_exact(p, shared, block.z, exact_block(shared.work.context, tile), warp, at);
    }
  }

 private:
  struct Warp {
    QueryFragments<Keys::kSteps, kTiles> query;
    float back[kTiles][2];
    int64_t row;  ///< of the group tile's first query
    int queries;
  };

  static KVCC_DEVICE void begin(const KvccMmaKeyScoresParams& p, uint32_t sequence, int32_t i, const VectorHead& head,
                                StagedCodes<Config>& codes, uint32_t buffer, const Lane& at) {
    const uint8_t* page = page_at(p.cache, page_number(p.cache, sequence, i));
    codes.copy(buffer, page + static_cast<int64_t>(head.word) * 4, head.lane_bytes, at.lane);
    copy_async_commit();
  }

  /// Page i of the sequence.
  static KVCC_DEVICE void score_one_page(const KvccMmaKeyScoresParams& p, const Shared& shared, int32_t i,
                                         const VectorHead& head, const uint32_t* words, Warp& warp, const Lane& at) {
    if constexpr (Config::kRope != Rope::none) {
      turn_queries<Config>(warp.query, shared.keys, p.rope, i + p.cache.sink / KVCC_ROPE_BLOCK, at);
    }
    const Slots slots = visible_slots(shared.work.context, i);
    const int32_t first = p.cache.sink + i * KVCC_PAGE_TOKENS + static_cast<int32_t>(at.row);
    const RelativeRow<Config> relative(p.rope, p.cache.sink % KVCC_ROPE_BLOCK + static_cast<int32_t>(at.row),
                                       at.column);
    KVCC_ROLLED
    for (uint32_t half = 0; half < 2u; ++half) {
      float score[2][kTiles][4] = {};
      score_half<Config>(score, shared.keys, head, words, half, warp.query, relative, at);
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int32_t slot = static_cast<int32_t>(16u * half) + 32 * (e / 2) + 8 * (e % 2);
        store(p, warp, at, score[e / 2], e % 2, first + slot, slots.has(slot + static_cast<int32_t>(at.row)));
      }
    }
  }

  static KVCC_DEVICE void score_one_exact(const KvccMmaKeyScoresParams& p, const Shared& shared, uint32_t sequence,
                                          int32_t block, Warp& warp, const Lane& at) {
    const Context& context = shared.work.context;
    if constexpr (Config::kRope != Rope::none) turn_queries<Config>(warp.query, shared.keys, p.rope, block, at);
    KVCC_ROLLED
    for (int32_t r = static_cast<int32_t>(at.row); r < KVCC_ROPE_BLOCK; r += 16) {
      const int32_t first = block * KVCC_ROPE_BLOCK + r;
      const uint16_t* key[2];
      KVCC_UNROLL
      for (int i = 0; i < 2; ++i) {
        key[i] = exact_values<Config>(p.cache, context, sequence, shared.work.head, first + 8 * i);
      }
      if (ballot(key[0] != nullptr || key[1] != nullptr) == 0) continue;
      float score[kTiles][4] = {};
      score_exact<Config, Keys>(score, key, r, warp.query, p.rope, at);
      KVCC_UNROLL
      for (int half = 0; half < 2; ++half) store(p, warp, at, score, half, first + 8 * half, key[half] != nullptr);
    }
  }

  static KVCC_DEVICE void store(const KvccMmaKeyScoresParams& p, const Warp& warp, const Lane& at,
                                const float (&score)[kTiles][4], int half, int32_t position, bool visible) {
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

}  // namespace kvcc::device
