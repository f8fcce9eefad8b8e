// Scores of a tile in f32: decoded keys times scales, turned by their slots, times spread queries.
#if defined(KVCC_KERNELS_CPU_FLOAT_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_FLOAT_SCORES_INL_H_
#undef KVCC_KERNELS_CPU_FLOAT_SCORES_INL_H_
#else
#define KVCC_KERNELS_CPU_FLOAT_SCORES_INL_H_
#endif

#include <cstddef>

#include "kernels/cpu/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

HWY_INLINE VF rotated_first(VF a, VF b, VF c, VF s) { return hn::NegMulAdd(b, s, hn::Mul(a, c)); }
HWY_INLINE VF rotated_second(VF a, VF b, VF c, VF s) { return hn::MulAdd(a, s, hn::Mul(b, c)); }

/// Sums over t: four vectors' worth of 16 elements to 16 tokens.
HWY_INLINE void store_scores(const float* HWY_RESTRICT sums, float* HWY_RESTRICT to) {
  const hn::CappedTag<float, 4> d;
  for (int x = 0; x < 4; ++x, sums += 16) {
    for (int g = 0; g < 4; g += static_cast<int>(hn::MaxLanes(d))) {
      const auto low = hn::Add(hn::Load(d, sums + g), hn::Load(d, sums + 4 + g));
      hn::Store(hn::Add(low, hn::Add(hn::Load(d, sums + 8 + g), hn::Load(d, sums + 12 + g))), d, to + 4 * x + g);
    }
  }
}

/// Where the f32 kernel finds keys: octets of 32 scales and zero-points; strides are 0 along what they do not go by.
struct FloatKeys {
  const float *levels, *scale, *zero, *cosine, *sine, *query;
  ptrdiff_t octets, rotary, queries, by_octet, by_second, by_slots;
};

/// Sums of four tokens' runs (two bands of two halves), kLanes of their 16 elements.
template <int kQueries>
struct FloatSums {
  VF sum[4][kQueries];

  HWY_INLINE FloatSums() {}  // the implicit one would not be of the target (NEON)
  HWY_INLINE void clear() {
    KVCC_CPU_UNROLL
    for (int x = 0; x < 4; ++x) {
      KVCC_CPU_UNROLL
      for (int g = 0; g < kQueries; ++g) sum[x][g] = hn::Zero(DF());
    }
  }
  HWY_INLINE void add(int x, VF key, const float* HWY_RESTRICT query) {
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) sum[x][g] = hn::MulAdd(key, hn::Load(DF(), query + 16 * g), sum[x][g]);
  }
};

HWY_INLINE VF float_key(const float* level, const float* scale, const float* zero) {
  const DF d;
  return hn::MulAdd(hn::Load(d, level), hn::Load(d, scale), hn::Load(d, zero));
}

/// f32 scores [64] of kQueries queries from `first` on.
template <int kQueries, bool kHalves>
HWY_NOINLINE void score_floats(const FloatKeys& k, int first, float* HWY_RESTRICT scores) {
  const DF d;
  const ptrdiff_t band = k.octets * 64, half = k.rotary / 16, turns = kHalves ? 2 * half : k.rotary / 8;
  const ptrdiff_t q_second = k.queries * 16, q_octet = 2 * q_second;
  HWY_ALIGN float sums[kQueries][64];
  for (int part = 0; part < 4; ++part) {
    for (int v = 0; v < 16; v += kLanes) {
      FloatSums<kQueries> s;
      s.clear();
      const float* HWY_RESTRICT level = k.levels + 2 * part * band + v;
      const float* HWY_RESTRICT scale = k.scale + 4 * part * k.by_slots + v;
      const float* HWY_RESTRICT zero = k.zero + 4 * part * k.by_slots + v;
      const float* HWY_RESTRICT query = k.query + first * 16 + v;
      const float* HWY_RESTRICT cosine = k.cosine + 4 * part * turns * 16 + v;
      const float* HWY_RESTRICT sine = k.sine + 4 * part * turns * 16 + v;
      ptrdiff_t octet = 0;
      if constexpr (kHalves) {
        for (ptrdiff_t u = 0; u < half; ++u) {
          KVCC_CPU_UNROLL
          for (int second = 0; second < 2; ++second) {
            const ptrdiff_t at = second * k.by_second, far = half * k.by_octet;
            KVCC_CPU_UNROLL
            for (int x = 0; x < 4; ++x) {
              const float* from = level + x / 2 * band + x % 2 * 32 + second * 16;
              const VF a = float_key(from, scale + at + x * k.by_slots, zero + at + x * k.by_slots);
              const VF b =
                  float_key(from + half * 64, scale + at + far + x * k.by_slots, zero + at + far + x * k.by_slots);
              const VF c = hn::Load(d, cosine + x * turns * 16 + second * 16);
              const VF n = hn::Load(d, sine + x * turns * 16 + second * 16);
              s.add(x, rotated_first(a, b, c, n), query + second * q_second);
              s.add(x, rotated_second(a, b, c, n), query + second * q_second + half * q_octet);
            }
          }
          level += 64, scale += k.by_octet, zero += k.by_octet, query += q_octet, cosine += 32, sine += 32;
        }
        octet = 2 * half;
        level += half * 64, scale += half * k.by_octet, zero += half * k.by_octet, query += half * q_octet;
      } else {
        for (; octet < turns; ++octet) {
          KVCC_CPU_UNROLL
          for (int x = 0; x < 4; ++x) {
            const float* from = level + x / 2 * band + x % 2 * 32;
            const VF a = float_key(from, scale + x * k.by_slots, zero + x * k.by_slots);
            const VF b =
                float_key(from + 16, scale + k.by_second + x * k.by_slots, zero + k.by_second + x * k.by_slots);
            const VF c = hn::Load(d, cosine + x * turns * 16), n = hn::Load(d, sine + x * turns * 16);
            s.add(x, rotated_first(a, b, c, n), query);
            s.add(x, rotated_second(a, b, c, n), query + q_second);
          }
          level += 64, scale += k.by_octet, zero += k.by_octet, query += q_octet, cosine += 16, sine += 16;
        }
      }
      for (; octet < k.octets; ++octet) {
        KVCC_CPU_UNROLL
        for (int second = 0; second < 2; ++second) {
          const ptrdiff_t at = second * k.by_second;
          KVCC_CPU_UNROLL
          for (int x = 0; x < 4; ++x) {
            const float* from = level + x / 2 * band + x % 2 * 32 + second * 16;
            s.add(x, float_key(from, scale + at + x * k.by_slots, zero + at + x * k.by_slots),
                  query + second * q_second);
          }
        }
        level += 64, scale += k.by_octet, zero += k.by_octet, query += q_octet;
      }
      KVCC_CPU_UNROLL
      for (int g = 0; g < kQueries; ++g) {
        KVCC_CPU_UNROLL
        for (int x = 0; x < 4; ++x) hn::Store(s.sum[x][g], d, sums[g] + 16 * x + v);
      }
    }
    for (int g = 0; g < kQueries; ++g) store_scores(sums[g], scores + g * kPage + 16 * part);
  }
}
template <bool kHalves>
HWY_INLINE void score_floats_all(const FloatKeys& k, float* scores) {
  for (int first = 0; first < k.queries; first += 4) {
    float* to = scores + first * kPage;
    with_queries(k.queries - first, [&](auto n) { score_floats<decltype(n)::value, kHalves>(k, first, to); });
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
