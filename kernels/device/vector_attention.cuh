// attention of vector codebooks: fused split-K decode attention. A block serves up to kGroupTile queries of one KV head
// over a part of the context; its warps stream whole tiles, 32 tokens at a time: codes of keys, transform, rotation,
// scores, online softmax, codes of values, sums of coordinates. The values' transform is applied once, to the sums.
//   grid  (splits, KV head x group tile, sequence); kvcc_grid_mma_attention, of the merge kvcc_grid_mma_attention_merge
//   bound the keys' transform: D multiply-adds an element on tensor cores
//   order exact rows first, then pages; warps are merged in order, so that every schedule gives the same bits
//   error as attention.cuh's, with vector_mma.cuh's magnitudes of keys and values
#pragma once

#include "kernels/device/attention.cuh"
#include "kernels/device/vector_mma.cuh"

namespace kvcc::device {

/// What decodes a head's values. Steps come in twos, of one kind: lane row g of a fragment has the coordinates of slot
/// g of two steps, two in each of two fragments.
template <class Config, uint32_t kRowBytes>
struct VectorValueTables {
  static_assert(Config::kSteps % 2 == 0);
  static constexpr int kCoordinates = Config::kSteps * 16;
  alignas(16) KvccVectorSlot slot[Config::kSteps * 4];
  VectorRows<kRowBytes> rows;

  /// As of VectorKeyTables.
  KVCC_DEVICE const uint8_t* fill_vectors(const KvccVectorTensor& t, int32_t head, uint32_t thread) {
    const KvccVectorHead& of_head = t.heads[head];
    for (uint32_t i = thread; i < Config::kSteps * 4u; i += KVCC_THREADS)
      slot[i] = t.slots[head * Config::kSteps * 4 + i];
    return rows.fill(t.rows + of_head.table, static_cast<uint32_t>(of_head.table_bytes), thread);
  }
};

/// Adds the coordinates of tokens 16 `half` … (b[0]) and 32 further on (b[1]) of a page, with weights b.
template <class Config, class Tables, int kTiles>
KVCC_DEVICE void mix_half(Mix<Tables::kCoordinates, kTiles>& mix, const Tables& s, const VectorHead& head,
                          const uint32_t* words, uint32_t half, const uint32_t (&b)[2][kTiles][2], const Lane& at) {
  const uint32_t first = 16u * half + 2u * at.column;
  const uint32_t lane[4] = {first, first + 1u, first + 8u, first + 9u};
  KVCC_UNROLL
  for (int pair = 0; pair < Config::kSteps / 2; ++pair) {
    const KvccVectorSlot slot = s.slot[pair * 8 + static_cast<int>(at.row)];
    Words<2> row[2][4];
    if (2 * pair < head.wide) {
      decode_slot<true>(row, words, slot, head.rows, lane);
    } else {
      decode_slot<false>(row, words, slot, head.rows, lane);
    }
    KVCC_UNROLL
    for (int later = 0; later < 2; ++later) {
      KVCC_UNROLL
      for (int word = 0; word < 2; ++word) {
        uint32_t a[4];
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) {
          a[e] = byte_permute(row[later][e / 2 * 2].word[word], row[later][e / 2 * 2 + 1].word[word],
                              e % 2 == 0 ? 0x5410u : 0x7632u);
        }
        KVCC_UNROLL
        for (int j = 0; j < kTiles; ++j) mma_16816(mix.sum[j][pair * 2 + word], a, b[later][j][0], b[later][j][1]);
      }
    }
    sync_warp();  // no loads of the next before: they would not fit the registers
  }
}

template <class Config, bool kRelative, uint32_t kMostRows>
struct VectorAttentionShared {
  using Key = typename Config::Key;
  using Value = typename Config::Value;
  static constexpr int D = Key::kHeadDim, G = Config::kGroupTile;
  using Keys = VectorKeyTables<Key, G, kRelative, row_bytes<Key>(kMostRows)>;
  using Values = VectorValueTables<Value, row_bytes<Value>(kMostRows)>;
  struct Tables {
    Keys keys;
    Values values;
    StagedCodes<Key> key_codes[kMmaWarps];
    StagedCodes<Value> value_codes[kMmaWarps];
  };
  union {
    Tables tables;
    MergedSums<Values::kCoordinates, G> pages;  ///< after the last use of the tables
  };
  MergedSums<D, G> exact;
  WarpTotals<G> page_totals, exact_totals;
  Work work;
};

