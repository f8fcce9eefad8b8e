// 16-bit products straight from codes: levels are looked up in registers where a product takes them, and no tile of
// levels lies in memory.
//
// A quad is one word with the codes of four neighbouring pairs, 0 and 1 in its low half, 2 and 3 in its high half,
// whatever their width. Shifted right by i codes, i = 0 to 3, both halves have a code in their low bits: that of pair
// i / 2 or 2 + i / 2, first or second by i % 2. Shifts leave the pipes alone that multiply (Zen 5; vpmultishiftqb does
// not), and a half-word look-up minds the low bits alone.
//   keys    vector 4 j + i of octets 4 j to 4 j + 3: channels 32 j + 8 (i / 2) + 2 t + i % 2, and 16 more;
//   values  the low or high halves of two bands' quads make one word, so that both codes are of a channel: vector
//           2 b + i % 2 of bands 2 b, 2 b + 1: tokens 16 b + 2 t + i % 2, and 8 more.
// What the products take beside levels lies in this order.
//
// For keys without RoPE or with rotary halves of whole quads, and values; head_dim a multiple of 32. Others go by
// decode_shorts (decode-inl.h).
#if defined(KVCC_KERNELS_CPU_QUADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_QUADS_INL_H_
#undef KVCC_KERNELS_CPU_QUADS_INL_H_
#else
#define KVCC_KERNELS_CPU_QUADS_INL_H_
#endif

#include <cstdint>

#include "kernels/cpu/shorts-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

#if KVCC_CPU_I16

HWY_INLINE bool quads_serve_keys(int head_dim, int rope, int rotary) {
  return head_dim % 32 == 0 && (rotary == 0 || (rope == KVCC_ROPE_HALF && rotary % 64 == 0));
}
HWY_INLINE bool quads_serve_values(int head_dim) { return head_dim % 32 == 0; }

/// Low halves of two vectors' words, and their high halves.
HWY_INLINE __m512i low_sides(__m512i a, __m512i b) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(b, 16));
}
HWY_INLINE __m512i high_sides(__m512i a, __m512i b) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b);
}

/// A tile's words as quads, [half, pair / 4, e].
template <int kBits>
HWY_INLINE const uint32_t* sort_quads(const uint32_t* HWY_RESTRICT tile, int head_dim, TileScratch& scratch) {
  const int words = head_dim * kBits / 16;
  uint32_t* HWY_RESTRICT to = scratch.words;
  if constexpr (kBits == 4) {
    sort_words<word_turn(4)>(tile, words, to);
  } else {
    const uint32_t* HWY_RESTRICT from = scratch.words + 8 * kMaxHeadDim;
    sort_words<word_turn(kBits)>(tile, words, scratch.words + 8 * kMaxHeadDim);
    const auto put = [](uint32_t* at, __m512i quad) HWY_ATTR {  // pairs from bit 0 on
      constexpr int kUp = 16 - 4 * kBits;
      _mm512_store_si512(at, _mm512_mask_blend_epi16(0xaaaaaaaa, quad, _mm512_slli_epi32(quad, kUp)));
    };
    for (int group = 0; group < head_dim / 8; ++group, from += 16 * kBits, to += 64) {  // 16 pairs of a half
      const __m512i a = _mm512_load_si512(from), b = _mm512_load_si512(from + 16);
      put(to, a);
      if constexpr (kBits == 2) {
        put(to + 16, _mm512_srli_epi32(a, 16));
        put(to + 32, b);
        put(to + 48, _mm512_srli_epi32(b, 16));
      } else {  // five pairs a word, and the last in pieces
        const __m512i c = _mm512_load_si512(from + 32), low = _mm512_set1_epi32(0x3ffff);
        const VU last = last_pair(VU{a}, VU{b}, VU{c});
        put(to + 16, _mm512_shldi_epi32(b, _mm512_slli_epi32(a, 2), 6));
        put(to + 32, _mm512_shldi_epi32(c, _mm512_slli_epi32(b, 2), 12));
        put(to + 48, _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(c, 12), low), _mm512_slli_epi32(last.raw, 18)));
      }
    }
  }
  return scratch.words;
}
HWY_INLINE const uint32_t* sort_quads(int bits, const uint32_t* tile, int head_dim, TileScratch& scratch) {
  if (bits == 4) return sort_quads<4>(tile, head_dim, scratch);
  if (bits == 3) return sort_quads<3>(tile, head_dim, scratch);
  return sort_quads<2>(tile, head_dim, scratch);
}
/// Quads of a value's tile by two bands, [half, band / 2, quad, low and high, e].
HWY_INLINE const uint32_t* join_bands(const uint32_t* HWY_RESTRICT words, int head_dim, TileScratch& scratch) {
  const int band = head_dim / 32 * 16;
  uint32_t* HWY_RESTRICT to = scratch.words + 8 * kMaxHeadDim;
  for (int pair = 0; pair < 8; ++pair, words += band) {
    for (int quad = 0; quad < band; quad += 16, words += 16, to += 32) {
      const __m512i a = _mm512_load_si512(words), b = _mm512_load_si512(words + band);
      _mm512_store_si512(to, low_sides(a, b));
      _mm512_store_si512(to + 16, high_sides(a, b));
    }
  }
  return scratch.words + 8 * kMaxHeadDim;
}

