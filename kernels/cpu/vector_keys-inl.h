// Scores of one head's tiles of vector codebooks in f32: rows of coordinates, the inverse transform where there is one
// (a product of D x places by places x 64 a tile, shared by the queries of the head), turned by their slots, times
// queries turned back by the tile's base.
//
// Errors of a score: 2^-20 of multiplier * sum over channels of |q| k, norms of rotary pairs taken, where k is, without
// a transform, the value's magnitude and else the sum over coordinates of |inverse| |z|, plus |mean|.
#if defined(KVCC_KERNELS_CPU_VECTOR_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_VECTOR_KEYS_INL_H_
#undef KVCC_KERNELS_CPU_VECTOR_KEYS_INL_H_
#else
#define KVCC_KERNELS_CPU_VECTOR_KEYS_INL_H_
#endif

#include "kernels/cpu/rope-inl.h"
#include "kernels/cpu/vector_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// Vectors of tokens that are worked on at once: what registers hold beside four queries or channels.
constexpr int kTokenVectors = kLanes == 16 ? 4 : 2;
constexpr int kTokens = kTokenVectors * kLanes;
static_assert(kPage % kTokens == 0);

struct alignas(64) VectorKeyScratch {
  float cosine[kMaxHeadDim / 2 * kPage], sine[kMaxHeadDim / 2 * kPage];  ///< [pair, slot]
  float query[16 * kMaxHeadDim];                                         ///< times the multiplier
  float turned[16 * kMaxHeadDim];                                        ///< turned back by the base of a block
  int32_t head = -1;                                                     ///< whose constants lie in the tile
  bool turns = false;                                                    ///< cosine and sine are there
};

/// channels [D, tokens] = active^T rows + mean, four channels at a time.
HWY_NOINLINE void TransformTile(const float* HWY_RESTRICT active, const float* HWY_RESTRICT mean, int dim, int places,
                                int tokens, const float* HWY_RESTRICT rows, float* HWY_RESTRICT channels) {
  const DF d;
  for (int token = 0; token < tokens; token += kTokens) {
    for (int c = 0; c < dim; c += 4) {
      VF sum[4][kTokenVectors];
      KVCC_CPU_UNROLL
      for (int j = 0; j < 4; ++j) {
        KVCC_CPU_UNROLL
        for (int v = 0; v < kTokenVectors; ++v) sum[j][v] = hn::Set(d, mean[c + j]);
      }
      const float* HWY_RESTRICT factor = active + c;
      const float* HWY_RESTRICT row = rows + token;
      for (int i = 0; i < places; ++i, factor += dim, row += kBatch) {
        VF z[kTokenVectors];
        KVCC_CPU_UNROLL
        for (int v = 0; v < kTokenVectors; ++v) z[v] = hn::Load(d, row + v * kLanes);
        KVCC_CPU_UNROLL
        for (int j = 0; j < 4; ++j) {
          const VF f = hn::Set(d, factor[j]);
          KVCC_CPU_UNROLL
          for (int v = 0; v < kTokenVectors; ++v) sum[j][v] = hn::MulAdd(f, z[v], sum[j][v]);
        }
      }
      KVCC_CPU_UNROLL
      for (int j = 0; j < 4; ++j) {
        KVCC_CPU_UNROLL
        for (int v = 0; v < kTokenVectors; ++v)
          hn::Store(sum[j][v], d, channels + (c + j) * kBatch + token + v * kLanes);
      }
    }
  }
}

/// Sums of kQueries queries over kTokens tokens.
template <int kQueries>
struct VectorSums {
  VF sum[kQueries][kTokenVectors];

  HWY_INLINE VectorSums() {  // the implicit one would not be of the target (NEON)
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) {
      KVCC_CPU_UNROLL
      for (int v = 0; v < kTokenVectors; ++v) sum[g][v] = hn::Zero(DF());
    }
  }
  HWY_INLINE void Add(int v, VF key, const VF (&query)[kQueries]) {
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) sum[g][v] = hn::MulAdd(key, query[g], sum[g][v]);
  }
};

