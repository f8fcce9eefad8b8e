// Scores of one head's tiles: queries turned back by the tile's base, keys decoded and turned by their slot, products.
//
// Errors of a score, relative to multiplier * sum over channels of |q| (|scale| + |zero|), norms of rotary pairs taken:
//   f32  2^-20: roundings of f32 sums and products, and of the f32 tables;
//   i16  2^-11 (2^-9 with outliers): levels are kept to 1/32767 (1/8191) of the greatest, keys to 1/22900 of what a
//        channel can hold, cosines to 2^-16, queries so that the products of a 32-bit lane cannot overflow.
// i16 serves scales of channels and codes up to 4 bits; others, and heads whose constants leave it, are f32.
#if defined(KVCC_KERNELS_CPU_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_KEYS_INL_H_
#undef KVCC_KERNELS_CPU_KEYS_INL_H_
#else
#define KVCC_KERNELS_CPU_KEYS_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/float_scores-inl.h"
#include "kernels/cpu/outliers-inl.h"
#include "kernels/cpu/quads-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

constexpr int kMaxQueries = KVCC_MMA_MAX_GROUP_TILE;

/// What a block holds of its keys and queries. Orders of 16: e = 4 t + g as in decode-inl.h.
struct alignas(64) KeyScratch {
  float cosine[32 * kMaxHeadDim],
      sine[32 * kMaxHeadDim];                           ///< halves [bh 16, octet, second, e]; pairs [bh 16, octet, e]
  float scale[4 * kMaxHeadDim], zero[4 * kMaxHeadDim];  ///< [octet, second, e], or [bh, e] on the token axis
  float query[kMaxQueries * kMaxHeadDim];               ///< times the multiplier
  float turned[kMaxQueries * kMaxHeadDim];              ///< turned back by the base of block `base`
  float spread[4 * kMaxHeadDim * kMaxQueries];          ///< [octet, second, query, e]; i16 [octet, query, e, second]
  float extra[kMaxQueries * kPage];                     ///< what outliers add that i16 does not hold
  OutlierTables outliers;
#if KVCC_CPU_I16
  alignas(64) int16_t shorts[32];                  ///< levels
  alignas(64) int16_t constants[8 * kMaxHeadDim];  ///< [octet, 2, e, second]: scales, zero-points
  int16_t turns[64 * kMaxHeadDim];                 ///< [bh, octet, 2, e, second]: cosines, sines
  float scaled[kMaxQueries * kMaxHeadDim];         ///< queries in units of the keys' channels and the scores'
  float back[kMaxHeadDim];                         ///< what a unit of the key is worth, by channel
#endif
  // What of the above is there already: blocks of a call share its tables, and a thread's blocks follow one another on
  // a head, so that its constants are made once and not for each part of the context.
  struct {
    int32_t head = -1;               ///< of scale, zero, outliers, shorts, constants and back
    bool short_head = false;         ///< that head is read in i16
    float level_unit = 1;            ///< of that head
    const void* query = nullptr;     ///< first of the rows in `query`
    const void* prepared = nullptr;  ///< first of the rows in `scaled`
    float score_unit[kMaxQueries] = {};
    bool turns = false, short_turns = false;
  } kept;
};

/// What is fixed over a block's tiles.
struct KeyShape {
  int head_dim, octets, rotary, rope, queries;
  bool by_token;
};

