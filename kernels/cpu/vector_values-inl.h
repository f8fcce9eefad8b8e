// Weighted sums of one head's value tiles of vector codebooks: each code's row times its token's weight, gathered over
// tiles; the inverse transform is linear and so applied once, to the sums.
//
// Errors of a sum: 2^-20 of the sum over tokens of |weight| v, v as k in vector_keys-inl.h.
#if defined(KVCC_KERNELS_CPU_VECTOR_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_VECTOR_VALUES_INL_H_
#undef KVCC_KERNELS_CPU_VECTOR_VALUES_INL_H_
#else
#define KVCC_KERNELS_CPU_VECTOR_VALUES_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/vector_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

struct alignas(64) VectorValueScratch {
  float sum[kMaxHeadDim * 16 * 16];  ///< [place, query, lane]: of tokens that a lane had
  float other[16 * kMaxHeadDim];     ///< [query, channel]: exact rows
  float weights[16 * 16];            ///< [query, lane]: sums of the weights of packed tokens
};

/// Queries whose sums over a quad's coordinates registers hold.
constexpr int kMixQueries = kLanes == 16 ? 4 : 2;

/// Sums of one quad over `tokens` tokens, for kQueries queries; sums: of the quad's first place and these queries,
/// places `step` apart. kWide: more than two coordinates.
template <int kQueries, bool kWide>
HWY_NOINLINE void MixQuad(const float* HWY_RESTRICT table, const uint32_t* HWY_RESTRICT offset, int tokens,
                          const float* HWY_RESTRICT weights, int width, ptrdiff_t step, float* HWY_RESTRICT sums) {
  const DF d;
  constexpr int kMost = kWide ? 4 : 2;
  VF sum[kMost][kQueries];
  KVCC_CPU_UNROLL
  for (int i = 0; i < kMost; ++i) {
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) sum[i][g] = i < width ? hn::Load(d, sums + i * step + g * 16) : hn::Zero(d);
  }
  for (int token = 0; token < tokens; token += kLanes) {
    const QuadVectors q = QuadVectors::Read<kWide>(table, offset + token);
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) {
      const VF w = hn::Load(d, weights + g * kBatch + token);
      sum[0][g] = hn::MulAdd(q.z0, w, sum[0][g]);
      sum[1][g] = hn::MulAdd(q.z1, w, sum[1][g]);
      if constexpr (kWide) {
        sum[2][g] = hn::MulAdd(q.z2, w, sum[2][g]);
        sum[3][g] = hn::MulAdd(q.z3, w, sum[3][g]);
      }
    }
  }
  KVCC_CPU_UNROLL
  for (int i = 0; i < kMost; ++i) {
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) {
      if (i < width) hn::Store(sum[i][g], d, sums + i * step + g * 16);
    }
  }
}

#if KVCC_CPU_PLANES
/// Likewise of kCoordinates coordinates of a quad that has planes; plane: of the first.
template <int kVectors, int kCoordinates, int kQueries>
HWY_NOINLINE void MixPlanes(const float* HWY_RESTRICT plane, const uint32_t* HWY_RESTRICT codes, int tokens,
                            const float* HWY_RESTRICT weights, ptrdiff_t step, float* HWY_RESTRICT sums) {
  const DF d;
  const Plane<kVectors> first(plane), second(plane + (kCoordinates - 1) * kVectors * 16);
  VF sum[2][kQueries];
  KVCC_CPU_UNROLL
  for (int g = 0; g < kQueries; ++g) {
    sum[0][g] = hn::Load(d, sums + g * 16);
    sum[1][g] = hn::Load(d, sums + (kCoordinates - 1) * step + g * 16);
  }
  for (int token = 0; token < tokens; token += 16) {
    const VU code = hn::Load(DU(), codes + token);
    const VF a = first.At(code), b = second.At(code);
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) {
      const VF w = hn::Load(d, weights + g * kBatch + token);
      sum[0][g] = hn::MulAdd(a, w, sum[0][g]);
      if constexpr (kCoordinates == 2) sum[1][g] = hn::MulAdd(b, w, sum[1][g]);
    }
  }
  KVCC_CPU_UNROLL
  for (int g = 0; g < kQueries; ++g) {
    hn::Store(sum[0][g], d, sums + g * 16);
    if constexpr (kCoordinates == 2) hn::Store(sum[1][g], d, sums + step + g * 16);
  }
}
template <int kQueries>
HWY_INLINE void MixQuadPlanes(const KvccVectorQuad& quad, const float* tables, const uint32_t* codes, int tokens,
                              const float* weights, ptrdiff_t step, float* sums) {
  with_plane(quad.bits, [&](auto n, int floats) HWY_ATTR {
    constexpr int kVectors = decltype(n)::value;
    int i = 0;
    for (; i + 1 < quad.width; i += 2) {
      MixPlanes<kVectors, 2, kQueries>(tables + quad.plane + i * floats, codes, tokens, weights, step, sums + i * step);
    }
    if (i < quad.width) {
      MixPlanes<kVectors, 1, kQueries>(tables + quad.plane + i * floats, codes, tokens, weights, step, sums + i * step);
    }
  });
}
#endif

