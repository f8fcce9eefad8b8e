// attention where a block takes each page together (mma_block.cuh).
//   grid  (splits, KV head x group tile, sequence); kvcc_grid_mma_attention
//   bound codes are read and decoded once a group tile
//   error as in attention.cuh
#pragma once

#include "kernels/device/mma_block.cuh"

namespace kvcc::device {

/// Shared memory of a block, for one choice of tables.
template <class Config, Table kKeyTable, Table kValueTable, bool kRelative>
struct AttentionBlockShared {
  using Key = typename Config::Key;
  using Value = typename Config::Value;
  static constexpr int D = Key::kHeadDim;
  using Keys = KeyTables<Key, kBlockQueries, kKeyTable, kRelative>;
  using Values = ValueTables<Value, kValueTable>;
  Keys keys;
  Values values;
  TurnedQueries<Keys::kSteps> turned;
  Exchange exchange;
  Work work;
  BlockPatchWhere<D, kMmaSparse<Key> || kMmaSparse<Value>> outliers;
};

/// The fastest choice that every architecture can hold.
template <class Config>
struct AttentionBlockLayout {
  static constexpr Table kFastKey = fastest_table(Config::Key::kBits), kSmallKey = smallest_table(Config::Key::kBits);
  static constexpr Table kFastValue = fastest_table(Config::Value::kBits);
  static constexpr Table kSmallValue = smallest_table(Config::Value::kBits);
  using Shared = FirstThatFits<AttentionBlockShared<Config, kFastKey, kFastValue, true>,
                               AttentionBlockShared<Config, kFastKey, kFastValue, false>,
                               AttentionBlockShared<Config, kFastKey, kSmallValue, false>,
                               AttentionBlockShared<Config, kSmallKey, kFastValue, false>,
                               AttentionBlockShared<Config, kSmallKey, kSmallValue, false>>;
  static_assert(sizeof(Shared) <= kMmaSharedLimit);
};

template <class Config>
struct AttentionByBlock {
  using Params = KvccAttentionParams;
  using Key = typename Config::Key;
  using Value = typename Config::Value;
  using Shared = typename AttentionBlockLayout<Config>::Shared;
  using Keys = typename Shared::Keys;
  using Values = typename Shared::Values;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = 2;
  static constexpr int D = Shared::D;
  static_assert(Value::kHeadDim == D && Key::kTensor == mma::Tensor::key && Value::kTensor == mma::Tensor::value);

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const Block block = block_index();
    const Work work = work_of(p.key, block, p.group, kBlockQueries, p.splits, p.window);
    if (!serves<Key>(p.key.layer, work.head) || !serves<Value>(p.value.layer, work.head)) return;
    const Lane at = this_lane();
    if (thread_index() == 0) shared.work = work;
    fill_key_tables<Keys, Key>(shared.keys, p.key, p.rope, work.head, p.query, work.row(block.z, p.key.heads, p.group),
                               work.queries, kBlockQueries, multiply(p.multiplier, kLog2E));
    shared.values.levels.fill(Value::levels(p.value.layer, work.head), thread_index());
    sync_block();

    Warp warp;
    warp.mix.clear(kNoReference);
    warp.own.each([](float& x, int, int, int) { x = 0; });
    warp.key_word = first_word<Key>(p.key, work.head);
    warp.value_word = first_word<Value>(p.value, work.head);
    const Part& part = shared.work.part;
    int32_t key_number = 0, next_number = 0;  // the next page's is looked up a round ahead
    if (part.page < part.page_end) {
      key_number = page_number(p.key, block.z, part.page);
      warp.codes.load(tile_at(page_at(p.key, key_number), warp.key_word), at.warp, at.lane);
    }
    turn(p, shared, part.page, part.tile, at);
    sync_block();
    KVCC_ROLLED
    for (int32_t i = part.page; i < part.page_end; ++i) {
      if (i + 1 < part.page_end) next_number = page_number(p.key, block.z, i + 1);
      uint8_t* const value_page = page_at(p.value, page_number(p.value, block.z, i));
      add_page(p, shared, i, page_at(p.key, key_number), value_page, next_number, warp, at);
      key_number = next_number;
    }
    settle_quarter<Value, Values>(warp.mix, warp.own, shared.exchange, p.value, shared.work.head, at);
    KVCC_ROLLED
    for (int32_t tile = part.tile; tile < part.tile_end; ++tile) add_exact(p, shared, block.z, tile, warp, at);
    store(p, shared, block, warp.mix, at);
  }

 private:
  static constexpr float kLog2E = 1.44269504f;

  struct Warp {
    QuarterMix<D> mix;
    OutlierQuarter<Value> own;
    RunCodes<Key> codes;  ///< of the next page
    float weight_exponent = kWeightExponent;
    uint32_t key_word, value_word;  ///< of the head's tiles in a page
  };

