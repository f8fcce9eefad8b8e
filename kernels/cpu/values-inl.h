// Weighted sums of one head's value tiles: codes decoded, multiplied by weights of tokens and gathered over tiles in
// the order of the levels; reduced over t once, at the end.
//
// Errors, relative to the sum over tokens of |weight| (|scale| + |zero|): f32 2^-20, i16 2^-11 (2^-9 with outliers):
// weights are kept to 2^-16 of what a lane of a tile adds up, 16 of them; sums are exact in 32 bits.
#if defined(KVCC_KERNELS_CPU_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_VALUES_INL_H_
#undef KVCC_KERNELS_CPU_VALUES_INL_H_
#else
#define KVCC_KERNELS_CPU_VALUES_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

struct alignas(64) ValueScratch {
  float sum[4 * kMaxHeadDim * kMaxQueries];     ///< [octet, half, query, e]: before scales of channels
  float other[kMaxQueries * kMaxHeadDim];       ///< [query, channel]: exact rows, outliers that i16 does not hold
  float weight[kMaxQueries * kPage];            ///< times the token's scale
  float spread[kMaxQueries * 16 * 16];          ///< [band, second, query, e]; i16 [band, query, e, second]
  alignas(64) float scale[kPage], zero[kPage];  ///< of tokens
  alignas(64) float zeros[kMaxQueries * 16];    ///< sum of weights times what multiplies the zero-point
  OutlierTables outliers;
#if KVCC_CPU_I16
  alignas(64) int16_t shorts[32];
  alignas(64) float unit[kMaxQueries * 16];  ///< of 16-bit weights and levels, by lane of the sums
#endif
};

/// f32 sums of queries [first, first + kQueries).
template <int kQueries>
HWY_NOINLINE void mix_floats(int octets, int queries, int first, const ValueScratch& s,
                             const float* HWY_RESTRICT levels, float* HWY_RESTRICT sums) {
  const DF d;
  for (int octet = 0; octet < octets; ++octet) {
    for (int v = 0; v < 16; v += kLanes) {
      VF sum[2][kQueries];
      float* to = sums + (octet * 2 * queries + first) * 16 + v;
      KVCC_CPU_UNROLL
      for (int h = 0; h < 2; ++h) {
        KVCC_CPU_UNROLL
        for (int g = 0; g < kQueries; ++g) sum[h][g] = hn::Load(d, to + (h * queries + g) * 16);
      }
      for (int band = 0; band < 8; ++band) {
        const float* from = levels + (band * octets + octet) * 64 + v;
        const float* weight = s.spread + (band * 2 * queries + first) * 16 + v;
        KVCC_CPU_UNROLL
        for (int second = 0; second < 2; ++second) {
          const VF a = hn::Load(d, from + second * 16), b = hn::Load(d, from + 32 + second * 16);
          KVCC_CPU_UNROLL
          for (int g = 0; g < kQueries; ++g) {
            const VF w = hn::Load(d, weight + (second * queries + g) * 16);
            sum[0][g] = hn::MulAdd(a, w, sum[0][g]);
            sum[1][g] = hn::MulAdd(b, w, sum[1][g]);
          }
        }
      }
      KVCC_CPU_UNROLL
      for (int h = 0; h < 2; ++h) {
        KVCC_CPU_UNROLL
        for (int g = 0; g < kQueries; ++g) hn::Store(sum[h][g], d, to + (h * queries + g) * 16);
      }
    }
  }
}

/// Weighted sums of one head's values, for the queries of a block.
class Values {
 public:
  template <class Tensor>
  Values(const Tensor& tensor, const KvccCache& cache, const KvccCpuTables& tables, const Work& work,
         ValueScratch& scratch)
      : cache_(cache),
        work_(work),
        s_(scratch),
        head_dim_(tensor.head_dim()),
        bits_(tensor.bits(cache.layer, work.head)),
        levels_(tensor.levels(cache.layer, work.head)),
        sparse_(tensor.sparse() != KVCC_SPARSE_NONE && cache.sparse_capacity > 0),
        by_token_(tensor.axis() == KVCC_AXIS_TOKEN),
        pages_(tensor, cache, work.sequence, work.head, bits_) {
    std::memset(s_.sum, 0, sizeof(float) * 4 * static_cast<size_t>(head_dim_ * work.queries));
    std::memset(s_.other, 0, sizeof(float) * static_cast<size_t>(head_dim_ * work.queries));
    std::memset(s_.zeros, 0, sizeof s_.zeros);
#if KVCC_CPU_I16
    shorts_ = tables.arithmetic == KVCC_ARITHMETIC_I16 && bits_ <= 4 && fill_shorts();
    quads_ = shorts_ && !sparse_ && quads_serve_values(head_dim_);
#endif
    (void)tables;
    if (sparse_ && !by_token_) s_.outliers.set_channels(cache, work.head, head_dim_, level_unit_);
  }

