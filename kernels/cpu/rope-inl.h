// What readers of every layout do with rotations outside of tiles: queries turned back by the base of a block of 64
// positions, scores of a row that is kept exactly.
#if defined(KVCC_KERNELS_CPU_ROPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_ROPE_INL_H_
#undef KVCC_KERNELS_CPU_ROPE_INL_H_
#else
#define KVCC_KERNELS_CPU_ROPE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// Which channels of a head are turned, and how.
struct Turning {
  int head_dim, rope, rotary;  ///< KVCC_ROPE_…; rotary 0 without RoPE
};

/// query [queries, D] turned back by position 64 block, to `turned`.
inline void turn_back(const Turning& t, const KvccRope& rope, int32_t block, const float* query, int queries,
                      float* turned) {
  const int d = t.head_dim, half = t.rotary / 2;
  const float* cosine = rope.base_cosine + int64_t{block} * half;
  const float* sine = rope.base_sine + int64_t{block} * half;
  const hn::CappedTag<float, 8> d8;
  for (int g = 0; g < queries; ++g) {
    const float* HWY_RESTRICT q = query + g * d;
    float* HWY_RESTRICT to = turned + g * d;
    for (int i = 0; i < half; i += static_cast<int>(hn::MaxLanes(d8))) {
      const auto c = hn::LoadU(d8, cosine + i), s = hn::LoadU(d8, sine + i);
      if (t.rope == KVCC_ROPE_HALF) {
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

/// Scores of queries turned back by the row's block, [queries] at the given stride. cosine, sine [half]: of the row's
/// place in the block.
inline void score_row(const Turning& t, const uint16_t* row, const float* cosine, const float* sine,
                      const float* turned, int queries, float* scores, int stride) {
  const int d = t.head_dim, half = t.rotary / 2;
  HWY_ALIGN float key[256];
  load_halves(row, d, key);
  const hn::CappedTag<float, 8> d8;  // divides halves, multiples of 8
  if (t.rope == KVCC_ROPE_HALF) {
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
  for (int g = 0; g < queries; ++g) {
    VF sum = hn::Zero(df);
    for (int c = 0; c < d; c += kLanes) {
      sum = hn::MulAdd(hn::Load(df, key + c), hn::Load(df, turned + g * d + c), sum);
    }
    scores[g * stride] = hn::GetLane(hn::SumOfLanes(df, sum));
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