/// Scores of one page, [queries] at strides of kBatch, of queries [first, first + kQueries).
template <int kQueries>
HWY_NOINLINE void ScoreVectorRows(const Turning& t, const float* HWY_RESTRICT channels,
                                  const float* HWY_RESTRICT cosines, const float* HWY_RESTRICT sines,
                                  const float* HWY_RESTRICT queries, float* HWY_RESTRICT scores) {
  const DF d;
  const int half = t.rotary / 2;
  for (int token = 0; token < kPage; token += kTokens) {
    VectorSums<kQueries> s;
    const auto query = [&](int channel, VF(&to)[kQueries]) HWY_ATTR {
      KVCC_CPU_UNROLL
      for (int g = 0; g < kQueries; ++g) to[g] = hn::Set(d, queries[g * t.head_dim + channel]);
    };
    for (int i = 0; i < half; ++i) {
      const int a = t.rope == KVCC_ROPE_HALF ? i : 2 * i, b = t.rope == KVCC_ROPE_HALF ? i + half : 2 * i + 1;
      VF first[kQueries], second[kQueries];
      query(a, first);
      query(b, second);
      KVCC_CPU_UNROLL
      for (int v = 0; v < kTokenVectors; ++v) {
        const int at = token + v * kLanes;
        const VF x = hn::Load(d, channels + a * kBatch + at), y = hn::Load(d, channels + b * kBatch + at);
        const VF c = hn::Load(d, cosines + i * kPage + at), n = hn::Load(d, sines + i * kPage + at);
        s.Add(v, hn::NegMulAdd(y, n, hn::Mul(x, c)), first);
        s.Add(v, hn::MulAdd(x, n, hn::Mul(y, c)), second);
      }
    }
    for (int c = 2 * half; c < t.head_dim; ++c) {
      VF one[kQueries];
      query(c, one);
      KVCC_CPU_UNROLL
      for (int v = 0; v < kTokenVectors; ++v) s.Add(v, hn::Load(d, channels + c * kBatch + token + v * kLanes), one);
    }
    KVCC_CPU_UNROLL
    for (int g = 0; g < kQueries; ++g) {
      KVCC_CPU_UNROLL
      for (int v = 0; v < kTokenVectors; ++v) hn::Store(s.sum[g][v], d, scores + g * kBatch + token + v * kLanes);
    }
  }
}

/// Scores of the keys of one head, for the queries of a block.
class VectorKeys {
 public:
  static constexpr int kPagesAtOnce = kBatchPages;
  VectorKeys(const KvccVectorTables& tables, const KvccCache& cache, const KvccRope& rope, const Work& work,
             const void* query, float multiplier, VectorKeyScratch& scratch)
      : tables_(tables),
        cache_(cache),
        rope_(rope),
        work_(work),
        s_(scratch),
        head_{*tables.key, work.head},
        turning_{tables.key->head_dim, tables.rope, tables.rope == KVCC_ROPE_NONE ? 0 : tables.rotary_dim},
        pages_(cache, work.sequence, work.head) {
    for (int64_t i = 0; i < int64_t{work.queries} * turning_.head_dim; ++i) {
      s_.query[i] = load_element(tables.dtype, query, i) * multiplier;
    }
    if (!s_.turns) FillTurns();
    s_.turns = true;
  }

  /// Scores [queries] at strides of kBatch of pages [first, first + count); those of slots that are not visible are
  /// unspecified.
  void score_pages(int32_t first, int count, VectorTile& tile, float* HWY_RESTRICT scores) {
    const KvccVectorTensor& t = head_.tensor;
    if (t.transform != 0) {
      ReadRows<false>(head_, pages_, first, count, tile.offset, tile.rows);
      TransformTile(t.active + head_.matrix(), t.active_mean + head_.row(), t.head_dim, head_.places(), count * kPage,
                    tile.rows, tile.channels);
    } else {
      if (s_.head != work_.head) FillConstants(head_, tile.channels);
      s_.head = work_.head;
      ReadRows<true>(head_, pages_, first, count, tile.offset, tile.channels);
    }
    for (int i = 0; i < count; ++i) {
      Turn(first + i + cache_.sink / KVCC_ROPE_BLOCK);
      for (int query = 0; query < work_.queries; query += 4) {
        with_queries(work_.queries - query, [&](auto n) {
          ScoreVectorRows<decltype(n)::value>(turning_, tile.channels + i * kPage, s_.cosine, s_.sine,
                                              s_.turned + query * turning_.head_dim,
                                              scores + query * kBatch + i * kPage);
        });
      }
    }
  }

  /// Scores of exact position p, [queries] at the given stride.
  void score_exact(int32_t p, float* scores, int stride) {
    const int64_t at = int64_t{p % KVCC_ROPE_BLOCK} * (turning_.rotary / 2);
    Turn(p / KVCC_ROPE_BLOCK);
    score_row(turning_, exact_row(cache_, work_.sequence, work_.head, turning_.head_dim, p),
              tables_.relative_cosine + at, tables_.relative_sine + at, s_.turned, work_.queries, scores, stride);
  }

 private:
  /// Cosines and sines of the 64 slots of a page.
  void FillTurns() {
    const int half = turning_.rotary / 2, first = cache_.sink % KVCC_ROPE_BLOCK;
    for (int slot = 0; slot < kPage; ++slot) {
      for (int i = 0; i < half; ++i) {
        s_.cosine[i * kPage + slot] = tables_.relative_cosine[int64_t{first + slot} * half + i];
        s_.sine[i * kPage + slot] = tables_.relative_sine[int64_t{first + slot} * half + i];
      }
    }
  }
  void Turn(int32_t block) {
    if (turning_.rotary == 0) block = 0;
    if (block == base_) return;
    base_ = block;
    turn_back(turning_, rope_, block, s_.query, work_.queries, s_.turned);
  }

  const KvccVectorTables& tables_;
  const KvccCache& cache_;
  const KvccRope& rope_;
  const Work& work_;
  VectorKeyScratch& s_;
  VectorHead head_;
  Turning turning_;
  VectorPages pages_;
  int32_t base_ = -1;  ///< what the queries are turned back by
};

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
