// The 16-bit fixed-point readers, on AVX-512 with VBMI and VNNI. A 32-bit lane holds two channels of a key or two
// tokens of a value, whose products with 16-bit queries or weights vpdpwssd adds up without rounding; queries and
// weights are scaled so that the sum cannot overflow.
#if defined(KVCC_KERNELS_CPU_SHORTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_SHORTS_INL_H_
#undef KVCC_KERNELS_CPU_SHORTS_INL_H_
#else
#define KVCC_KERNELS_CPU_SHORTS_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "kernels/cpu/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

#if KVCC_CPU_I16

/// A lane's products sum up to less than 2^31 where its factors sum up to this.
constexpr float kMostFactors = 65400.0f;

/// 16-bit levels of one head, repeated to 32, and their unit; false where they have none.
HWY_INLINE bool make_shorts(const float* levels, int bits, bool outliers, int16_t* to, float& unit) {
  float most = 0;
  for (int i = 0; i < 1 << bits; ++i) {
    if (!(std::fabs(levels[i]) < 1e30f)) return false;
    most = std::max(most, std::fabs(levels[i]));
  }
  unit = most > 1e-30f ? most / (outliers ? 8191.0f : 32767.0f) : 1.0f;
  for (int i = 0; i < 32; ++i) to[i] = static_cast<int16_t>(std::lrintf(levels[i % (1 << bits)] / unit));
  return true;
}

/// Four rows of 16-bit pairs to [e, second]: lane t of row g to 4 t + g.
HWY_INLINE void store_turned_rows(__m128i a, __m128i b, __m128i c, __m128i d, int16_t* HWY_RESTRICT to) {
  const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
  const __m128i AB = _mm_unpackhi_epi32(a, b), CD = _mm_unpackhi_epi32(c, d);
  auto* out = reinterpret_cast<__m128i*>(to);
  _mm_store_si128(out, _mm_unpacklo_epi64(ab, cd));
  _mm_store_si128(out + 1, _mm_unpackhi_epi64(ab, cd));
  _mm_store_si128(out + 2, _mm_unpacklo_epi64(AB, CD));
  _mm_store_si128(out + 3, _mm_unpackhi_epi64(AB, CD));
}

/// Rows of 64 slots [half] of cosines or sines to 16 bits in the order of the keys. halves: [bh, octet, e, second];
/// pairs: [bh, octet, e, second] with `low` and `high` before the first and the second.
HWY_INLINE void fill_short_turns(const float* rows, int half, bool pairs, float low, int16_t* HWY_RESTRICT to) {
  const __m256 unit = _mm256_set1_ps(32767.0f);
  for (int bh = 0; bh < 16; ++bh) {
    const float* from = rows + static_cast<ptrdiff_t>(4 * bh) * half;
    if (!pairs) {
      for (int i = 0; i < half; i += 8, to += 64) {
        __m128i row[4];
        KVCC_CPU_UNROLL
        for (int g = 0; g < 4; ++g) {
          const __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + g * half + i), unit));
          row[g] = _mm256_cvtsepi32_epi16(x);
        }
        store_turned_rows(row[0], row[1], row[2], row[3], to);
      }
    } else {
      const __m128 first = _mm_set1_ps(32767.0f * low), second = _mm_set1_ps(32767.0f);
      for (int i = 0; i < half; i += 4, to += 64) {
        __m128i row[4];
        KVCC_CPU_UNROLL
        for (int g = 0; g < 4; ++g) {
          const __m128 x = _mm_loadu_ps(from + g * half + i);
          const __m128i a = _mm_cvtps_epi32(_mm_mul_ps(x, first)), b = _mm_cvtps_epi32(_mm_mul_ps(x, second));
          row[g] = _mm_packs_epi32(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
        }
        store_turned_rows(row[0], row[1], row[2], row[3], to);
      }
    }
  }
}