template <class Config>
struct VectorAttention {
  using Params = KvccVectorAttentionParams;
  using Key = typename Config::Key;
  using Value = typename Config::Value;
  template <uint32_t kMostRows>
  using Of = VectorAttentionShared<Config, true, kMostRows>;
  using Shared = FirstThatFits<Of<kAllRows>, Of<kSomeRows[0]>, Of<kSomeRows[1]>, Of<kSomeRows[2]>, Of<0>,
                               VectorAttentionShared<Config, false, 0>>;
  static_assert(sizeof(Shared) <= kMmaSharedLimit);
  using Keys = typename Shared::Keys;
  using Values = typename Shared::Values;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 2;
  static constexpr int D = Shared::D, G = Shared::G, kTiles = G / kMmaQueries;
  static_assert(Value::kHeadDim == D);

  static KVCC_DEVICE void run(const Params& params, Shared& shared) {
    const KvccAttentionParams& p = params.attention;
    const Block block = block_index();
    const Work work = work_of(p.key, block, p.group, G, p.splits, p.window);
    const Lane at = this_lane();
    if (thread_index() == 0) shared.work = work;
    fill_queries<Key>(shared.tables.keys, p.query, work.row(block.z, p.key.heads, p.group), work.queries, G,
                      multiply(p.multiplier, kLog2E), at);
    fill_relative<Key>(shared.tables.keys, p.key, p.rope, thread_index());
    const VectorHead key = vector_head(params.key, p.key, work.head,
                                       shared.tables.keys.fill_vectors(params.key, work.head, thread_index()));
    const VectorHead value = vector_head(params.value, p.value, work.head,
                                         shared.tables.values.fill_vectors(params.value, work.head, thread_index()));
    shared.tables.key_codes[at.warp].clear(at.lane, key.lane_bytes);
    shared.tables.value_codes[at.warp].clear(at.lane, value.lane_bytes);
    sync_block();
    if (work.part.tile < work.part.tile_end) add_exact_tiles(p, shared, block.z, at);
    Warp warp;
    warp.mix.clear(kNoReference);
    warp.load_back(shared.tables.keys, at);
    if constexpr (Key::kRope == Rope::none) turn_queries<Key>(warp.query, shared.tables.keys, p.rope, 0, at);
    int32_t i = work.part.page + static_cast<int32_t>(at.warp);
    uint32_t buffer = 0;
    if (i < work.part.page_end) begin(p, shared.tables, block.z, i, key, value, buffer, at);
    KVCC_ROLLED
    for (; i < work.part.page_end; i += kMmaWarps) {
      if (i + kMmaWarps < work.part.page_end) {
        begin(p, shared.tables, block.z, i + kMmaWarps, key, value, buffer ^ 1u, at);
        copy_async_wait<1>();
      } else {
        copy_async_wait<0>();
      }
      shared.tables.key_codes[at.warp].finish(buffer, key.lane_bytes, at.lane);
      shared.tables.value_codes[at.warp].finish(buffer, value.lane_bytes, at.lane);
      add_page(p, shared, i, key, value, buffer, warp, at);
      sync_warp();  // the next copy but one goes where this page was read
      buffer ^= 1u;
    }
    merge_warps(warp.mix, shared.pages, shared.page_totals, this_lane());
    store(params, shared, block);
  }

 private:
  static constexpr float kLog2E = 1.44269504f;

  struct Scorer {
    QueryFragments<Keys::kSteps, kTiles> query;
    float back[kTiles][2];

