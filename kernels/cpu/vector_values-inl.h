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

#include <cstring>

#include "kernels/cpu/vector_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

struct alignas(64) VectorValueScratch {
  float sum[kMaxHeadDim * 16 * 16];  ///< [quad, query, token of a vector, coordinate]
  float other[16 * kMaxHeadDim];     ///< [query, channel]: exact rows
  float spread[16 * kPage * 4];      ///< [query, token, 4]: weights
  float weights[16 * 16];            ///< [query, lane]: sums of the weights of packed tokens
};

/// Sums of one quad for queries [first, first + kQueries). sums: of the quad's first query.
template <int kQueries>
HWY_NOINLINE void MixQuad(const float* HWY_RESTRICT table, const uint32_t* HWY_RESTRICT offset,
                          const float* HWY_RESTRICT spread, float* HWY_RESTRICT sums) {
  const DF d;
  VF sum[kQueries];
  KVCC_CPU_UNROLL
  for (int g = 0; g < kQueries; ++g) sum[g] = hn::Load(d, sums + g * 16);
  constexpr int kEach = kLanes / 4;  // tokens of a vector
  for (int token = 0; token < kPage; token += kEach) {
    const VF row = TableRows<1>(table, offset + token);
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) {
      sum[g] = hn::MulAdd(row, hn::Load(d, spread + g * kPage * 4 + token * 4), sum[g]);
    }
  }
  KVCC_CPU_UNROLL
  for (int g = 0; g < kQueries; ++g) hn::Store(sum[g], d, sums + g * 16);
}

/// Weighted sums of one head's values, for the queries of a block.
class VectorValues {
 public:
  VectorValues(const KvccVectorTables& tables, const KvccCache& cache, const Work& work, VectorValueScratch& scratch)
      : cache_(cache),
        work_(work),
        s_(scratch),
        head_{*tables.value, work.head},
        dim_(tables.value->head_dim),
        pages_(cache, work.sequence, work.head) {
    const auto quads = static_cast<size_t>(head_.end() - head_.begin()), queries = static_cast<size_t>(work.queries);
    std::memset(s_.sum, 0, sizeof(float) * 16 * quads * queries);
    std::memset(s_.other, 0, sizeof(float) * static_cast<size_t>(dim_) * queries);
    std::memset(s_.weights, 0, sizeof s_.weights);
  }

  /// Adds page i. weights [queries, 64], finite, 0 where a slot is not visible.
  void add_page(int32_t i, VectorTile& tile, const float* HWY_RESTRICT weights) {
    const DF d;
    const int queries = work_.queries;
    for (int g = 0; g < queries; ++g) {
      VF sum = hn::Load(d, s_.weights + 16 * g);
      KVCC_CPU_UNROLL
      for (int t = 0; t < kPage; t += kLanes) sum = hn::Add(sum, hn::LoadU(d, weights + g * kPage + t));
      hn::Store(sum, d, s_.weights + 16 * g);
      for (int t = 0; t < kPage; ++t) store_four(weights[g * kPage + t], s_.spread + (g * kPage + t) * 4);
    }
    const VectorWords words(pages_.at(i), head_.tensor.token_bits[work_.head]);
    float* sums = s_.sum;
    for (const KvccVectorQuad& quad : head_) {
      words.Offsets(quad, tile.offset);
      for (int first = 0; first < queries; first += 4) {
        with_queries(queries - first, [&](auto n) {
          MixQuad<decltype(n)::value>(head_.tensor.tables + quad.table, tile.offset, s_.spread + first * kPage * 4,
                                      sums + first * 16);
        });
      }
      sums += 16 * queries;
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
    const auto quads = head_.end() - head_.begin();
    for (ptrdiff_t i = 0; i < quads; ++i) times(s_.sum + (i * work_.queries + g) * 16);
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
    const float* from = s_.sum + 16 * g;
    for (const KvccVectorQuad& quad : head_) {
      for (int i = 0; i < quad.width; ++i) {
        float z = from[i];
        for (int lane = 4; lane < kLanes; lane += 4) z += from[lane + i];
        const int place = quad.first + i;
        if (t.transform == 0) {
          out[head_.place()[place]] += z;
          continue;
        }
        const float* HWY_RESTRICT row = t.active + head_.matrix() + static_cast<size_t>(place) * dim_;
        for (int c = 0; c < dim_; c += kLanes) {
          hn::StoreU(hn::MulAdd(hn::Set(d, z), hn::LoadU(d, row + c), hn::LoadU(d, out + c)), d, out + c);
        }
      }
      from += 16 * work_.queries;
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
