#include "tests/bench/cpu_baseline.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/core/error.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/cpu_baseline.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR  // Highway's last resort

void BlocksF16(const RowsParams&, uint32_t, uint32_t) {
  throw Error(ErrorKind::failed, "rows_attention", "a processor without SSE4 or NEON");
}
void BlocksF32(const RowsParams& p, uint32_t first, uint32_t last) { BlocksF16(p, first, last); }
uint64_t Read(const void* data, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes / 8; ++i) sum += static_cast<const uint64_t*>(data)[i];
  return sum;
}

#else

using F32 = hn::CappedTag<float, 16>;  // 4, 8 or 16 lanes
using Vec = hn::Vec<F32>;
constexpr F32 kF32;
constexpr int kLanes = hn::MaxLanes(kF32);
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;
constexpr int kRows = kManyRegisters ? 4 : 2;     ///< tokens whose sums are in registers at a time
constexpr int kColumns = kManyRegisters ? 4 : 2;  ///< vectors of output channels likewise
constexpr int kMaxDim = 256;

HWY_INLINE Vec Load(const float* p) { return hn::LoadU(kF32, p); }
HWY_INLINE Vec Load(const hwy::float16_t* p) {
  return hn::PromoteTo(kF32, hn::LoadU(hn::Rebind<hwy::float16_t, F32>(), p));
}

/// Sums over lanes: {a0 + a2, b0 + b2, a1 + a3, b1 + b3} of every 128-bit block.
HWY_INLINE Vec AddHalves(Vec a, Vec b) {
  return hn::Add(hn::InterleaveLower(kF32, a, b), hn::InterleaveUpper(kF32, a, b));
}
/// {a0 + a2, a1 + a3, b0 + b2, b1 + b3} with a, b from above: every block holds its sums of four vectors.
HWY_INLINE Vec AddPairs(Vec a, Vec b) {
  const hn::Repartition<double, F32> d;
  const auto x = hn::BitCast(d, a), y = hn::BitCast(d, b);
  return hn::Add(hn::BitCast(kF32, hn::InterleaveLower(d, x, y)), hn::BitCast(kF32, hn::InterleaveUpper(d, x, y)));
}

/// Adds the blocks of kLanes / 4 vectors, each with the sums of four tokens in every block: kLanes tokens in order.
HWY_INLINE Vec AddBlocks(const Vec* quads) {
  if constexpr (kLanes == 4) {
    return quads[0];
  } else if constexpr (kLanes == 8) {
    return hn::Add(hn::ConcatLowerLower(kF32, quads[1], quads[0]), hn::ConcatUpperUpper(kF32, quads[1], quads[0]));
  } else {
    const auto add = [](Vec a, Vec b) HWY_ATTR {
      return hn::Add(hn::ConcatLowerLower(kF32, b, a), hn::ConcatUpperUpper(kF32, b, a));
    };
    // Blocks {0, 0', 2, 2'} and {1, 1', 3, 3'} of quads' halves; the rest of each sum lies beside it.
    const Vec x = add(quads[0], quads[2]), y = add(quads[1], quads[3]);
    return hn::Add(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(y), x), hn::OddEvenBlocks(y, hn::SwapAdjacentBlocks(x)));
  }
}

/// scores[g][t] of one tile; query [G, dim] with multiplier and log2(e) in it. Fetches `ahead` as it goes.
template <int G, class T>
HWY_INLINE void Scores(const T* key, const float* query, int dim, const T* ahead, float (*scores)[kTileTokens]) {
  for (int first = 0; first < kTileTokens; first += kLanes) {
    Vec quads[G][kLanes / 4];
    for (int quad = 0; quad < kLanes / 4; ++quad) {
      Vec halves[G][2];
      for (int part = 0; part < 4 / kRows; ++part) {
        const T* rows = key + static_cast<size_t>(first + 4 * quad + kRows * part) * dim;
        const char* fetch = reinterpret_cast<const char*>(ahead + (rows - key));
        for (size_t i = 0; i < kRows * dim * sizeof(T); i += 64) hwy::Prefetch(fetch + i);
        Vec sums[kRows][G];
        for (int r = 0; r < kRows; ++r) {
          for (int g = 0; g < G; ++g) sums[r][g] = hn::Zero(kF32);
        }
        for (int c = 0; c < dim; c += kLanes) {
          Vec q[G];
          for (int g = 0; g < G; ++g) q[g] = hn::Load(kF32, query + g * dim + c);
          for (int r = 0; r < kRows; ++r) {
            const Vec k = Load(rows + r * dim + c);
            for (int g = 0; g < G; ++g) sums[r][g] = hn::MulAdd(k, q[g], sums[r][g]);
          }
        }
        for (int g = 0; g < G; ++g) {
          if constexpr (kRows == 4) {
            halves[g][0] = AddHalves(sums[0][g], sums[1][g]);
            halves[g][1] = AddHalves(sums[kRows - 2][g], sums[kRows - 1][g]);
          } else {
            halves[g][part] = AddHalves(sums[0][g], sums[1][g]);
          }
        }
      }
      for (int g = 0; g < G; ++g) quads[g][quad] = AddPairs(halves[g][0], halves[g][1]);
    }
    for (int g = 0; g < G; ++g) hn::Store(AddBlocks(quads[g]), kF32, scores[g] + first);
  }
}