/// Tiles of one head's keys, against the queries of a block.
class Keys {
 public:
  /// `query`: of the block's first query head. multiplier: what scores are multiplied by.
  template <class Config>
  Keys(const Config& config, const KvccCache& cache, const KvccRope& rope, const KvccCpuTables& tables,
       const Work& work, const void* query, float multiplier, KeyScratch& scratch)
      : cache_(cache),
        rope_(rope),
        tables_(tables),
        work_(work),
        s_(scratch),
        bits_(config.key().bits(cache.layer, work.head)),
        levels_(config.key().levels(cache.layer, work.head)),
        sparse_(config.key().sparse() != KVCC_SPARSE_NONE && cache.sparse_capacity > 0),
        pages_(config.key(), cache, work.sequence, work.head, bits_) {
    const int d = config.key().head_dim();
    shape_ = {d,
              d / 8,
              config.rope() == KVCC_ROPE_NONE ? 0 : config.rotary_dim(),
              config.rope(),
              work.queries,
              config.key().axis() == KVCC_AXIS_TOKEN};
    if (s_.kept.query != query) {
      for (int64_t i = 0; i < int64_t{work.queries} * d; ++i) {
        s_.query[i] = load_element(config.dtype(), query, i) * multiplier;
      }
      s_.kept.query = query;
      s_.kept.prepared = nullptr;
    }
    if (work.page < work.page_end) prepare();
  }

  /// Scores [queries, 64] of page i; those of slots that are not visible are unspecified.
  void score_page(int32_t i, TileScratch& tile, float* HWY_RESTRICT scores) {
#if KVCC_CPU_I16
    if (shorts_) return score_short_page(i, tile, scores);
#endif
    const PageParts parts = pages_.at(i), ahead = pages_.at(std::min(i + 1, work_.page_end - 1));
    prefetch(ahead, records_, shape_.by_token);
    decode(bits_, parts.codes, shape_.head_dim, levels_, nullptr, tile, ahead.codes);
    block_ = i + cache_.sink / KVCC_ROPE_BLOCK;
    if (shape_.by_token) fill_token_scales(parts, work_.context.slots(i));
    if (sparse_) read_outliers(parts, tile);
    turn_and_spread(block_);
    const bool by_token = shape_.by_token;
    const FloatKeys k{tile.floats,    s_.scale,          s_.zero,           s_.cosine,
                      s_.sine,        s_.spread,         shape_.octets,     shape_.rotary,
                      shape_.queries, by_token ? 0 : 32, by_token ? 0 : 16, by_token ? 16 : 0};
    if (shape_.rope == KVCC_ROPE_HALF) return score_floats_all<true>(k, scores);
    score_floats_all<false>(k, scores);
  }

  /// Scores of exact position p, [queries] at the given stride.
  void score_exact(int32_t p, float* scores, int stride) {
    const int d = shape_.head_dim, half = shape_.rotary / 2;
    turn(p / KVCC_ROPE_BLOCK);
    const uint16_t* row = exact_row(cache_, work_.sequence, work_.head, d, p);
    HWY_ALIGN float key[kMaxHeadDim];
    load_halves(row, d, key);
    const float* cosine = tables_.relative_cosine + int64_t{p % KVCC_ROPE_BLOCK} * half;
    const float* sine = tables_.relative_sine + int64_t{p % KVCC_ROPE_BLOCK} * half;
    const hn::CappedTag<float, 8> d8;  // divides halves, multiples of 8
    if (shape_.rope == KVCC_ROPE_HALF) {
      for (int i = 0; i < half; i += static_cast<int>(hn::MaxLanes(d8))) {
        const auto x = hn::LoadU(d8, key + i), y = hn::LoadU(d8, key + half + i);
        const auto c = hn::LoadU(d8, cosine + i), s = hn::LoadU(d8, sine + i);
        hn::StoreU(hn::Sub(hn::Mul(x, c), hn::Mul(y, s)), d8, key + i);
        hn::StoreU(hn::Add(hn::Mul(y, c), hn::Mul(x, s)), d8, key + half + i);
      }
    } else {
      for (int i = 0; i < half; ++i) {
        const float first = key[2 * i], second = key[2 * i + 1];
        key[2 * i] = first * cosine[i] - second * sine[i];
        key[2 * i + 1] = second * cosine[i] + first * sine[i];
      }
    }
    const DF df;
    for (int g = 0; g < work_.queries; ++g) {
      VF sum = hn::Zero(df);
      for (int c = 0; c < d; c += kLanes) {
        sum = hn::MulAdd(hn::Load(df, key + c), hn::Load(df, s_.turned + g * d + c), sum);
      }
      scores[g * stride] = hn::GetLane(hn::SumOfLanes(df, sum));
    }
  }