  /// Adds page i. weights [queries, 64], finite, 0 where a slot is not visible.
  void add_page(int32_t i, TileScratch& tile, const float* HWY_RESTRICT weights) {
#if KVCC_CPU_I16
    if (shorts_) return add_short_page(i, tile, weights);
#endif
    const PageParts parts = pages_.at(i), ahead = pages_.at(std::min(i + 1, work_.page_end - 1));
    prefetch(ahead, records_, by_token_);
    decode(bits_, parts.codes, head_dim_, levels_, nullptr, tile, ahead.codes);
    weigh(parts, work_.context.slots(i), weights);
    if (sparse_) add_outliers(parts, tile, weights);
    const int queries = work_.queries;
    for (int g = 0; g < queries; ++g) {
      for (int token = 0; token < kPage; ++token) {
        const int band = token / 8, second = token % 2, t = token % 8 / 2;
        store_four(s_.weight[g * kPage + token], s_.spread + ((band * 2 + second) * queries + g) * 16 + 4 * t);
      }
    }
    for (int first = 0; first < queries; first += 4) {
      with_queries(queries - first, [&](auto n) {
        mix_floats<decltype(n)::value>(head_dim_ / 8, queries, first, s_, tile.floats, s_.sum);
      });
    }
  }

  static constexpr int kPagesAtOnce = 1;
  void add_pages(int32_t i, int, TileScratch& tile, const float* HWY_RESTRICT weights) { add_page(i, tile, weights); }

  /// Adds exact position p, weights [queries] at the given stride.
  void add_exact(int32_t p, const float* weights, int stride) {
    const DF d;
    const uint16_t* row = exact_row(cache_, work_.sequence, work_.head, head_dim_, p);
    HWY_ALIGN float value[kMaxHeadDim];
    load_halves(row, head_dim_, value);
    for (int g = 0; g < work_.queries; ++g) {
      const VF w = hn::Set(d, weights[g * stride]);
      float* to = s_.other + g * head_dim_;
      for (int c = 0; c < head_dim_; c += kLanes) {
        hn::StoreU(hn::MulAdd(w, hn::Load(d, value + c), hn::LoadU(d, to + c)), d, to + c);
      }
    }
  }

  /// Everything added so far to query g, times factor.
  void scale(int g, float factor) {
    const DF d;
    const VF f = hn::Set(d, factor);
    for (int i = 0; i < head_dim_ / 4; ++i) {
      for (int v = 0; v < 16; v += kLanes) {
        float* to = s_.sum + (i * work_.queries + g) * 16 + v;
        hn::Store(hn::Mul(hn::Load(d, to), f), d, to);
      }
    }
    float* other = s_.other + g * head_dim_;
    for (int c = 0; c < head_dim_; c += kLanes) hn::Store(hn::Mul(hn::Load(d, other + c), f), d, other + c);
    hn::Store(hn::Mul(hn::Load(d, s_.zeros + 16 * g), f), d, s_.zeros + 16 * g);
  }