  /// Turns the queries for page i, or for exact tile `tile` where the pages are done. Without rotation they are made
  /// once. Barriers of the block must be before and after.
  static KVCC_DEVICE void turn(const Params& p, Shared& shared, int32_t i, int32_t tile, const Lane& at) {
    int32_t base = 0;
    if constexpr (Key::kRope != Rope::none) {
      if (i < shared.work.part.page_end) {
        base = i + p.key.sink / KVCC_ROPE_BLOCK;
      } else if (tile < shared.work.part.tile_end) {
        base = exact_block(shared.work.context, tile);
      } else {
        return;
      }
    }
    shared.turned.template turn<Key>(shared.keys, p.rope, base, at);
  }

  /// Page i of the sequence. Everything that a warp writes to shared memory here is read after the next barrier, and
  /// written again after the one that follows it.
  static KVCC_DEVICE void add_page(const Params& p, Shared& shared, int32_t i, uint8_t* key_page, uint8_t* value_page,
                                   int32_t next_number, Warp& warp, const Lane& at) {
    const int32_t head = shared.work.head;
    const Slots slots = visible_slots(shared.work.context, i);
    const uint32_t* const value_tile = tile_at(value_page, warp.value_word);
    float score[kBlockTiles][4] = {};
    {
      uint32_t range[2] = {};
      if constexpr (Key::kAxis == Axis::token) load_run_ranges<Key>(p.key, key_page, slots, at, range);
      if constexpr (Keys::kSparse) {
        fill_zeros<Key>(*shared.outliers.get(), shared.keys, p.key, key_page, tile_at(key_page, warp.key_word), head,
                        slots, range, at);
      }
      score_run<Key>(score, warp.codes, range, shared.turned, shared.outliers.get(), shared.keys, p.rope, p.key.sink,
                     at);
    }
    QuarterCodes<Value> codes;  // in flight during the softmax
    with_quarter(at.warp, [&](auto quarter) { codes.template load<quarter.value>(value_tile, at.lane); });
    uint32_t range[2] = {};
    if constexpr (Value::kAxis == Axis::token) load_run_ranges<Value>(p.value, value_page, slots, at, range);
    KVCC_UNROLL
    for (int e = 0; e < 4; ++e) {
      const bool visible = slots.has(static_cast<int32_t>(16 * at.warp + e / 2 * 8 + at.row));
      KVCC_UNROLL
      for (int j = 0; j < kBlockTiles; ++j) score[j][e] = visible ? score[j][e] : -kInfinity;
    }
    soften(score, large_scales(range), shared, warp, at);
    if constexpr (Values::kSparse) {
      float twice[kBlockTiles][4];
      KVCC_UNROLL
      for (int e = 0; e < kBlockTiles * 4; ++e) twice[e / 4][e % 4] = add(score[e / 4][e % 4], score[e / 4][e % 4]);
      tell_weights(shared.exchange.outlier, twice, at);
      fill_differences<Value>(*shared.outliers.get(), shared.values, p.value, value_page, value_tile, head, slots, at);
    }
    if constexpr (Value::kAxis == Axis::token) {
      KVCC_UNROLL
      for (int j = 0; j < kBlockTiles; ++j) {
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) {
          float& offset = warp.mix.offset[j][e % 2];
          offset = fused_multiply_add(score[j][e], high_half(range[e / 2]), offset);
          score[j][e] = multiply(score[j][e], low_half(range[e / 2]));
        }
      }
    }
    tell_weights(shared.exchange.weight, score, at);
    if constexpr (Key::kRope != Rope::none) turn(p, shared, i + 1, shared.work.part.tile, at);
    sync_block();
    if (i + 1 < shared.work.part.page_end) {
      warp.codes.load(tile_at(page_at(p.key, next_number), warp.key_word), at.warp, at.lane);
    }
    with_quarter(at.warp, [&](auto quarter) {
      mix_quarter<quarter.value>(warp.mix, warp.own, codes, shared.exchange, shared.outliers.get(), shared.values, at);
    });
    if constexpr (Keys::kSparse && Values::kSparse) sync_block();  // the same memory holds the next keys' zero-points
  }

  /// Exact tile `tile`.
  static KVCC_DEVICE void add_exact(const Params& p, Shared& shared, uint32_t sequence, int32_t tile, Warp& warp,
                                    const Lane& at) {
    const Context& context = shared.work.context;
    const int32_t head = shared.work.head, first = exact_block(context, tile) * KVCC_ROPE_BLOCK;
    const int32_t r = static_cast<int32_t>(16 * at.warp + at.row);
    const uint16_t* key[2];
    KVCC_UNROLL
    for (int i = 0; i < 2; ++i) key[i] = exact_values<Key>(p.key, context, sequence, head, first + r + 8 * i);
    float score[kBlockTiles][4] = {};
    score_exact<Key, Keys>(score, key, r, shared.turned, p.rope, at);
    KVCC_UNROLL
    for (int e = 0; e < kBlockTiles * 4; ++e) {
      float& s = score[e / 4][e % 4];
      s = key[e % 4 / 2] != nullptr ? s : -kInfinity;
    }
    soften(score, false, shared, warp, at);
    tell_weights(shared.exchange.weight, score, at);
    if constexpr (Key::kRope != Rope::none) turn(p, shared, shared.work.part.page_end, tile + 1, at);
    sync_block();
    mix_exact_quarter<Value>(warp.mix, shared.exchange, p.value, context, sequence, head, first, at);
  }

  /// Scores of the warp's run to weights, and everything gathered so far to the new reference, where the greatest score
  /// of all warps has risen. `large`: a token of the lane's has a scale of 2 or more.
  static KVCC_DEVICE void soften(float (&score)[kBlockTiles][4], bool large, Shared& shared, Warp& warp,
                                 const Lane& at) {
    float back[kBlockTiles][2];
    bool rises = false;
    KVCC_UNROLL
    for (int j = 0; j < kBlockTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        back[j][q] = shared.keys.back[j * kMmaQueries + 2 * at.column + q];
        const float most = maximum(score[j][q], score[j][q + 2]);
        rises = rises || next_reference(most, back[j][q], warp) > warp.mix.reference[j][q];
      }
    }
    const uint32_t asks = ask_warps(shared.exchange.asks, rises, large && warp.weight_exponent > 0, at);
    if (asks != 0) [[unlikely]] {
      if ((asks & kAsksNoFactor) != 0) warp.weight_exponent = 0;
      raise_references(score, back, shared.exchange, warp, at);
    }
    KVCC_UNROLL
    for (int j = 0; j < kBlockTiles; ++j) {
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        float& s = score[j][e];
        s = exp2_approximate(fused_multiply_add(s, back[j][e % 2], -warp.mix.reference[j][e % 2]));
        warp.mix.total[j][e % 2] = add(warp.mix.total[j][e % 2], s);
      }
    }
  }

  static KVCC_DEVICE float next_reference(float most, float back, const Warp& warp) {
    return fused_multiply_add(most, back, -warp.weight_exponent);
  }
  /// Of all warps of the block.
  static KVCC_DEVICE void raise_references(const float (&score)[kBlockTiles][4], const float (&back)[kBlockTiles][2],
                                           Exchange& exchange, Warp& warp, const Lane& at) {
    float most[kBlockTiles][2], factor[kBlockTiles][2];
    KVCC_UNROLL
    for (int i = 0; i < kBlockTiles * 2; ++i) {
      most[i / 2][i % 2] = maximum_over_rows(maximum(score[i / 2][i % 2], score[i / 2][i % 2 + 2]));
    }
    tell_warps(exchange.most, most, at);
    sync_block();
    join_warps(most, exchange.most, at, [](float a, float b) { return maximum(a, b); });
    KVCC_UNROLL
    for (int j = 0; j < kBlockTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        const float old = warp.mix.reference[j][q];
        const float next = maximum(old, next_reference(most[j][q], back[j][q], warp));
        factor[j][q] = exp2_approximate(add(old, -next));
        warp.mix.reference[j][q] = next;
      }
    }
    warp.mix.scale(factor);
    warp.own.each([&](float& x, int j, int, int e) { x = multiply(x, factor[j][e % 2]); });
  }

  static KVCC_DEVICE void store(const Params& p, Shared& shared, const Block& block, const QuarterMix<D>& mix,
                                const Lane& at) {
    const Work& work = shared.work;
    float total[kBlockTiles][2];
    join_totals(total, mix, shared.exchange, at);
    const int64_t first_row = work.row(0, p.key.heads, p.group);
    const int64_t rows = static_cast<int64_t>(p.key.heads) * p.group;  // of one sequence
    each_sum(mix, work.queries, at, [&](int query, int channel, float sum, int j, int q) {
      if (p.splits == 1) {
        p.out[(block.z * rows + first_row + query) * D + channel] = total[j][q] > 0.0f ? sum / total[j][q] : 0.0f;
        return;
      }
      float* partial =
          p.partial + ((static_cast<int64_t>(block.z) * p.splits + block.x) * rows + first_row + query) * (D + 2);
      partial[channel] = sum;
      if (channel == 0) {
        partial[D] = mix.reference[j][q];
        partial[D + 1] = total[j][q];
      }
    });
  }
};

}  // namespace kvcc::device