/// 16 numbers to 16 bits and spread, 8 each to `to` and, unless it is null, to `next`.
HWY_INLINE void spread_octets(__m512 x, int16_t* to, int16_t* next) {
  const __m512i second = _mm512_set_epi32(7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5, 4, 4, 4, 4);
  const __m512i first = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  const __m512i all = _mm512_castsi256_si512(_mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
  _mm512_store_si512(to, _mm512_permutexvar_epi32(first, all));
  if (next != nullptr) _mm512_store_si512(next, _mm512_permutexvar_epi32(second, all));
}

/// Channels to 16 bits and spread, an octet every `stride` numbers.
HWY_INLINE void spread_shorts(const float* HWY_RESTRICT from, int channels, int16_t* HWY_RESTRICT to,
                              ptrdiff_t stride) {
  int c = 0;
  for (; c + 16 <= channels; c += 16, to += 2 * stride) spread_octets(_mm512_loadu_ps(from + c), to, to + stride);
  if (c < channels) spread_octets(_mm512_maskz_loadu_ps(0xff, from + c), to, nullptr);
}

/// Unit of a query in 16 bits, wherever it is turned: what a lane adds up must not overflow. `query` in units of the
/// keys' channels; factor: of the rotary tables.
HWY_INLINE float short_query_unit(const float* HWY_RESTRICT query, int head_dim, int rotary, bool pairs, float factor) {
  const int half = rotary / 2;
  const __m512i even_odd = _mm512_set_epi32(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 turned = _mm256_setzero_ps(), rest = turned, greatest = turned;
  for (int i = 0; i < half; i += 8) {
    __m256 x, y;
    if (pairs) {
      const __m512 both = _mm512_permutexvar_ps(even_odd, _mm512_loadu_ps(query + 2 * i));
      x = _mm512_castps512_ps256(both), y = _mm512_extractf32x8_ps(both, 1);
    } else {
      x = _mm256_loadu_ps(query + i), y = _mm256_loadu_ps(query + half + i);
    }
    const __m256 radius = _mm256_sqrt_ps(_mm256_fmadd_ps(x, x, _mm256_mul_ps(y, y)));
    turned = _mm256_add_ps(turned, radius);
    greatest = _mm256_max_ps(greatest, radius);
  }
  turned = _mm256_mul_ps(turned, _mm256_set1_ps(factor));
  greatest = _mm256_mul_ps(greatest, _mm256_set1_ps(factor));
  for (int c = rotary; c < head_dim; c += 8) {
    const __m256 size = _mm256_and_ps(_mm256_loadu_ps(query + c), no_sign);
    rest = _mm256_add_ps(rest, size);
    greatest = _mm256_max_ps(greatest, size);
  }
  alignas(32) float by_eight[8], others[8], most_of[8];
  _mm256_store_ps(by_eight, turned);
  _mm256_store_ps(others, rest);
  _mm256_store_ps(most_of, greatest);
  float lane[4] = {}, most = 0, all = 0;
  for (int i = 0; i < 8; ++i) {
    lane[pairs ? i % 4 : i / 2] += 1.4143f * by_eight[i];
    lane[i / 2] += others[i];
    most = std::max(most, most_of[i]);
    all += by_eight[i] + others[i];
  }
  for (const float sum : lane) most = std::max(most, sum * (32767.0f / kMostFactors));
  if (!(all < 1e30f)) return all - all;  // NaN: the scores are
  return std::max(most / 32767.0f, 1e-30f);
}

/// Rotary channels of one query, turned back by a base, to 16 bits and spread; octets lie `stride` apart.
HWY_INLINE void turn_shorts(const float* HWY_RESTRICT query, const float* HWY_RESTRICT cosine,
                            const float* HWY_RESTRICT sine, int rotary, bool pairs, int16_t* HWY_RESTRICT to,
                            ptrdiff_t stride) {
  const int half = rotary / 2;
  if (pairs) {
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512 signs = _mm512_castsi512_ps(_mm512_set1_epi64(static_cast<long long>(0x8000000000000000u)));
    for (int i = 0; i < half; i += 8, to += 2 * stride) {
      const __m512 q = _mm512_loadu_ps(query + 2 * i), other = _mm512_permute_ps(q, 0xb1);
      const __m512 c = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(cosine + i)));
      const __m512 s = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(sine + i)));
      spread_octets(_mm512_fmadd_ps(other, _mm512_xor_ps(s, signs), _mm512_mul_ps(q, c)), to, to + stride);
    }
    return;
  }
  int16_t* HWY_RESTRICT second = to + half / 8 * stride;
  for (int i = 0; i < half; i += 16, to += 2 * stride, second += 2 * stride) {
    const bool both = i + 8 < half;
    const __mmask16 mask = both ? 0xffff : 0xff;
    const __m512 c = _mm512_maskz_loadu_ps(mask, cosine + i), s = _mm512_maskz_loadu_ps(mask, sine + i);
    const __m512 x = _mm512_maskz_loadu_ps(mask, query + i), y = _mm512_maskz_loadu_ps(mask, query + half + i);
    spread_octets(_mm512_fmadd_ps(y, s, _mm512_mul_ps(x, c)), to, both ? to + stride : nullptr);
    spread_octets(_mm512_fnmadd_ps(x, s, _mm512_mul_ps(y, c)), second, both ? second + stride : nullptr);
  }
}