 private:
  /// Constants of the head, the tables' turns and the queries, unless the scratch has them.
  void prepare() {
    auto& kept = s_.kept;
    if (kept.head != work_.head) {
      kept.short_head = false;
      kept.level_unit = 1;
      kept.prepared = nullptr;
#if KVCC_CPU_I16
      kept.short_head =
          tables_.arithmetic == KVCC_ARITHMETIC_I16 && bits_ <= 4 && !shape_.by_token && fill_shorts(kept.level_unit);
#endif
      if (!kept.short_head && !shape_.by_token) fill_scales();
      if (sparse_ && !shape_.by_token) {
        s_.outliers.set_channels(cache_, work_.head, shape_.head_dim, kept.level_unit);
      }
      kept.head = work_.head;
    }
    shorts_ = kept.short_head;
    level_unit_ = kept.level_unit;
#if KVCC_CPU_I16
    quads_ = shorts_ && !sparse_ && quads_serve_keys(shape_.head_dim, shape_.rope, shape_.rotary);
#endif
    bool& turns = shorts_ ? kept.short_turns : kept.turns;
    if (!turns) {
#if KVCC_CPU_I16
      if (shorts_) fill_short_turns();
#endif
      if (!shorts_) fill_turns();
      turns = true;
    }
#if KVCC_CPU_I16
    if (shorts_ && kept.prepared != kept.query) {
      prepare_short_queries();
      kept.prepared = kept.query;
    }
#endif
  }
  int element_channel(int octet, int second, int e) const { return octet * 8 + e / 4 * 2 + second; }

  /// Cosines and sines of the 64 slots, in the order of the levels.
  void fill_turns() {
    const int half = shape_.rotary / 2, first = cache_.sink % KVCC_ROPE_BLOCK;
    if (half == 0) return;
    const bool pairs = shape_.rope == KVCC_ROPE_INTERLEAVED;
    float *cosine = s_.cosine, *sine = s_.sine;
    for (int bh = 0; bh < 16; ++bh) {
      for (int i = 0; i < half; i += pairs ? 4 : 8) {
        for (int second = 0; second < (pairs ? 1 : 2); ++second, cosine += 16, sine += 16) {
          for (int g = 0; g < 4; ++g) {
            const int64_t at = int64_t{first + 4 * bh + g} * half + i + second;
            for (int t = 0; t < 4; ++t) {
              cosine[4 * t + g] = tables_.relative_cosine[at + (pairs ? t : 2 * t)];
              sine[4 * t + g] = tables_.relative_sine[at + (pairs ? t : 2 * t)];
            }
          }
        }
      }
    }
  }

  float scale_of(int channel) const { return channel_scale(cache_, work_.head, shape_.head_dim, channel); }
  float zero_of(int channel) const { return channel_zero(cache_, work_.head, shape_.head_dim, channel); }
  void fill_scales() {
    for (int i = 0; i < 4 * shape_.head_dim; ++i) {
      const int channel = element_channel(i / 32, i / 16 % 2, i % 16);
      s_.scale[i] = scale_of(channel);
      s_.zero[i] = zero_of(channel);
    }
  }
  void fill_token_scales(const PageParts& parts, const Slots& slots) {
    HWY_ALIGN float scale[kPage], zero[kPage];
    load_ranges(parts.ranges, slots, scale, zero);
    for (int token = 0; token < kPage; ++token) {
      for (int t = 0; t < 4; ++t) {
        s_.scale[token / 4 * 16 + 4 * t + token % 4] = scale[token];
        s_.zero[token / 4 * 16 + 4 * t + token % 4] = zero[token];
      }
    }
    if (sparse_) s_.outliers.set(scale, zero, kPage, level_unit_);
  }

