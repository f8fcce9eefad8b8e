#include "tests/bench/cpu_baseline.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/core/error.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/cpu_baseline.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;  // 4, 8 or 16 lanes
using Vec = hn::Vec<F32>;
constexpr F32 kF32;
constexpr int kLanes = hn::MaxLanes(kF32);
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;
constexpr int kRows = kManyRegisters ? 4 : 2;     ///< tokens whose sums are in registers at a time
constexpr int kColumns = kManyRegisters ? 4 : 2;  ///< vectors of output channels likewise

HWY_INLINE Vec Load(const float* p) { return hn::LoadU(kF32, p); }
HWY_INLINE Vec Load(const hwy::float16_t* p) {
  return hn::PromoteTo(kF32, hn::LoadU(hn::Rebind<hwy::float16_t, F32>(), p));
}

// The products of a query with kLanes tokens are kLanes vectors, each to be summed. Steps that halve their number take
// half the lanes from either of two vectors and add the other halves: an addition, a shuffle, one or two blends.

/// Blocks of 128 bits with lanes {a, a, b, b}.
HWY_INLINE Vec AddPairs(Vec a, Vec b) {
  const hn::Repartition<double, F32> d;
  const Vec kept = hn::BitCast(kF32, hn::OddEven(hn::BitCast(d, b), hn::BitCast(d, a)));
  return hn::Add(kept, hn::CombineShiftRightBytes<8>(kF32, b, a));
}
/// Lower half a, upper half b; of vectors with two blocks or more.
HWY_INLINE Vec AddHalves(Vec a, Vec b) {
  return hn::Add(hn::ConcatUpperLower(kF32, b, a), hn::ConcatLowerUpper(kF32, b, a));
}
/// Even blocks a, odd blocks b.
HWY_INLINE Vec AddBlocks(Vec a, Vec b) {
  return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
}
/// Even lanes a, odd lanes b.
HWY_INLINE Vec AddLanes(Vec a, Vec b) { return hn::Add(hn::OddEven(b, a), hn::Shuffle2301(hn::OddEven(a, b))); }

/// Sums of four tokens, those of FourTokens(); and of kLanes / 4 such vectors, tokens in order.
HWY_INLINE Vec AddFour(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = AddPairs(a, b), cd = AddPairs(c, d);
  if constexpr (kLanes == 4) {
    return AddLanes(ab, cd);
  } else {
    return AddHalves(ab, cd);
  }
}
HWY_INLINE Vec AddFours(const Vec* fours) {
  if constexpr (kLanes == 4) return fours[0];
  if constexpr (kLanes == 8) return AddLanes(fours[0], fours[1]);
  if constexpr (kLanes == 16) return AddLanes(AddBlocks(fours[0], fours[2]), AddBlocks(fours[1], fours[3]));
}
/// Token i (0 to 3) of four `four`.
constexpr int FourTokens(int four, int i) {
  if (kLanes == 4) return i % 2 * 2 + i / 2;
  if (kLanes == 8) return i * 2 + four;
  return i / 2 * 8 + four / 2 * 4 + i % 2 * 2 + four % 2;
}

/// scores[g][t] of one tile of N tokens; query [G, D] with multiplier and log2(e) in it. Fetches the next tile as it
/// goes.
template <int G, int D, int N, class T>
HWY_INLINE void Scores(const T* key, const float* query, const T* ahead, float (*scores)[N]) {
  for (int first = 0; first < N; first += kLanes) {
    const char* fetch = reinterpret_cast<const char*>(ahead + first * D);
    Vec fours[G][kLanes / 4];
    for (int four = 0; four < kLanes / 4; ++four) {
      Vec sums[4][G];
      for (int part = 0; part < 4; part += kRows) {
        const T* rows[kRows];
        for (int r = 0; r < kRows; ++r) {
          rows[r] = key + (first + FourTokens(four, part + r)) * D;
          for (size_t i = 0; i < D * sizeof(T); i += 64) hwy::Prefetch(fetch + i);
          fetch += D * sizeof(T);
        }
        for (int c = 0; c < D; c += kLanes) {
          Vec q[G];
          for (int g = 0; g < G; ++g) q[g] = hn::Load(kF32, query + g * D + c);
          for (int r = 0; r < kRows; ++r) {
            const Vec k = Load(rows[r] + c);
            for (int g = 0; g < G; ++g) {
              Vec& sum = sums[part + r][g];
              sum = c == 0 ? hn::Mul(k, q[g]) : hn::MulAdd(k, q[g], sum);
            }
          }
        }
      }
      for (int g = 0; g < G; ++g) fours[g][four] = AddFour(sums[0][g], sums[1][g], sums[2][g], sums[3][g]);
    }
    for (int g = 0; g < G; ++g) hn::Store(AddFours(fours[g]), kF32, scores[g] + first);
  }
}