/// Sixteen weights of two bands to 16 bits and spread in the order of quads (quads-inl.h).
HWY_INLINE void spread_bands(__m512 x, int16_t* to, int16_t* next) {
  const __m512i first = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
  const __m512i second = _mm512_set_epi32(7, 7, 7, 7, 5, 5, 5, 5, 3, 3, 3, 3, 1, 1, 1, 1);
  const __m512i all = _mm512_cvtps_epi32(x);
  const __m256i upper = _mm256_slli_epi32(_mm512_extracti64x4_epi64(all, 1), 16);
  const __m512i pairs = _mm512_castsi256_si512(_mm256_mask_blend_epi16(0xaaaa, _mm512_castsi512_si256(all), upper));
  _mm512_store_si512(to, _mm512_permutexvar_epi32(first, pairs));
  _mm512_store_si512(next, _mm512_permutexvar_epi32(second, pairs));
}

/// A tile's weights of one query, times the scales of tokens unless null.
struct ScaledWeights {
  __m512 w[4];

  HWY_INLINE ScaledWeights(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT scale) {
    KVCC_CPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm512_loadu_ps(weights + 16 * i);
      if (scale != nullptr) w[i] = _mm512_mul_ps(w[i], _mm512_load_ps(scale + 16 * i));
    }
  }
};

/// What a unit of a query's weights is worth in 16 bits, for tokens 2 t and 2 t + 1 of eight bands, whose products one
/// lane adds up: at the places of these tokens.
HWY_INLINE __m512 short_weight_units(const ScaledWeights& x) {
  __m512 sum = _mm512_add_ps(_mm512_add_ps(_mm512_abs_ps(x.w[0]), _mm512_abs_ps(x.w[1])),
                             _mm512_add_ps(_mm512_abs_ps(x.w[2]), _mm512_abs_ps(x.w[3])));
  sum = _mm512_add_ps(sum, _mm512_shuffle_f32x4(sum, sum, 0x4e));
  sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0xb1));
  return _mm512_max_ps(_mm512_mul_ps(sum, _mm512_set1_ps(1.0f / 32767.0f)), _mm512_set1_ps(1e-30f));
}

/// Weights to 16 bits and spread, a vector every `stride` numbers; returns their units by lane of the sums.
template <bool kQuads>
HWY_INLINE __m512 spread_weights(const ScaledWeights& weights, __m512 units, int16_t* HWY_RESTRICT to,
                                 ptrdiff_t stride) {
  const __m512i by_lane = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
  const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), units);
  KVCC_CPU_UNROLL
  for (int i = 0; i < 4; ++i, to += 2 * stride) {
    const __m512 x = _mm512_mul_ps(weights.w[i], inverse);
    if constexpr (kQuads) {
      spread_bands(x, to, to + stride);
    } else {
      spread_octets(x, to, to + stride);
    }
  }
  return _mm512_permutexvar_ps(by_lane, units);
}

/// sum += a0 b0 + a1 b1 in every 32-bit lane. Highway's target has AVX512_VNNI, but does not name it to the compiler;
/// and where GCC 12 knows the instruction, it copies sums to and fro around it.
HWY_INLINE __m512i add_products(__m512i sum, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(b));
  return sum;
}