  /// Queries turned back by the base of a block of 64 positions.
  void turn(int32_t block) {
    if (shape_.rotary == 0) block = 0;
    if (block == base_) return;
    base_ = block;
    const int d = shape_.head_dim, half = shape_.rotary / 2;
    const float* cosine = rope_.base_cosine + int64_t{block} * half;
    const float* sine = rope_.base_sine + int64_t{block} * half;
    const hn::CappedTag<float, 8> d8;
    for (int g = 0; g < work_.queries; ++g) {
      const float* HWY_RESTRICT q = s_.query + g * d;
      float* HWY_RESTRICT to = s_.turned + g * d;
      for (int i = 0; i < half; i += static_cast<int>(hn::MaxLanes(d8))) {
        const auto c = hn::LoadU(d8, cosine + i), s = hn::LoadU(d8, sine + i);
        if (shape_.rope == KVCC_ROPE_HALF) {
          const auto x = hn::LoadU(d8, q + i), y = hn::LoadU(d8, q + half + i);
          hn::StoreU(hn::MulAdd(y, s, hn::Mul(x, c)), d8, to + i);
          hn::StoreU(hn::NegMulAdd(x, s, hn::Mul(y, c)), d8, to + half + i);
        } else {
          auto x = hn::Undefined(d8), y = hn::Undefined(d8);
          hn::LoadInterleaved2(d8, q + 2 * i, x, y);
          hn::StoreInterleaved2(hn::MulAdd(y, s, hn::Mul(x, c)), hn::NegMulAdd(x, s, hn::Mul(y, c)), d8, to + 2 * i);
        }
      }
      std::copy(q + 2 * half, q + d, to + 2 * half);
    }
  }
  /// The same, in the order of the levels.
  void turn_and_spread(int32_t block) {
    if (shape_.rotary == 0) block = 0;
    if (block == spread_base_) return;
    spread_base_ = block;
    turn(block);
    const int d = shape_.head_dim;
    float* to = s_.spread;
    for (int octet = 0; octet < shape_.octets; ++octet) {
      for (int second = 0; second < 2; ++second) {
        for (int g = 0; g < work_.queries; ++g) {
          for (int t = 0; t < 4; ++t, to += 4) {
            store_four(s_.turned[g * d + 8 * octet + 2 * t + second], to);
          }
        }
      }
    }
  }

