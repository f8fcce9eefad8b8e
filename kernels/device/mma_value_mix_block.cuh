// value_mix where a block takes each page together (mma_block.cuh).
//   grid  (splits, KV head x group tile, sequence); kvcc_grid_mma_value_mix
//   bound codes are read and decoded once a group tile
//   error as in mma_value_mix.cuh
#pragma once

#include "kernels/device/mma_block.cuh"

namespace kvcc::device {

template <class Config>
struct ValueMixByBlock {
  using Params = KvccValueMixParams;
  using Values = ValueTables<Config, fastest_table(Config::kBits)>;
  static constexpr int kThreads = KVCC_THREADS, kMinBlocks = Config::kBits == 8 ? 2 : 3;
  static constexpr int D = Config::kHeadDim;
  static_assert(Config::kTensor == mma::Tensor::value && kByBlock<D, Config::kGroupTile>);

  struct Shared {
    Values values;
    Exchange exchange;
    Work work;
    BlockPatchWhere<D, Values::kSparse> outliers;
  };
  static_assert(sizeof(Shared) <= kMmaSharedLimit);

  static KVCC_DEVICE void run(const Params& p, Shared& shared) {
    const Block block = block_index();
    const Work work = work_of(p.cache, block, p.group, kBlockQueries, p.splits, p.window);
    if (!serves<Config>(p.cache.layer, work.head)) return;
    const Lane at = this_lane();
    if (thread_index() == 0) shared.work = work;
    shared.values.levels.fill(Config::levels(p.cache.layer, work.head), thread_index());
    sync_block();

    Warp warp;
    KVCC_UNROLL
    for (int i = 0; i < kBlockTiles * 2; ++i) {
      const int j = i / 2, q = i % 2, column = j * kMmaQueries + 2 * static_cast<int>(at.column) + q;
      // Columns past the last query repeat it, and are not stored.
      const int64_t query = work.row(block.z, p.cache.heads, p.group) + smaller(column, work.queries - 1);
      warp.weights[j][q] = static_cast<const Element*>(p.weights) + query * p.weights_stride;
      warp.limit[j][q] = 0;
      warp.unit[j][q] = 0;
    }
    warp.mix.clear(kNoReference);
    warp.own.each([](float& x, int, int, int) { x = 0; });
    const uint32_t word = first_word<Config>(p.cache, work.head);
    const Part& part = shared.work.part;
    int32_t number = 0;  // looked up a round ahead
    if (part.page < part.page_end) number = page_number(p.cache, block.z, part.page);
    KVCC_ROLLED
    for (int32_t i = part.page; i < part.page_end; ++i) {
      uint8_t* const page = page_at(p.cache, number);
      if (i + 1 < part.page_end) number = page_number(p.cache, block.z, i + 1);
      add_page(p, shared, i, page, tile_at(page, word), warp, at);
    }
    settle_quarter<Config, Values>(warp.mix, warp.own, shared.exchange, p.cache, shared.work.head, at);
    KVCC_ROLLED
    for (int32_t tile = part.tile; tile < part.tile_end; ++tile) add_exact(p, shared, block.z, tile, warp, at);
    store(p, shared.work, block, warp.mix, at);
  }

 private:
  using Element = std::conditional_t<Config::kDtype == Dtype::f32, float, uint16_t>;

  struct Warp {
    QuarterMix<D> mix;
    OutlierQuarter<Config> own;
    const Element* weights[kBlockTiles][2];
    float limit[kBlockTiles][2];  ///< a power of two above the weights so far
    float unit[kBlockTiles][2];   ///< 2^-reference
    int32_t weight_exponent = kWeightExponent;
  };

  /// Page i of the sequence. Everything that a warp writes to shared memory here is read after the next barrier, and
  /// written again after the one that follows it.
  static KVCC_DEVICE void add_page(const Params& p, Shared& shared, int32_t i, uint8_t* page, const uint32_t* tile,
                                   Warp& warp, const Lane& at) {
    const int32_t head = shared.work.head;
    const Slots slots = visible_slots(shared.work.context, i);
    QuarterCodes<Config> codes;  // in flight until the weights have met
    with_quarter(at.warp, [&](auto quarter) { codes.template load<quarter.value>(tile, at.lane); });
    uint32_t range[2] = {};
    if constexpr (Config::kAxis == Axis::token) load_run_ranges<Config>(p.cache, page, slots, at, range);
    float weight[kBlockTiles][4];
    KVCC_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int32_t slot = static_cast<int32_t>(16 * at.warp + 8 * half + at.row);
      load_weights(warp, weight, half, p.cache.sink + i * KVCC_PAGE_TOKENS + slot, slots.has(slot));
    }
    scale_weights(weight, large_scales(range), shared.exchange, warp, at);
    if constexpr (Values::kSparse) {
      float twice[kBlockTiles][4];
      KVCC_UNROLL
      for (int e = 0; e < kBlockTiles * 4; ++e) twice[e / 4][e % 4] = add(weight[e / 4][e % 4], weight[e / 4][e % 4]);
      tell_weights(shared.exchange.outlier, twice, at);
      fill_differences<Config>(*shared.outliers.get(), shared.values, p.cache, page, tile, head, slots, at);
    }
    if constexpr (Config::kAxis == Axis::token) {
      KVCC_UNROLL
      for (int j = 0; j < kBlockTiles; ++j) {
        KVCC_UNROLL
        for (int e = 0; e < 4; ++e) {
          float& offset = warp.mix.offset[j][e % 2];
          offset = fused_multiply_add(weight[j][e], high_half(range[e / 2]), offset);
          weight[j][e] = multiply(weight[j][e], low_half(range[e / 2]));
        }
      }
    }
    tell_weights(shared.exchange.weight, weight, at);
    sync_block();
    with_quarter(at.warp, [&](auto quarter) {
      mix_quarter<quarter.value>(warp.mix, warp.own, codes, shared.exchange, shared.outliers.get(), shared.values, at);
    });
  }