    KVCC_DEVICE void load_back(const Keys& keys, const Lane& at) {
      KVCC_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        KVCC_UNROLL
        for (int q = 0; q < 2; ++q) back[j][q] = keys.back[j * kMmaQueries + 2 * at.column + q];
      }
    }
  };
  struct Warp : Scorer {
    Mix<Values::kCoordinates, kTiles> mix;
  };

  static KVCC_DEVICE void begin(const KvccAttentionParams& p, typename Shared::Tables& tables, uint32_t sequence,
                                int32_t i, const VectorHead& key, const VectorHead& value, uint32_t buffer,
                                const Lane& at) {
    const uint8_t* key_page = page_at(p.key, page_number(p.key, sequence, i));
    const uint8_t* value_page = page_at(p.value, page_number(p.value, sequence, i));
    tables.key_codes[at.warp].copy(buffer, key_page + static_cast<int64_t>(key.word) * 4, key.lane_bytes, at.lane);
    tables.value_codes[at.warp].copy(buffer, value_page + static_cast<int64_t>(value.word) * 4, value.lane_bytes,
                                     at.lane);
    copy_async_commit();
  }

  /// Page i of the sequence.
  static KVCC_DEVICE void add_page(const KvccAttentionParams& p, Shared& shared, int32_t i, const VectorHead& key,
                                   const VectorHead& value, uint32_t buffer, Warp& warp, const Lane& at) {
    if constexpr (Key::kRope != Rope::none) {
      turn_queries<Key>(warp.query, shared.tables.keys, p.rope, i + p.key.sink / KVCC_ROPE_BLOCK, at);
    }
    const Slots slots = visible_slots(shared.work.context, i);
    const RelativeRow<Key> relative(p.rope, p.key.sink % KVCC_ROPE_BLOCK + static_cast<int32_t>(at.row), at.column);
    KVCC_ROLLED
    for (uint32_t half = 0; half < 2u; ++half) {
      float score[2][kTiles][4] = {};
      score_half<Key>(score, shared.tables.keys, key, shared.tables.key_codes[at.warp].word[buffer], half, warp.query,
                      relative, at);
      if (!slots.all()) [[unlikely]] {
        KVCC_UNROLL
        for (int e = 0; e < 8; ++e) {
          const bool visible =
              slots.has(static_cast<int32_t>(16u * half) + 32 * (e / 4) + e % 4 / 2 * 8 + static_cast<int32_t>(at.row));
          KVCC_UNROLL
          for (int j = 0; j < kTiles; ++j) score[e / 4][j][e % 4] = visible ? score[e / 4][j][e % 4] : -kInfinity;
        }
      }
      sync_warp();
      soften(score, warp, warp.mix);
      uint32_t b[2][kTiles][2];
      weight_fragments(b[0], score[0]);
      weight_fragments(b[1], score[1]);
      mix_half<Value>(warp.mix, shared.tables.values, value, shared.tables.value_codes[at.warp].word[buffer], half, b,
                      at);
    }
  }

  /// Exact rows, whose sums are of channels: a part of their own, merged before the pages'.
  static KVCC_DEVICE void add_exact_tiles(const KvccAttentionParams& p, Shared& shared, uint32_t sequence,
                                          const Lane& at) {
    const Context& context = shared.work.context;
    const int32_t head = shared.work.head;
    Scorer scorer;
    scorer.load_back(shared.tables.keys, at);
    Mix<D, kTiles> mix;
    mix.clear(kNoReference);
    if constexpr (Key::kRope == Rope::none) turn_queries<Key>(scorer.query, shared.tables.keys, p.rope, 0, at);
    KVCC_ROLLED
    for (int32_t tile = shared.work.part.tile + static_cast<int32_t>(at.warp); tile < shared.work.part.tile_end;
         tile += kMmaWarps) {
      const int32_t block = exact_block(context, tile);
      if constexpr (Key::kRope != Rope::none) turn_queries<Key>(scorer.query, shared.tables.keys, p.rope, block, at);
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
        score_exact<Key, Keys>(score[0], key, r, scorer.query, p.rope, at);
        KVCC_UNROLL
        for (int e = 0; e < kTiles * 4; ++e) {
          float& s = score[0][e / 4][e % 4];
          s = key[e % 4 / 2] != nullptr ? s : -kInfinity;
        }
        soften(score, scorer, mix);
        mix_exact(mix, score[0], value, at);
      }
    }
    merge_warps(mix, shared.exact, shared.exact_totals, at);
  }

  /// Scores to weights, and everything gathered so far to the new reference, where the greatest score has risen.
  template <int kRuns, class Sums>
  static KVCC_DEVICE void soften(float (&score)[kRuns][kTiles][4], const Scorer& scorer, Sums& mix) {
    float factor[kTiles][2];
    bool rises = false;
    KVCC_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        float most = maximum(score[0][j][q], score[0][j][q + 2]);
        KVCC_UNROLL
        for (int m = 1; m < kRuns; ++m) most = maximum(most, maximum(score[m][j][q], score[m][j][q + 2]));
        most = maximum_over_rows(most);
        const float old = mix.reference[j][q];
        const float next = maximum(old, fused_multiply_add(most, scorer.back[j][q], -float{kWeightExponent}));
        rises = rises || next > old;
        factor[j][q] = add(old, -next);
        mix.reference[j][q] = next;
      }
    }
    if (ballot(rises) != 0) [[unlikely]] {
      KVCC_UNROLL
      for (int j = 0; j < kTiles * 2; ++j) factor[j / 2][j % 2] = exp2_approximate(factor[j / 2][j % 2]);
      mix.scale(factor);
    }
    KVCC_UNROLL
    for (int m = 0; m < kRuns; ++m) {
      KVCC_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) {
          float& s = score[m][j][e];
          s = exp2_approximate(fused_multiply_add(s, scorer.back[j][e % 2], -mix.reference[j][e % 2]));
          mix.total[j][e % 2] = add(mix.total[j][e % 2], s);
        }
      }
    }
  }

  /// Sums of coordinates to channels, exact rows to them.
  static KVCC_DEVICE void store(const Params& params, const Shared& shared, const Block& block) {
    const KvccAttentionParams& p = params.attention;
    const Work& work = shared.work;
    constexpr int P = Values::kCoordinates,
                  kApart = kThreads / D;  // threads of one channel, each with queries of its own
    const int channel = static_cast<int>(thread_index()) % D, first = static_cast<int>(thread_index()) / D;
    if (first >= kApart) return;
    const bool exact = work.part.tile < work.part.tile_end;
    const float* back = params.value.back + static_cast<int64_t>(work.head) * P * D + channel;
    const float mean = params.value.fragment_mean[work.head * D + channel];
    float sum[(G + kApart - 1) / kApart] = {};
    KVCC_ROLLED
    for (int position = 0; position < params.value.heads[work.head].steps * 16; ++position) {
      const float number = back[position * D];
      KVCC_UNROLL
      for (int j = 0; first + j * kApart < G && j < (G + kApart - 1) / kApart; ++j) {
        sum[j] = fused_multiply_add(number, shared.pages.sum[(first + j * kApart) * shared.pages.kStride + position],
                                    sum[j]);
      }
    }
    const int64_t first_row = work.row(0, p.key.heads, p.group);
    const int64_t rows = static_cast<int64_t>(p.key.heads) * p.group;  // of one sequence
    KVCC_UNROLL
    for (int j = 0; j < (G + kApart - 1) / kApart; ++j) {
      const int query = first + j * kApart;
      if (query >= work.queries) continue;
      MergedTotal total = merged_total(shared.page_totals, query);
      float out = fused_multiply_add(total.total, mean, sum[j]);
      if (exact) {
        const MergedTotal more = merged_total(shared.exact_totals, query);
        const float reference = maximum(total.reference, more.reference);
        const float of_pages = exp2_approximate(add(total.reference, -reference));
        const float of_exact = exp2_approximate(add(more.reference, -reference));
        out = fused_multiply_add(of_exact, shared.exact.sum[query * shared.exact.kStride + channel],
                                 multiply(of_pages, out));
        total = {reference, fused_multiply_add(of_exact, more.total, multiply(of_pages, total.total))};
      }
      if (p.splits == 1) {
        p.out[(block.z * rows + first_row + query) * D + channel] = total.total > 0.0f ? out / total.total : 0.0f;
        continue;
      }
      float* partial =
          p.partial + ((static_cast<int64_t>(block.z) * p.splits + block.x) * rows + first_row + query) * (D + 2);
      partial[channel] = out;
      if (channel == 0) {
        partial[D] = total.reference;
        partial[D + 1] = total.total;
      }
    }
  }
};

/// Combines the splits of VectorAttention, in order. Launched only when splits > 1.
template <class Config>
struct VectorAttentionMerge {
  using Params = KvccVectorAttentionParams;
  using Scalar = AttentionMerge<Config>;
  using Shared = typename Scalar::Shared;
  static constexpr int kThreads = Scalar::kThreads, kMinBlocks = Scalar::kMinBlocks;
  static KVCC_DEVICE void run(const Params& p, Shared& shared) { Scalar::run(p.attention, shared); }
};

}  // namespace kvcc::device