/// Sums over t of four vectors of 16 lanes: 16 tokens.
HWY_INLINE __m512 sum_lanes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512 fa = _mm512_cvtepi32_ps(a), fb = _mm512_cvtepi32_ps(b);
  const __m512 fc = _mm512_cvtepi32_ps(c), fd = _mm512_cvtepi32_ps(d);
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(fa, fb, 0x44), _mm512_shuffle_f32x4(fa, fb, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(fc, fd, 0x44), _mm512_shuffle_f32x4(fc, fd, 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

/// Constants of a head's keys and of a block's queries. Octets of 32 numbers, [e, second].
struct ShortKeys {
  const int16_t* levels;
  const int16_t* constants;  ///< [octet, 2, 32]: scales, zero-points
  const int16_t* turns;  ///< [bh, octet, 2, 32]: cosines, sines; side by side, as loads 4 KiB apart hinder each other
  const int16_t* query;
  int octets, rotary, rope, queries;
};

/// Loads once: left alone, GCC would load again at every use.
HWY_INLINE __m512i load_once(const int16_t* HWY_RESTRICT from) {
  __m512i x = _mm512_load_si512(from);
  asm("" : "+v"(x));
  return x;
}

template <int kQueries>
struct ShortSums {
  __m512i sum[4][kQueries];

  HWY_INLINE void add(int x, __m512i key, const int16_t* HWY_RESTRICT query) {
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) {
      sum[x][g] = add_products(sum[x][g], key, _mm512_load_si512(query + g * 32));
    }
  }
};

HWY_INLINE __m512i short_key(__m512i level, __m512i scale, __m512i zero) {
  return _mm512_add_epi16(_mm512_mulhrs_epi16(level, scale), zero);
}
HWY_INLINE __m512i short_key(const int16_t* HWY_RESTRICT level, __m512i scale, __m512i zero) {
  return short_key(_mm512_load_si512(level), scale, zero);
}

/// Scores [64] of kQueries queries, in units of `unit`.
template <int kQueries, bool kHalves>
HWY_NOINLINE void score_shorts(const ShortKeys& k, int first, const float* unit, float* HWY_RESTRICT scores) {
  const ptrdiff_t band = k.octets * 64, by_octet = k.queries * 32;
  const ptrdiff_t half = k.rotary / 16, turns = kHalves ? half : k.rotary / 8;
  for (int part = 0; part < 4; ++part) {
    ShortSums<kQueries> s;
    KVCC_CPU_UNROLL
    for (int x = 0; x < 4; ++x) {
      KVCC_CPU_UNROLL
      for (int g = 0; g < kQueries; ++g) s.sum[x][g] = _mm512_setzero_si512();
    }
    const int16_t* HWY_RESTRICT level = k.levels + 2 * part * band;
    const int16_t* HWY_RESTRICT constant = k.constants;
    const int16_t* HWY_RESTRICT query = k.query + first * 32;
    const int16_t* HWY_RESTRICT turn = k.turns + 4 * part * turns * 64;
    ptrdiff_t octet = 0;
    if constexpr (kHalves) {
      // Measured on Zen 5: from small pages, about one load of 64 bytes a cycle beyond 8 KiB, so this loop waits for
      // loads.
      constexpr int kHeld = kQueries <= 3 ? kQueries : 1;  // of the second half's queries; registers end there
      for (ptrdiff_t u = 0; u < half; ++u) {
        const __m512i sa = load_once(constant), za = load_once(constant + 32);
        const __m512i sb = load_once(constant + half * 64), zb = load_once(constant + half * 64 + 32);
        __m512i qa[kQueries], qb[kHeld];
        KVCC_CPU_UNROLL
        for (int g = 0; g < kQueries; ++g) qa[g] = load_once(query + g * 32);
        KVCC_CPU_UNROLL
        for (int g = 0; g < kHeld; ++g) qb[g] = load_once(query + half * by_octet + g * 32);
        KVCC_CPU_UNROLL
        for (int x = 0; x < 4; ++x) {
          const int16_t* from = level + x / 2 * band + x % 2 * 32;
          const __m512i a = short_key(from, sa, za), b = short_key(from + half * 64, sb, zb);
          const __m512i c = load_once(turn + x * turns * 64), n = load_once(turn + x * turns * 64 + 32);
          const __m512i first_key = _mm512_sub_epi16(_mm512_mulhrs_epi16(a, c), _mm512_mulhrs_epi16(b, n));
          const __m512i second_key = _mm512_add_epi16(_mm512_mulhrs_epi16(b, c), _mm512_mulhrs_epi16(a, n));
          KVCC_CPU_UNROLL
          for (int g = 0; g < kQueries; ++g) {
            const __m512i q = g < kHeld ? qb[g] : _mm512_load_si512(query + half * by_octet + g * 32);
            s.sum[x][g] = add_products(add_products(s.sum[x][g], first_key, qa[g]), second_key, q);
          }
        }
        level += 64, constant += 64, query += by_octet, turn += 64;
      }
      octet = 2 * half;
      level += half * 64, constant += half * 64, query += half * by_octet;
    } else {
      for (; octet < turns; ++octet) {
        const __m512i sa = _mm512_load_si512(constant), za = _mm512_load_si512(constant + 32);
        KVCC_CPU_UNROLL
        for (int x = 0; x < 4; ++x) {
          const __m512i a = short_key(level + x / 2 * band + x % 2 * 32, sa, za), b = _mm512_rol_epi32(a, 16);
          const __m512i c = load_once(turn + x * turns * 64), n = load_once(turn + x * turns * 64 + 32);
          s.add(x, _mm512_add_epi16(_mm512_mulhrs_epi16(a, c), _mm512_mulhrs_epi16(b, n)), query);
        }
        level += 64, constant += 64, query += by_octet, turn += 64;
      }
    }
    for (; octet < k.octets; ++octet) {
      const __m512i sa = _mm512_load_si512(constant), za = _mm512_load_si512(constant + 32);
      KVCC_CPU_UNROLL
      for (int x = 0; x < 4; ++x) s.add(x, short_key(level + x / 2 * band + x % 2 * 32, sa, za), query);
      level += 64, constant += 64, query += by_octet;
    }
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) {
      const __m512 tokens = sum_lanes(s.sum[0][g], s.sum[1][g], s.sum[2][g], s.sum[3][g]);
      _mm512_storeu_ps(scores + g * kPage + 16 * part, _mm512_mul_ps(tokens, _mm512_set1_ps(unit[g])));
    }
  }
}