/// Four octets of 16-bit pairs, `stride` apart, to the order of quads.
HWY_INLINE void order_quad(int16_t* at, ptrdiff_t stride) {
  const __m512i a = _mm512_load_si512(at), b = _mm512_load_si512(at + stride);
  const __m512i c = _mm512_load_si512(at + 2 * stride), d = _mm512_load_si512(at + 3 * stride);
  _mm512_store_si512(at, low_sides(a, c));
  _mm512_store_si512(at + stride, high_sides(a, c));
  _mm512_store_si512(at + 2 * stride, low_sides(b, d));
  _mm512_store_si512(at + 3 * stride, high_sides(b, d));
}
/// 32 channels to 16 bits and spread, a vector every `stride` numbers.
HWY_INLINE void spread_quad(__m512 low, __m512 high, int16_t* to, ptrdiff_t stride) {
  const __m512i spread = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
  const __m512i all = low_sides(_mm512_cvtps_epi32(low), _mm512_cvtps_epi32(high));
  KVCC_CPU_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m512i lanes = _mm512_add_epi32(spread, _mm512_set1_epi32(i / 2 * 8 + i % 2));
    _mm512_store_si512(to + i * stride, _mm512_permutexvar_epi32(lanes, all));
  }
}
/// Rotary channels of one query (halves), turned back by a base, to 16 bits and spread.
HWY_INLINE void turn_quads(const float* HWY_RESTRICT query, const float* HWY_RESTRICT cosine,
                           const float* HWY_RESTRICT sine, int half, int16_t* HWY_RESTRICT to, ptrdiff_t stride) {
  for (int i = 0; i < half; i += 32, to += 4 * stride) {
    __m512 first[2], second[2];
    KVCC_CPU_UNROLL
    for (int k = 0; k < 2; ++k) {
      const __m512 c = _mm512_loadu_ps(cosine + i + 16 * k), s = _mm512_loadu_ps(sine + i + 16 * k);
      const __m512 x = _mm512_loadu_ps(query + i + 16 * k), y = _mm512_loadu_ps(query + half + i + 16 * k);
      first[k] = _mm512_fmadd_ps(y, s, _mm512_mul_ps(x, c));
      second[k] = _mm512_fnmadd_ps(x, s, _mm512_mul_ps(y, c));
    }
    spread_quad(first[0], first[1], to, stride);
    spread_quad(second[0], second[1], to + half / 8 * stride, stride);
  }
}

/// A tile in quads, and the codes that will be wanted next.
struct QuadTile {
  const uint32_t* words;
  const int16_t* table;  ///< 32 levels, repeated
  int bits, octets;
  const uint32_t* ahead;  ///< [2 head_dim bits]
};

HWY_INLINE __m512i quad_levels(__m512i word, __m512i shift, __m512i table) {
  return _mm512_permutexvar_epi16(_mm512_srlv_epi16(word, shift), table);
}