/// 2^x for x <= 0, about 2 ulp; not below 2^-126.
HWY_INLINE Vec Exp2(Vec x) {
  const hn::RebindToSigned<F32> i32;
  x = hn::Max(x, hn::Set(kF32, -126.0f));
  const Vec whole = hn::Round(x), f = hn::Sub(x, whole);
  Vec y = hn::Set(kF32, 1.5403530393381609954e-4f);
  for (const float c : {1.3333558146428443423e-3f, 9.6181291076284771619e-3f, 5.5504108664821579953e-2f,
                        2.4022650695910071233e-1f, 6.9314718055994530942e-1f, 1.0f}) {
    y = hn::MulAdd(y, f, hn::Set(kF32, c));
  }
  return hn::BitCast(kF32, hn::Add(hn::BitCast(i32, y), hn::ShiftLeft<23>(hn::ConvertTo(i32, whole))));
}

/// The online softmax of G queries.
template <int G, int N>
struct Softmax {
  Vec peak[G], sum[G], scale[G];  ///< sums by lane; scale: what earlier sums are to be multiplied with

  /// Scores of a tile to weights.
  HWY_INLINE void Take(float (*scores)[N]) {
    Vec most[G];
    for (int g = 0; g < G; ++g) most[g] = hn::Load(kF32, scores[g]);
    for (int t = kLanes; t < N; t += kLanes) {
      for (int g = 0; g < G; ++g) most[g] = hn::Max(most[g], hn::Load(kF32, scores[g] + t));
    }
    for (int g = 0; g < G; ++g) most[g] = hn::Max(peak[g], hn::MaxOfLanes(kF32, most[g]));
    for (int g = 0; g < G; ++g) {
      scale[g] = Exp2(hn::Sub(peak[g], most[g]));
      sum[g] = hn::Mul(sum[g], scale[g]);
      peak[g] = most[g];
    }
    for (int t = 0; t < N; t += kLanes) {
      for (int g = 0; g < G; ++g) {
        const Vec p = Exp2(hn::Sub(hn::Load(kF32, scores[g] + t), peak[g]));
        hn::Store(p, kF32, scores[g] + t);
        sum[g] = hn::Add(sum[g], p);
      }
    }
  }
};

/// out[g] = scale[g] * out[g] + sum over the tile of weights[g][t] * value[t]. Fetches the tile `ahead`.
template <int G, int D, int N, class T>
HWY_INLINE void Mix(const T* value, const float (*weights)[N], const Vec* scale, const T* ahead, float* out) {
  constexpr int kStep = kColumns * kLanes;
  for (int c = 0; c < D; c += kStep) {
    Vec sums[G][kColumns];
    for (int g = 0; g < G; ++g) {
      for (int i = 0; i < kColumns; ++i) {
        sums[g][i] = hn::Mul(hn::Load(kF32, out + g * D + c + i * kLanes), scale[g]);
      }
    }
    for (int t = 0; t < N; ++t) {
      const T* row = value + t * D + c;
      if (N == 64 || c == 0) {  // whole rows at once where tiles are short
        const char* fetch = reinterpret_cast<const char*>(ahead + (row - value));
        for (size_t i = 0; i < (N == 64 ? kStep : D) * sizeof(T); i += 64) hwy::Prefetch(fetch + i);
      }
      Vec v[kColumns];
      for (int i = 0; i < kColumns; ++i) v[i] = Load(row + i * kLanes);
      for (int g = 0; g < G; ++g) {
        const Vec p = hn::Set(kF32, weights[g][t]);
        for (int i = 0; i < kColumns; ++i) sums[g][i] = hn::MulAdd(v[i], p, sums[g][i]);
      }
    }
    for (int g = 0; g < G; ++g) {
      for (int i = 0; i < kColumns; ++i) hn::Store(sums[g][i], kF32, out + g * D + c + i * kLanes);
    }
  }
}

template <int G, int D, int N, class T>
void Block(const RowsParams& p, int head, int split) {
  const int64_t tiles = (p.tokens + N - 1) / N;
  const int64_t first = tiles * split / p.splits * N;
  const int64_t last = std::min(p.tokens, tiles * (split + 1) / p.splits * N);
  const T* key = static_cast<const T*>(p.key) + static_cast<size_t>(head) * p.tokens * D;
  const T* value = static_cast<const T*>(p.value) + static_cast<size_t>(head) * p.tokens * D;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  HWY_ALIGN float query[G * D], out[G * D], weights[G][N];
  HWY_ALIGN T padded[2][N * D];
  for (int i = 0; i < G * D; ++i) {
    query[i] = p.query[head * G * D + i] * (p.multiplier * 1.44269504088896340736f);
    out[i] = 0;
  }
  Softmax<G, N> softmax;
  for (int g = 0; g < G; ++g) {
    softmax.peak[g] = hn::Set(kF32, kNone);
    softmax.sum[g] = hn::Zero(kF32);
  }
  for (int64_t t = first; t < last; t += N) {
    const T *k = key + t * D, *v = value + t * D;
    const auto left = static_cast<int>(std::min<int64_t>(N, last - t));
    if (left < N) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded[0], k, left * D * sizeof(T));
      std::memcpy(padded[1], v, left * D * sizeof(T));
      k = padded[0];
      v = padded[1];
    }
    // Measured: long tiles fetch their successors, short ones what is read next.
    Scores<G, D, N>(k, query, N == 64 ? k + N * D : v, weights);
    if (left < N) {
      for (int g = 0; g < G; ++g) std::fill(weights[g] + left, weights[g] + N, kNone);
    }
    softmax.Take(weights);
    Mix<G, D, N>(v, weights, softmax.scale, (N == 64 ? v : k) + N * D, out);
  }
  for (int g = 0; g < G; ++g) {
    const int row = head * G + g;
    const float sum = hn::GetLane(hn::SumOfLanes(kF32, softmax.sum[g]));
    if (p.splits == 1) {
      for (int c = 0; c < D; ++c) p.out[row * D + c] = sum > 0 ? out[g * D + c] / sum : 0;
    } else {
      float* to = p.partial + (static_cast<size_t>(split) * p.heads * G + row) * (D + 2);
      std::copy_n(out + g * D, D, to);
      to[D] = hn::GetLane(softmax.peak[g]);
      to[D + 1] = sum;
    }
  }
}