/// Weighted sums of one head's values, for the queries of a block.
class VectorValues {
 public:
  static constexpr int kPagesAtOnce = kBatchPages;
  VectorValues(const KvccVectorTables& tables, const KvccCache& cache, const Work& work, VectorValueScratch& scratch)
      : cache_(cache),
        work_(work),
        s_(scratch),
        head_{*tables.value, work.head},
        dim_(tables.value->head_dim),
        pages_(cache, work.sequence, work.head) {
    const auto queries = static_cast<size_t>(work.queries);
    std::memset(s_.sum, 0, sizeof(float) * 16 * static_cast<size_t>(head_.places()) * queries);
    std::memset(s_.other, 0, sizeof(float) * static_cast<size_t>(dim_) * queries);
    std::memset(s_.weights, 0, sizeof s_.weights);
  }

  /// Adds pages [first, first + count). weights [queries] at strides of kBatch, finite, 0 where a slot is not visible.
  void add_pages(int32_t first, int count, VectorTile& tile, const float* HWY_RESTRICT weights) {
    const DF d;
    const int queries = work_.queries, tokens = count * kPage;
    for (int g = 0; g < queries; ++g) {
      VF sum = hn::Load(d, s_.weights + 16 * g);
      for (int t = 0; t < tokens; t += kLanes) sum = hn::Add(sum, hn::Load(d, weights + g * kBatch + t));
      hn::Store(sum, d, s_.weights + 16 * g);
    }
    const VectorBatchWords words(head_, pages_, first, count);
    const ptrdiff_t step = 16 * queries;
    for (const KvccVectorQuad& quad : head_) {
#if KVCC_CPU_PLANES
      if (quad.plane >= 0) {
        words.Offsets<0>(quad, tile.offset);
        for (int query = 0; query < queries; query += kMixQueries) {
          with_queries(queries - query, [&](auto n) HWY_ATTR {
            MixQuadPlanes<decltype(n)::value>(quad, head_.tensor.tables, tile.offset, tokens, weights + query * kBatch,
                                              step, s_.sum + quad.first * step + query * 16);
          });
        }
        continue;
      }
#endif
      words.Offsets(quad, tile.offset);
      const float* const table = head_.tensor.tables + quad.table;
      for (int query = 0; query < queries; query += kMixQueries) {
        float* const sums = s_.sum + quad.first * step + query * 16;
        with_queries(std::min(queries - query, kMixQueries), [&](auto n) {
          constexpr int kQueries = std::min<int>(decltype(n)::value, kMixQueries);
          if (quad.width > 2) {
            MixQuad<kQueries, true>(table, tile.offset, tokens, weights + query * kBatch, quad.width, step, sums);
          } else {
            MixQuad<kQueries, false>(table, tile.offset, tokens, weights + query * kBatch, quad.width, step, sums);
          }
        });
      }
    }
  }

  /// Adds exact position p, weights [queries] at the given stride.
  void add_exact(int32_t p, const float* weights, int stride) {
    const uint16_t* row = exact_row(cache_, work_.sequence, work_.head, dim_, p);
    for (int c = 0; c < dim_; ++c) {
      const float value = half_to_float(row[c]);
      for (int g = 0; g < work_.queries; ++g) s_.other[g * dim_ + c] += weights[g * stride] * value;
    }
  }

  /// Everything added so far to query g, times factor.
  void scale(int g, float factor) {
    const DF d;
    const VF f = hn::Set(d, factor);
    const auto times = [&](float* to) HWY_ATTR { hn::Store(hn::Mul(hn::Load(d, to), f), d, to); };
    for (int i = 0; i < head_.places(); ++i) times(s_.sum + (i * work_.queries + g) * 16);
    for (int c = 0; c < dim_; c += kLanes) times(s_.other + g * dim_ + c);
    times(s_.weights + 16 * g);
  }

  /// Sums of query g, [head_dim].
  void finish(int g, float* HWY_RESTRICT out) const {
    const DF d;
    const KvccVectorTensor& t = head_.tensor;
    const float weight = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, s_.weights + 16 * g)));
    const float* const other = s_.other + g * dim_;
    const float* const mean = t.transform != 0 ? t.active_mean + head_.row() : t.constant + head_.row();
    for (int c = 0; c < dim_; ++c) out[c] = other[c] + weight * mean[c];
    for (int i = 0; i < head_.places(); ++i) {
      const float z = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, s_.sum + (i * work_.queries + g) * 16)));
      if (t.transform == 0) {
        out[head_.place()[i]] += z;
        continue;
      }
      const float* HWY_RESTRICT row = t.active + head_.matrix() + static_cast<size_t>(i) * dim_;
      for (int c = 0; c < dim_; c += kLanes) {
        hn::StoreU(hn::MulAdd(hn::Set(d, z), hn::LoadU(d, row + c), hn::LoadU(d, out + c)), d, out + c);
      }
    }
  }

 private:
  const KvccCache& cache_;
  const Work& work_;
  VectorValueScratch& s_;
  VectorHead head_;
  int dim_;
  VectorPages pages_;
};

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