/// As score_shorts(), with levels from quads.
template <int kQueries>
HWY_NOINLINE void score_quads(const QuadTile& tile, const ShortKeys& k, int first, const float* unit,
                              float* HWY_RESTRICT scores) {
  const ptrdiff_t quads = k.octets / 4, by_octet = k.queries * 32, half = k.rotary / 16;
  const __m512i table = _mm512_load_si512(tile.table);
  alignas(64) __m512i shifts[4];
  KVCC_CPU_UNROLL
  for (int i = 0; i < 4; ++i) shifts[i] = _mm512_set1_epi16(static_cast<int16_t>(i * tile.bits));
  const auto* ahead = reinterpret_cast<const uint8_t*>(tile.ahead);
  const ptrdiff_t ahead_step = 2 * k.octets * tile.bits * 8 / (k.octets - half);  // 64 octets in four parts
  for (int part = 0; part < 4; ++part) {
    ShortSums<kQueries> s;
    KVCC_CPU_UNROLL
    for (int x = 0; x < 4; ++x) {
      KVCC_CPU_UNROLL
      for (int g = 0; g < kQueries; ++g) s.sum[x][g] = _mm512_setzero_si512();
    }
    const uint32_t* HWY_RESTRICT words = tile.words + 2 * part * quads * 16;
    const ptrdiff_t band = quads * 16, other_half = 8 * band;
    const int16_t* HWY_RESTRICT constant = k.constants;
    const int16_t* HWY_RESTRICT query = k.query + first * 32;
    const int16_t* HWY_RESTRICT turn = k.turns + 4 * part * half * 64;
    constexpr int kHeld = kQueries <= 3 ? kQueries : 1;  // as in score_shorts()
    for (ptrdiff_t u = 0; u < half; ++u) {
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + 64);
      ahead += ahead_step;
      const __m512i shift = shifts[u % 4];
      const __m512i sa = load_once(constant), za = load_once(constant + 32);
      const __m512i sb = load_once(constant + half * 64), zb = load_once(constant + half * 64 + 32);
      __m512i qa[kQueries], qb[kHeld];
      KVCC_CPU_UNROLL
      for (int g = 0; g < kQueries; ++g) qa[g] = load_once(query + g * 32);
      KVCC_CPU_UNROLL
      for (int g = 0; g < kHeld; ++g) qb[g] = load_once(query + half * by_octet + g * 32);
      KVCC_CPU_UNROLL
      for (int x = 0; x < 4; ++x) {
        const uint32_t* from = words + x / 2 * band + x % 2 * other_half;
        const __m512i a = short_key(quad_levels(_mm512_load_si512(from), shift, table), sa, za);
        const __m512i b = short_key(quad_levels(_mm512_load_si512(from + half * 4), shift, table), sb, zb);
        const __m512i c = load_once(turn + x * half * 64), n = load_once(turn + x * half * 64 + 32);
        const __m512i first_key = _mm512_sub_epi16(_mm512_mulhrs_epi16(a, c), _mm512_mulhrs_epi16(b, n));
        const __m512i second_key = _mm512_add_epi16(_mm512_mulhrs_epi16(b, c), _mm512_mulhrs_epi16(a, n));
        KVCC_CPU_UNROLL
        for (int g = 0; g < kQueries; ++g) {
          const __m512i q = g < kHeld ? qb[g] : _mm512_load_si512(query + half * by_octet + g * 32);
          s.sum[x][g] = add_products(add_products(s.sum[x][g], first_key, qa[g]), second_key, q);
        }
      }
      constant += 64, query += by_octet, turn += 64;
      if (u % 4 == 3) words += 16;
    }
    words += half * 4, constant += half * 64, query += half * by_octet;
    for (ptrdiff_t octet = 2 * half; octet < k.octets; ++octet) {
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + 64);
      ahead += ahead_step;
      const __m512i shift = shifts[octet % 4], sa = _mm512_load_si512(constant), za = _mm512_load_si512(constant + 32);
      KVCC_CPU_UNROLL
      for (int x = 0; x < 4; ++x) {
        const uint32_t* from = words + x / 2 * band + x % 2 * other_half;
        s.add(x, short_key(quad_levels(_mm512_load_si512(from), shift, table), sa, za), query);
      }
      constant += 64, query += by_octet;
      if (octet % 4 == 3) words += 16;
    }
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) {
      const __m512 tokens = sum_lanes(s.sum[0][g], s.sum[1][g], s.sum[2][g], s.sum[3][g]);
      _mm512_storeu_ps(scores + g * kPage + 16 * part, _mm512_mul_ps(tokens, _mm512_set1_ps(unit[g])));
    }
  }
}