  /// Outliers over the levels; whether any went to `extra`.
  bool read_outliers(const PageParts& parts, TileScratch& tile) {
    records_ = parts.ends[mma::kClasses - 1];
    const int capacity = cache_.sparse_capacity, d = shape_.head_dim;
    if (!shorts_) {
      const auto none = [](int, int, float) {};
      if (shape_.by_token) {
        write_outliers<mma::Tensor::key, false, true>(parts, capacity, d, s_.outliers, tile, none);
      } else {
        write_outliers<mma::Tensor::key, false, false>(parts, capacity, d, s_.outliers, tile, none);
      }
      return false;
    }
    bool any = false;
#if KVCC_CPU_I16
    const auto rest = [&](int token, int channel, float missing) {
      if (!any) std::memset(s_.extra, 0, sizeof(float) * work_.queries * kPage);
      any = true;
      add_missing(token, channel, missing);
    };
    write_outliers<mma::Tensor::key, true, false>(parts, capacity, d, s_.outliers, tile, rest);
#endif
    return any;
  }
  /// missing * <turned query, RoPE_slot(unit vector of the channel)>.
  HWY_NOINLINE void add_missing(int token, int channel, float missing) {
    const int d = shape_.head_dim, half = shape_.rotary / 2;
    if (channel >= d) return;
    turn(block_);
    float own = missing, other = 0;
    int partner = channel;
    if (channel < 2 * half) {
      const bool pairs = shape_.rope == KVCC_ROPE_INTERLEAVED;
      const bool second = pairs ? channel % 2 == 1 : channel >= half;
      partner = pairs ? channel ^ 1 : second ? channel - half : channel + half;
      const int64_t at = int64_t{cache_.sink % KVCC_ROPE_BLOCK + token} * half + (pairs ? channel / 2 : channel % half);
      own = missing * tables_.relative_cosine[at];
      other = (second ? -missing : missing) * tables_.relative_sine[at];
    }
    for (int g = 0; g < work_.queries; ++g) {
      s_.extra[g * kPage + token] += own * s_.turned[g * d + channel] + other * s_.turned[g * d + partner];
    }
  }

#if KVCC_CPU_I16
  /// 16-bit constants; false where they do not serve.
  bool fill_shorts(float& level_unit) {
    if (!make_shorts(levels_, bits_, sparse_, s_.shorts, level_unit)) return false;
    const int d = shape_.head_dim, half = shape_.rotary / 2;
    const bool pairs = shape_.rope == KVCC_ROPE_INTERLEAVED;
    HWY_ALIGN float scale[kMaxHeadDim], zero[kMaxHeadDim], back[kMaxHeadDim];
    const float* HWY_RESTRICT scales = cache_.scale + static_cast<ptrdiff_t>(work_.head) * d;
    const float* HWY_RESTRICT zeros = cache_.zero + static_cast<ptrdiff_t>(work_.head) * d;
    const float widest = level_unit * 32767.0f;
    bool small = true;
    for (int c = 0; c < d; ++c) {  // what channels can hold, outliers included
      scale[c] = read_scale(scales[c]);
      zero[c] = zeros[c];
      back[c] = widest * scale[c] + std::fabs(zero[c]);
      small &= back[c] < 1e30f;
    }
    if (!small) {
      level_unit = 1;
      return false;
    }
    for (int i = 0; i < half; ++i) {  // rotary pairs share a unit
      float &a = back[pairs ? 2 * i : i], &b = back[pairs ? 2 * i + 1 : i + half];
      a = b = std::max(a, b);
    }
    const float level = level_unit * 32768.0f;
    for (int c = 0; c < d; ++c) {
      const float inverse = 0.69f * 32767.0f / std::max(back[c], 1e-30f);
      scale[c] *= level * inverse;
      zero[c] *= inverse;
      s_.back[c] = (c < 2 * half ? 32768.0f / 32767.0f : 1.0f) / inverse;
    }
    spread_shorts(scale, d, s_.constants, 64);
    spread_shorts(zero, d, s_.constants + 32, 64);
    if (!sparse_ && quads_serve_keys(d, shape_.rope, shape_.rotary)) {
      for (int octet = 0; octet < d / 8; octet += 4) {
        order_quad(s_.constants + octet * 64, 64);
        order_quad(s_.constants + octet * 64 + 32, 64);
      }
    }
    return true;
  }
  void fill_short_turns() {
    const int half = shape_.rotary / 2;
    if (half == 0) return;
    const bool pairs = shape_.rope == KVCC_ROPE_INTERLEAVED;
    const ptrdiff_t first = ptrdiff_t{cache_.sink % KVCC_ROPE_BLOCK} * half;
    HWY_NAMESPACE::fill_short_turns(tables_.relative_cosine + first, half, pairs, 1.0f, s_.turns);
    HWY_NAMESPACE::fill_short_turns(tables_.relative_sine + first, half, pairs, -1.0f, s_.turns + 32);
    for (int octet = 0; quads_ && octet < 16 * half / 8; octet += 4) {
      order_quad(s_.turns + octet * 64, 64);
      order_quad(s_.turns + octet * 64 + 32, 64);
    }
  }
  /// Queries in units of the keys' channels, and the part of them that is not turned.
  void prepare_short_queries() {
    const int d = shape_.head_dim, rotary = shape_.rotary;
    const bool pairs = shape_.rope == KVCC_ROPE_INTERLEAVED;
    float square = 1;  // of what the tables multiply by: the same at every position but for rounding
    for (int i = 0; i < rotary / 2; ++i) {
      const float c = rope_.base_cosine[i], s = rope_.base_sine[i];
      square = std::max(square, c * c + s * s);
    }
    const float factor = 1.001f * std::sqrt(square);
    auto* const to = reinterpret_cast<int16_t*>(s_.spread);
    for (int g = 0; g < work_.queries; ++g) {
      float* q = s_.scaled + g * d;
      for (int c = 0; c < d; ++c) q[c] = s_.query[g * d + c] * s_.back[c];
      const float unit = s_.kept.score_unit[g] = short_query_unit(q, d, rotary, pairs, factor);
      const float inverse = 1.0f / unit;
      for (int c = 0; c < d; ++c) q[c] *= inverse;
      HWY_NAMESPACE::spread_shorts(q + rotary, d - rotary, to + (rotary / 8 * work_.queries + g) * 32,
                                   32 * work_.queries);
      for (int octet = rotary / 8; quads_ && octet < d / 8; octet += 4) {
        order_quad(to + (octet * work_.queries + g) * 32, 32 * work_.queries);
      }
    }
  }
  void turn_short_queries(int32_t block) {
    const int rotary = shape_.rotary;
    const int64_t base = int64_t{block} * (rotary / 2);
    auto* const to = reinterpret_cast<int16_t*>(s_.spread);
    for (int g = 0; g < work_.queries; ++g) {
      const float* const query = s_.scaled + g * shape_.head_dim;
      const float *const cosine = rope_.base_cosine + base, *const sine = rope_.base_sine + base;
      if (quads_) {
        turn_quads(query, cosine, sine, rotary / 2, to + 32 * g, 32 * work_.queries);
      } else {
        turn_shorts(query, cosine, sine, rotary, shape_.rope == KVCC_ROPE_INTERLEAVED, to + 32 * g, 32 * work_.queries);
      }
    }
  }
  ShortKeys short_keys(const int16_t* levels) const {
    return {levels,        s_.constants,  s_.turns,    reinterpret_cast<const int16_t*>(s_.spread),
            shape_.octets, shape_.rotary, shape_.rope, work_.queries};
  }
  /// score_page() in 16 bits.
  void score_short_page(int32_t i, TileScratch& tile, float* HWY_RESTRICT scores) {
    const PageParts parts = pages_.at(i), ahead = pages_.at(std::min(i + 1, work_.page_end - 1));
    prefetch(ahead, records_, false);
    block_ = i + cache_.sink / KVCC_ROPE_BLOCK;
    if (shape_.rotary > 0) turn_short_queries(block_);
    if (quads_) {
      const QuadTile quads{sort_quads(bits_, parts.codes, shape_.head_dim, tile), s_.shorts, bits_, shape_.octets,
                           ahead.codes};
      return score_quads_all(quads, short_keys(nullptr), s_.kept.score_unit, scores);
    }
    decode(bits_, parts.codes, shape_.head_dim, levels_, s_.shorts, tile, ahead.codes);
    const bool extra = sparse_ && read_outliers(parts, tile);
    score_shorts_all(short_keys(tile.shorts), s_.kept.score_unit, scores);
    if (extra) [[unlikely]] {
      for (int j = 0; j < work_.queries * kPage; ++j) scores[j] += s_.extra[j];
    }
  }
#endif

  const KvccCache& cache_;
  const KvccRope& rope_;
  const KvccCpuTables& tables_;
  const Work& work_;
  KeyScratch& s_;
  KeyShape shape_;
  int bits_;
  const float* levels_;
  bool sparse_, shorts_ = false, quads_ = false;
  HeadPages pages_;
  int32_t base_ = -1, spread_base_ = -1;  ///< what the queries are turned back by
  int records_ = 0;                       ///< of the last tile
  int32_t block_ = 0;                     ///< of the page under way
  float level_unit_ = 1;
};

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