  /// Sums of query g, [head_dim].
  void finish(int g, float* HWY_RESTRICT out) const {
    const DF d;
    const float zeros = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, s_.zeros + 16 * g)));
    HWY_ALIGN float sum[kMaxHeadDim];
    const float* from = s_.sum + 16 * g;
    for (int c = 0; c < head_dim_; c += 4, from += 16 * work_.queries) {
      for (int i = 0; i < 4; ++i) sum[c + i] = from[i] + from[4 + i] + (from[8 + i] + from[12 + i]);
    }
    const float* other = s_.other + g * head_dim_;
    if (by_token_) {
      for (int c = 0; c < head_dim_; ++c) out[c] = sum[c] + zeros + other[c];
    } else {
      for (int c = 0; c < head_dim_; ++c) out[c] = std::fma(sum[c], scale_of(c), zeros * zero_of(c)) + other[c];
    }
  }

 private:
  float scale_of(int channel) const { return channel_scale(cache_, work_.head, head_dim_, channel); }
  float zero_of(int channel) const { return channel_zero(cache_, work_.head, head_dim_, channel); }

  /// Weights times scales of tokens; what multiplies zero-points.
  void weigh(const PageParts& parts, const Slots& slots, const float* HWY_RESTRICT weights) {
    const DF d;
    if (by_token_) {
      load_ranges(parts.ranges, slots, s_.scale, s_.zero);
      if (sparse_) s_.outliers.set(s_.scale, s_.zero, kPage, level_unit_);
    }
    for (int g = 0; g < work_.queries; ++g) {
      VF sum = hn::Load(d, s_.zeros + 16 * g);
      KVCC_CPU_UNROLL
      for (int i = 0; i < kPage; i += kLanes) {
        const VF w = hn::LoadU(d, weights + g * kPage + i);
        sum = by_token_ ? hn::MulAdd(w, hn::Load(d, s_.zero + i), sum) : hn::Add(w, sum);
        if (!shorts_) hn::Store(by_token_ ? hn::Mul(w, hn::Load(d, s_.scale + i)) : w, d, s_.weight + g * kPage + i);
      }
      hn::Store(sum, d, s_.zeros + 16 * g);
    }
  }
  void add_outliers(const PageParts& parts, TileScratch& tile, const float* HWY_RESTRICT weights) {
    const auto rest = [&](int token, int channel, float missing) {
      if (channel < head_dim_) add_missing(token, channel, missing, weights);
    };
    const int capacity = cache_.sparse_capacity;
    records_ = parts.ends[mma::kClasses - 1];
#if KVCC_CPU_I16
    if (shorts_ && by_token_) {
      return write_outliers<mma::Tensor::value, true, true>(parts, capacity, head_dim_, s_.outliers, tile, rest);
    }
    if (shorts_) {
      return write_outliers<mma::Tensor::value, true, false>(parts, capacity, head_dim_, s_.outliers, tile, rest);
    }
#endif
    if (by_token_) {
      return write_outliers<mma::Tensor::value, false, true>(parts, capacity, head_dim_, s_.outliers, tile, rest);
    }
    write_outliers<mma::Tensor::value, false, false>(parts, capacity, head_dim_, s_.outliers, tile, rest);
  }
  HWY_NOINLINE void add_missing(int token, int channel, float missing, const float* HWY_RESTRICT weights) {
    for (int g = 0; g < work_.queries; ++g) s_.other[g * head_dim_ + channel] += weights[g * kPage + token] * missing;
  }

#if KVCC_CPU_I16
  bool fill_shorts() { return make_shorts(levels_, bits_, sparse_, s_.shorts, level_unit_); }
  /// Weights to 16 bits and spread, in s_.spread; what their units are worth in s_.unit.
  void spread_short_weights(const float* HWY_RESTRICT weights) {
    auto* const spread = reinterpret_cast<int16_t*>(s_.spread);
    const float* const scale = by_token_ ? s_.scale : nullptr;
    const ptrdiff_t stride = 32 * work_.queries;
    for (int g = 0; g < work_.queries; ++g) {
      const ScaledWeights scaled(weights + g * kPage, scale);
      const __m512 units = short_weight_units(scaled);
      int16_t* const to = spread + 32 * g;
      const __m512 by_lane =
          quads_ ? spread_weights<true>(scaled, units, to, stride) : spread_weights<false>(scaled, units, to, stride);
      _mm512_store_ps(s_.unit + 16 * g, _mm512_mul_ps(by_lane, _mm512_set1_ps(level_unit_)));
    }
  }
  /// add_page() in 16 bits.
  void add_short_page(int32_t i, TileScratch& tile, const float* HWY_RESTRICT weights) {
    const PageParts parts = pages_.at(i), ahead = pages_.at(std::min(i + 1, work_.page_end - 1));
    const uint32_t* words = nullptr;
    const int octets = head_dim_ / 8;
    prefetch(ahead, records_, by_token_);
    if (quads_) {
      words = join_bands(sort_quads(bits_, parts.codes, head_dim_, tile), head_dim_, tile);
    } else {
      decode(bits_, parts.codes, head_dim_, levels_, s_.shorts, tile, ahead.codes);
    }
    weigh(parts, work_.context.slots(i), weights);
    if (sparse_) add_outliers(parts, tile, weights);
    spread_short_weights(weights);
    const auto* const spread = reinterpret_cast<const int16_t*>(s_.spread);
    if (quads_) {
      const QuadTile quads{words, s_.shorts, bits_, octets, ahead.codes};
      return mix_quads_all(quads, spread, work_.queries, s_.unit, s_.sum);
    }
    mix_shorts_all(tile.shorts, spread, octets, work_.queries, s_.unit, s_.sum);
  }
#endif

  const KvccCache& cache_;
  const Work& work_;
  ValueScratch& s_;
  int head_dim_, bits_;
  const float* levels_;
  bool sparse_, by_token_, shorts_ = false, quads_ = false;
  HeadPages pages_;
  float level_unit_ = 1;
  int records_ = 0;  ///< of the last tile
};

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