/// Adds a tile to the sums of kQueries queries, [octet, half, query, e]. weights [band, query, 32], unit [query, 16].
template <int kQueries>
HWY_NOINLINE void mix_shorts(const int16_t* HWY_RESTRICT levels, const int16_t* HWY_RESTRICT weights, int octets,
                             int queries, const float* HWY_RESTRICT unit, float* HWY_RESTRICT sums) {
  const ptrdiff_t band = octets * 64, by_half = queries * 16, by_band = queries * 32;
  __m512 units[kQueries];
  KVCC_CPU_UNROLL
  for (int g = 0; g < kQueries; ++g) units[g] = _mm512_load_ps(unit + 16 * g);
  for (int octet = 0; octet < octets; octet += 2, levels += 128, sums += 4 * by_half) {
    ShortSums<kQueries> s;
    KVCC_CPU_UNROLL
    for (int x = 0; x < 4; ++x) {
      KVCC_CPU_UNROLL
      for (int g = 0; g < kQueries; ++g) s.sum[x][g] = _mm512_setzero_si512();
    }
    const int16_t* HWY_RESTRICT level = levels;
    const int16_t* HWY_RESTRICT weight = weights;
    for (int i = 0; i < 8; ++i, level += band, weight += by_band) {
      KVCC_CPU_UNROLL
      for (int x = 0; x < 4; ++x) s.add(x, _mm512_load_si512(level + 32 * x), weight);
    }
    KVCC_CPU_UNROLL
    for (int x = 0; x < 4; ++x) {
      KVCC_CPU_UNROLL
      for (int g = 0; g < kQueries; ++g) {
        float* to = sums + x * by_half + g * 16;
        _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(s.sum[x][g]), units[g], _mm512_load_ps(to)));
      }
    }
  }
}

/// The two above for any number of queries.
template <bool kHalves>
HWY_INLINE void score_shorts_rope(const ShortKeys& k, const float* unit, float* scores) {
  for (int first = 0; first < k.queries; first += 4) {
    with_queries(k.queries - first, [&](auto n) {
      score_shorts<decltype(n)::value, kHalves>(k, first, unit + first, scores + first * kPage);
    });
  }
}
HWY_INLINE void score_shorts_all(const ShortKeys& k, const float* unit, float* scores) {
  if (k.rope == KVCC_ROPE_HALF) return score_shorts_rope<true>(k, unit, scores);
  score_shorts_rope<false>(k, unit, scores);
}
HWY_INLINE void mix_shorts_all(const int16_t* levels, const int16_t* weights, int octets, int queries,
                               const float* unit, float* sums) {
  for (int first = 0; first < queries; first += 4) {
    with_queries(queries - first, [&](auto n) {
      mix_shorts<decltype(n)::value>(levels, weights + first * 32, octets, queries, unit + first * 16,
                                     sums + first * 16);
    });
  }
}

#endif  // KVCC_CPU_I16

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