/// 2^x for x <= 0, about 2 ulp; 0 below 2^-126.
HWY_INLINE Vec Exp2(Vec x) {
  const hn::RebindToSigned<F32> i32;
  const Vec whole = hn::Round(x), f = hn::Sub(x, whole);
  Vec y = hn::Set(kF32, 1.5403530393381609954e-4f);
  for (const float c : {1.3333558146428443423e-3f, 9.6181291076284771619e-3f, 5.5504108664821579953e-2f,
                        2.4022650695910071233e-1f, 6.9314718055994530942e-1f, 1.0f}) {
    y = hn::MulAdd(y, f, hn::Set(kF32, c));
  }
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(i32, hn::Max(whole, hn::Set(kF32, -126.0f))));
  y = hn::BitCast(kF32, hn::Add(hn::BitCast(i32, y), exponent));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(kF32, -126.0f)), y);
}

/// Scores of a query's tile to weights; returns what earlier sums are to be multiplied with.
HWY_INLINE float Softmax(float* scores, float& peak, float& sum) {
  Vec most = hn::Load(kF32, scores);
  for (int t = kLanes; t < kTileTokens; t += kLanes) most = hn::Max(most, hn::Load(kF32, scores + t));
  const float now = std::max(peak, hn::GetLane(hn::MaxOfLanes(kF32, most)));
  const float scale = hn::GetLane(Exp2(hn::Set(kF32, peak - now)));
  const Vec top = hn::Set(kF32, now);
  Vec total = hn::Zero(kF32);
  for (int t = 0; t < kTileTokens; t += kLanes) {
    const Vec p = Exp2(hn::Sub(hn::Load(kF32, scores + t), top));
    hn::Store(p, kF32, scores + t);
    total = hn::Add(total, p);
  }
  peak = now;
  sum = sum * scale + hn::GetLane(hn::SumOfLanes(kF32, total));
  return scale;
}

/// out[g] = scale[g] * out[g] + sum over the tile of weights[g][t] * value[t].
template <int G, class T>
HWY_INLINE void Mix(const T* value, const float (*weights)[kTileTokens], const float* scale, int dim, const T* ahead,
                    float* out) {
  constexpr int kStep = kColumns * kLanes;
  for (int c = 0; c < dim; c += kStep) {
    Vec sums[G][kColumns];
    for (int g = 0; g < G; ++g) {
      for (int i = 0; i < kColumns; ++i) {
        sums[g][i] = hn::Mul(hn::Load(kF32, out + g * dim + c + i * kLanes), hn::Set(kF32, scale[g]));
      }
    }
    for (int t = 0; t < kTileTokens; ++t) {
      const T* row = value + static_cast<size_t>(t) * dim + c;
      const char* fetch = reinterpret_cast<const char*>(ahead + (row - value));
      for (size_t i = 0; i < kStep * sizeof(T); i += 64) hwy::Prefetch(fetch + i);
      Vec v[kColumns];
      for (int i = 0; i < kColumns; ++i) v[i] = Load(row + i * kLanes);
      for (int g = 0; g < G; ++g) {
        const Vec p = hn::Set(kF32, weights[g][t]);
        for (int i = 0; i < kColumns; ++i) sums[g][i] = hn::MulAdd(v[i], p, sums[g][i]);
      }
    }
    for (int g = 0; g < G; ++g) {
      for (int i = 0; i < kColumns; ++i) hn::Store(sums[g][i], kF32, out + g * dim + c + i * kLanes);
    }
  }
}