/// As mix_shorts(), with levels from quads by two bands. weights [band / 2, second, query, 32].
template <int kQueries>
HWY_NOINLINE void mix_quads(const QuadTile& tile, const int16_t* HWY_RESTRICT weights, int queries,
                            const float* HWY_RESTRICT unit, float* HWY_RESTRICT sums) {
  const ptrdiff_t quads = tile.octets / 4, by_half = queries * 16, by_second = queries * 32;
  const __m512i table = _mm512_load_si512(tile.table);
  __m512i shift[4];
  KVCC_CPU_UNROLL
  for (int i = 0; i < 4; ++i) shift[i] = _mm512_set1_epi16(static_cast<int16_t>(i * tile.bits));
  const uint32_t* HWY_RESTRICT words = tile.words;
  const auto* ahead = reinterpret_cast<const uint8_t*>(tile.ahead);
  for (int h = 0; h < 2; ++h, words += 3 * quads * 32) {
    for (ptrdiff_t quad = 0; quad < quads; ++quad, words += 32) {
      __m512i sum[4][kQueries];
      KVCC_CPU_UNROLL
      for (int e = 0; e < 4; ++e) {
        KVCC_CPU_UNROLL
        for (int g = 0; g < kQueries; ++g) sum[e][g] = _mm512_setzero_si512();
      }
      const int16_t* HWY_RESTRICT weight = weights;
      const uint32_t* HWY_RESTRICT word = words;
      for (int b = 0; b < 4; ++b, weight += 2 * by_second, word += quads * 32, ahead += 32 * tile.bits) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        const __m512i both[2] = {_mm512_load_si512(word), _mm512_load_si512(word + 16)};
        KVCC_CPU_UNROLL
        for (int second = 0; second < 2; ++second) {
          __m512i w[kQueries];
          KVCC_CPU_UNROLL
          for (int g = 0; g < kQueries; ++g) w[g] = load_once(weight + second * by_second + 32 * g);
          KVCC_CPU_UNROLL
          for (int e = 0; e < 4; ++e) {
            const __m512i level = quad_levels(both[e / 2], shift[e % 2 * 2 + second], table);
            KVCC_CPU_UNROLL
            for (int g = 0; g < kQueries; ++g) sum[e][g] = add_products(sum[e][g], level, w[g]);
          }
        }
      }
      KVCC_CPU_UNROLL
      for (int e = 0; e < 4; ++e) {
        KVCC_CPU_UNROLL
        for (int g = 0; g < kQueries; ++g) {
          float* to = sums + ((4 * quad + e) * 2 + h) * by_half + g * 16;
          const __m512 one = _mm512_load_ps(unit + 16 * g);
          _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[e][g]), one, _mm512_load_ps(to)));
        }
      }
    }
  }
}

/// The two above for any number of queries.
HWY_INLINE void score_quads_all(const QuadTile& tile, const ShortKeys& k, const float* unit, float* scores) {
  for (int first = 0; first < k.queries; first += 4) {
    with_queries(k.queries - first, [&](auto n) {
      score_quads<decltype(n)::value>(tile, k, first, unit + first, scores + first * kPage);
    });
  }
}
HWY_INLINE void mix_quads_all(const QuadTile& tile, const int16_t* weights, int queries, const float* unit,
                              float* sums) {
  for (int first = 0; first < queries; first += 4) {
    with_queries(queries - first, [&](auto n) {
      mix_quads<decltype(n)::value>(tile, weights + first * 32, queries, unit + first * 16, sums + first * 16);
    });
  }
}

#endif  // KVCC_CPU_I16

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