template <class T>
void Blocks(const RowsParams& p, uint32_t first, uint32_t last) {
  for (uint32_t i = first; i < last; ++i) {
    const int head = static_cast<int>(i) / p.splits, split = static_cast<int>(i) % p.splits;
    if (p.group == 3 && p.tile == 64) Block<3, 64, 64, T>(p, head, split);
    if (p.group == 3 && p.tile == 16) Block<3, 64, 16, T>(p, head, split);
    if (p.group == 4 && p.tile == 64) Block<4, 128, 64, T>(p, head, split);
    if (p.group == 4 && p.tile == 16) Block<4, 128, 16, T>(p, head, split);
  }
}
void BlocksF16(const RowsParams& p, uint32_t first, uint32_t last) { Blocks<hwy::float16_t>(p, first, last); }
void BlocksF32(const RowsParams& p, uint32_t first, uint32_t last) { Blocks<float>(p, first, last); }

/// Four streams, which the hardware's prefetching serves best (measured against fewer, and against fetching ahead).
uint64_t Read(const void* data, size_t bytes) {
  const hn::CappedTag<uint64_t, 8> d;
  using V = hn::Vec<decltype(d)>;
  constexpr size_t kStep = 4 * hn::MaxLanes(d);
  const size_t quarter = bytes / 8 / 4;
  const uint64_t* p = static_cast<const uint64_t*>(data);
  V sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (size_t i = 0; i < quarter; i += kStep) {
    for (size_t stream = 0; stream < 4; ++stream) {
      const uint64_t* from = p + stream * quarter + i;
      for (size_t k = 0; k < 4; ++k) sums[k] = hn::Xor(sums[k], hn::Load(d, from + k * kStep / 4));
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Xor(hn::Xor(sums[0], sums[1]), hn::Xor(sums[2], sums[3]))));
}

const char* Target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace kvcc::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvcc::bench {

HWY_EXPORT(BlocksF16);
HWY_EXPORT(BlocksF32);
HWY_EXPORT(Read);
HWY_EXPORT(Target);

namespace {
void check(const RowsParams& p) {
  const bool shape = (p.group == 3 && p.head_dim == 64) || (p.group == 4 && p.head_dim == 128);
  if (!shape || (p.tile != 16 && p.tile != 64) || p.splits < 1) {
    throw Error(ErrorKind::usage, "rows_attention", "another shape",
                "3 queries of 64 channels or 4 of 128, tile 16 or 64");
  }
}
}  // namespace

void rows_attention_f16(const RowsParams& params, uint32_t first, uint32_t last) {
  check(params);
  HWY_DYNAMIC_DISPATCH(BlocksF16)(params, first, last);
}
void rows_attention_f32(const RowsParams& params, uint32_t first, uint32_t last) {
  check(params);
  HWY_DYNAMIC_DISPATCH(BlocksF32)(params, first, last);
}

void rows_merge(const RowsParams& p) {
  const int rows = p.heads * p.group, dim = p.head_dim;
  for (int row = 0; row < rows; ++row) {
    const auto part = [&](int split) { return p.partial + (static_cast<size_t>(split) * rows + row) * (dim + 2); };
    float peak = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int s = 0; s < p.splits; ++s) peak = std::max(peak, part(s)[dim]);
    float* out = p.out + static_cast<size_t>(row) * dim;
    std::fill_n(out, dim, 0.0f);
    for (int s = 0; s < p.splits; ++s) {
      if (part(s)[dim + 1] == 0) continue;  // no token
      const float scale = std::exp2(part(s)[dim] - peak);
      for (int c = 0; c < dim; ++c) out[c] += scale * part(s)[c];
      sum += scale * part(s)[dim + 1];
    }
    for (int c = 0; c < dim; ++c) out[c] = sum > 0 ? out[c] / sum : 0;
  }
}

uint64_t read_memory(const void* data, size_t bytes) { return HWY_DYNAMIC_DISPATCH(Read)(data, bytes); }
const char* baseline_target() { return HWY_DYNAMIC_DISPATCH(Target)(); }

}  // namespace kvcc::bench
#endif  // HWY_ONCE