template <int G, class T>
void Block(const RowsParams& p, int head, int split) {
  const int dim = p.head_dim;
  const int64_t tiles = (p.tokens + kTileTokens - 1) / kTileTokens;
  const int64_t first = tiles * split / p.splits * kTileTokens;
  const int64_t last = std::min(p.tokens, tiles * (split + 1) / p.splits * kTileTokens);
  const T* key = static_cast<const T*>(p.key) + static_cast<size_t>(head) * p.tokens * dim;
  const T* value = static_cast<const T*>(p.value) + static_cast<size_t>(head) * p.tokens * dim;
  HWY_ALIGN float query[G * kMaxDim], out[G * kMaxDim], weights[G][kTileTokens];
  HWY_ALIGN T padded[2][kTileTokens * kMaxDim];
  float peak[G], sum[G], scale[G];
  for (int i = 0; i < G * dim; ++i) {
    query[i] = p.query[head * G * dim + i] * (p.multiplier * 1.44269504088896340736f);
    out[i] = 0;
  }
  std::fill_n(peak, G, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, G, 0.0f);
  for (int64_t t = first; t < last; t += kTileTokens) {
    const T *k = key + t * dim, *v = value + t * dim;
    const size_t left = static_cast<size_t>(std::min<int64_t>(kTileTokens, last - t));
    if (left < kTileTokens) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded[0], k, left * dim * sizeof(T));
      std::memcpy(padded[1], v, left * dim * sizeof(T));
      k = padded[0];
      v = padded[1];
    }
    Scores<G>(k, query, dim, k + kTileTokens * dim, weights);
    for (int g = 0; g < G; ++g) {
      std::fill(weights[g] + left, weights[g] + kTileTokens, -std::numeric_limits<float>::infinity());
      scale[g] = Softmax(weights[g], peak[g], sum[g]);
    }
    Mix<G>(v, weights, scale, dim, v + kTileTokens * dim, out);
  }
  for (int g = 0; g < G; ++g) {
    const int row = head * G + g;
    if (p.splits == 1) {
      for (int c = 0; c < dim; ++c) p.out[row * dim + c] = sum[g] > 0 ? out[g * dim + c] / sum[g] : 0;
    } else {
      float* to = p.partial + (static_cast<size_t>(split) * p.heads * G + row) * (dim + 2);
      std::copy_n(out + g * dim, dim, to);
      to[dim] = peak[g];
      to[dim + 1] = sum[g];
    }
  }
}

template <class T>
void Blocks(const RowsParams& p, uint32_t first, uint32_t last) {
  for (uint32_t i = first; i < last; ++i) {
    const int head = static_cast<int>(i) / p.splits, split = static_cast<int>(i) % p.splits;
    if (p.group == 1) Block<1, T>(p, head, split);
    if (p.group == 2) Block<2, T>(p, head, split);
    if (p.group == 3) Block<3, T>(p, head, split);
    if (p.group == 4) Block<4, T>(p, head, split);
  }
}
void BlocksF16(const RowsParams& p, uint32_t first, uint32_t last) { Blocks<hwy::float16_t>(p, first, last); }
void BlocksF32(const RowsParams& p, uint32_t first, uint32_t last) { Blocks<float>(p, first, last); }

uint64_t Read(const void* data, size_t bytes) {
  const hn::CappedTag<uint64_t, 8> d;
  const size_t lanes = hn::Lanes(d), count = bytes / 8;
  const uint64_t* p = static_cast<const uint64_t*>(data);
  auto a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
  for (size_t i = 0; i < count; i += 4 * lanes) {
    hwy::Prefetch(p + i + 512);
    hwy::Prefetch(p + i + 512 + 8 * (lanes > 2));
    hwy::Prefetch(p + i + 512 + 16 * (lanes > 4));
    hwy::Prefetch(p + i + 512 + 24 * (lanes > 4));
    a = hn::Xor(a, hn::Load(d, p + i));
    b = hn::Xor(b, hn::Load(d, p + i + lanes));
    c = hn::Xor(c, hn::Load(d, p + i + 2 * lanes));
    e = hn::Xor(e, hn::Load(d, p + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Xor(hn::Xor(a, b), hn::Xor(c, e))));
}

#endif

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
  if (p.group < 1 || p.group > 4 || p.head_dim < 64 || p.head_dim > 256 || p.head_dim % 64 != 0 || p.splits < 1) {
    throw Error(ErrorKind::usage, "rows_attention", "another shape",
                "group 1 to 4, head dimension 64, 128, 192 or 256");
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