  /// Exact tile `tile`.
  static KVCC_DEVICE void add_exact(const Params& p, Shared& shared, uint32_t sequence, int32_t tile, Warp& warp,
                                    const Lane& at) {
    const Context& context = shared.work.context;
    const int32_t first = exact_block(context, tile) * KVCC_ROPE_BLOCK;
    float weight[kBlockTiles][4];
    KVCC_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int32_t position = first + static_cast<int32_t>(16 * at.warp + 8 * half + at.row);
      load_weights(warp, weight, half, position, is_exact(p.cache, context, position));
    }
    scale_weights(weight, false, shared.exchange, warp, at);
    tell_weights(shared.exchange.weight, weight, at);
    sync_block();
    mix_exact_quarter<Config>(warp.mix, shared.exchange, p.cache, context, sequence, shared.work.head, first, at);
  }

  static KVCC_DEVICE void load_weights(const Warp& warp, float (&weight)[kBlockTiles][4], int half, int32_t position,
                                       bool visible) {
    KVCC_UNROLL
    for (int i = 0; i < kBlockTiles * 2; ++i) {
      weight[i / 2][2 * half + i % 2] = visible ? load<Config::kDtype>(warp.weights[i / 2][i % 2], position) : 0.0f;
    }
  }

  /// Weights of the warp's run in the unit of the reference, which is a new one where a warp's weight exceeds the limit
  /// or a token's scale is large.
  static KVCC_DEVICE void scale_weights(float (&weight)[kBlockTiles][4], bool large, Exchange& exchange, Warp& warp,
                                        const Lane& at) {
    float most[kBlockTiles][2];
    bool rises = false;
    KVCC_UNROLL
    for (int i = 0; i < kBlockTiles * 2; ++i) {
      most[i / 2][i % 2] = maximum(magnitude(weight[i / 2][i % 2]), magnitude(weight[i / 2][i % 2 + 2]));
      rises = rises || most[i / 2][i % 2] > warp.limit[i / 2][i % 2];
    }
    const uint32_t asks = ask_warps(exchange.asks, rises, large && warp.weight_exponent > 0, at);
    if (asks != 0) [[unlikely]] {
      if ((asks & kAsksNoFactor) != 0) warp.weight_exponent = 0;
      KVCC_UNROLL
      for (int i = 0; i < kBlockTiles * 2; ++i) {
        most[i / 2][i % 2] = maximum_over_rows(most[i / 2][i % 2]);
      }
      tell_warps(exchange.most, most, at);
      sync_block();
      join_warps(most, exchange.most, at, [](float a, float b) { return maximum(a, b); });
      new_units(most, warp);
    }
    KVCC_UNROLL
    for (int j = 0; j < kBlockTiles; ++j) {
      KVCC_UNROLL
      for (int e = 0; e < 4; ++e) {
        weight[j][e] = multiply(weight[j][e], warp.unit[j][e % 2]);
        if constexpr (Values::kChannel) warp.mix.total[j][e % 2] = add(warp.mix.total[j][e % 2], weight[j][e]);
      }
    }
  }

  /// A new reference, the least power of two above the weights so far, less the weights' exponent, and what was
  /// gathered so far in its unit.
  static KVCC_DEVICE void new_units(const float (&most)[kBlockTiles][2], Warp& warp) {
    float factor[kBlockTiles][2];
    KVCC_UNROLL
    for (int j = 0; j < kBlockTiles; ++j) {
      KVCC_UNROLL
      for (int q = 0; q < 2; ++q) {
        const float all = maximum(most[j][q], multiply(0.5f, warp.limit[j][q]));
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
    warp.own.each([&](float& x, int j, int, int e) { x = multiply(x, factor[j][e % 2]); });
  }

  static KVCC_DEVICE void store(const Params& p, const Work& work, const Block& block, const QuarterMix<D>& mix,
                                const Lane& at) {
    const int64_t first_row = work.row(0, p.cache.heads, p.group);
    const int64_t rows = static_cast<int64_t>(p.cache.heads) * p.group;  // of one sequence
    float* const to = p.splits == 1 ? p.out + block.z * rows * D
                                    : p.partial + (static_cast<int64_t>(block.z) * p.splits + block.x) * rows * D;
    each_sum(mix, work.queries, at, [&](int query, int channel, float sum, int j, int q) {
      // In two steps: sums may be small.
      const int32_t unit = static_cast<int32_t>(maximum(mix.reference[j][q], -120.0f));
      to[(first_row + query) * D + channel] =
          multiply(multiply(sum, power_of_two(unit / 2)), power_of_two(unit - unit / 2));
    });
  }
};

}  // namespace kvcc::device
