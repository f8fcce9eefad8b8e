// attention: fused split-K decode attention, the softmax online by tiles. Grid kvcc_grid_mma_attention. attention_merge
// combines the parts of a context in order, grid kvcc_grid_mma_attention_merge.
//
// |out - exact| <= e * sensitivity + 2 r * (magnitude + sum of p (|scale| + |zero|)), in the words of
// kernels/reference/attention.h; e as in keys-inl.h, r as in values-inl.h.
#if defined(KVCC_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_ATTENTION_INL_H_
#undef KVCC_KERNELS_CPU_ATTENTION_INL_H_
#else
#define KVCC_KERNELS_CPU_ATTENTION_INL_H_
#endif

#include "kernels/cpu/key_scores-inl.h"
#include "kernels/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// Of a part without tokens, as the CUDA kernels write it.
constexpr float kNoReference = -1e30f;
constexpr float kHuge = __builtin_huge_valf();

/// 2^x for x between -1/2 and 1/2, within 2^-22.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_fraction(D d, V x) {
  V y = hn::Set(d, 1.535336188319500e-4f);
  y = hn::MulAdd(y, x, hn::Set(d, 1.339887440266574e-3f));
  y = hn::MulAdd(y, x, hn::Set(d, 9.618437357674640e-3f));
  y = hn::MulAdd(y, x, hn::Set(d, 5.550332471162809e-2f));
  y = hn::MulAdd(y, x, hn::Set(d, 2.402264791363012e-1f));
  y = hn::MulAdd(y, x, hn::Set(d, 6.931472028550421e-1f));
  return hn::MulAdd(y, x, hn::Set(d, 1.0f));
}
/// 2^x for x at most 0, within 2^-22 of it down to 2^-126; 0 below -150.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_negative(D d, V x) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if constexpr (hn::MaxLanes(D()) == 16) {  // half the instructions
    const __m512 held = _mm512_max_ps(_mm512_set1_ps(-200.0f), x.raw);
    const __m512 whole = _mm512_roundscale_ps(held, 8);
    return V{_mm512_scalef_ps(exp2_fraction(d, V{_mm512_sub_ps(held, whole)}).raw, whole)};
  }
#endif
  const hn::RebindToSigned<D> di;
  const V low = hn::Set(d, -126.0f);
  const V held = hn::Max(x, low);
  const V whole = hn::Round(held), f = hn::Sub(held, whole);
  const V y = exp2_fraction(d, f);
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, y), hn::ShiftLeft<23>(hn::ConvertTo(di, whole))));
  return hn::IfThenElseZero(hn::Ge(x, low), scaled);
}
HWY_INLINE float exp2_negative_one(float x) {
  const hn::CappedTag<float, 4> d;
  return hn::GetLane(exp2_negative(d, hn::Set(d, x)));
}

/// Greatest score and sum of weights so far, by query.
class Softmax {
 public:
  float reference[kMaxQueries];
  alignas(64) float total[kMaxQueries * 16];  ///< [query, lane of a vector]

  explicit Softmax(int queries) {
    for (int g = 0; g < queries; ++g) {
      reference[g] = kNoReference;
      std::fill(total + 16 * g, total + 16 * g + 16, 0.0f);
    }
  }
  /// Scores of slots [begin, end) of `pages` pages, [queries] at strides of kStride, to weights, 0 for others; what
  /// `values` holds is brought to the new reference. No slot: nothing but zeros.
  template <int kStride = kPage, class Values>
  HWY_INLINE void soften(float* HWY_RESTRICT scores, int queries, int begin, int end, Values& values, int pages = 1) {
    const DF d;
    const int slots = kStride == kPage ? kPage : pages * kPage;
    for (int g = 0; g < queries; ++g) {
      float* s = scores + g * kStride;
      if (begin > 0) std::fill(s, s + std::min(begin, slots), -kHuge);
      if (end < slots) std::fill(s + std::max(end, 0), s + slots, -kHuge);
      VF most = hn::Load(d, s);
      KVCC_CPU_UNROLL
      for (int i = kLanes; i < slots; i += kLanes) most = hn::Max(most, hn::Load(d, s + i));
      if (!hn::AllTrue(d, hn::Le(most, hn::Set(d, reference[g]))))
        raise(g, hn::GetLane(hn::MaxOfLanes(d, most)), values);
      const VF shift = hn::Set(d, reference[g]);
      VF sum = hn::Zero(d);
      KVCC_CPU_UNROLL
      for (int i = 0; i < slots; i += kLanes) {
        const VF weight = exp2_negative(d, hn::Sub(hn::Load(d, s + i), shift));
        hn::Store(weight, d, s + i);
        sum = hn::Add(sum, weight);
      }
      hn::Store(hn::Add(sum, hn::Load(d, total + 16 * g)), d, total + 16 * g);
    }
  }
  /// A query's sum of weights.
  float sum(int g) const {
    const DF d;
    return hn::GetLane(hn::SumOfLanes(d, hn::Load(d, total + 16 * g)));
  }

 private:
  template <class Values>
  HWY_NOINLINE void raise(int g, float greatest, Values& values) {
    if (!(greatest > reference[g])) return;  // NaN: leaves the sums NaN
    const bool empty = reference[g] == kNoReference;
    const float factor = exp2_negative_one(reference[g] - greatest);
    reference[g] = greatest;
    if (empty) return;
    const DF d;
    hn::Store(hn::Mul(hn::Load(d, total + 16 * g), hn::Set(d, factor)), d, total + 16 * g);
    values.scale(g, factor);
  }
};

struct AttentionScratch {
  KeyScratch key;
  ValueScratch value;
  TileScratch tile;
  alignas(64) float scores[kMaxQueries * kPage];
};

/// One block's part of the context. `keys` and `values` read the pages of its head, with a scratch of their own kind;
/// scores [queries, 64 of each page read at once].
template <class Keys, class Values, class Tile>
void AttendBlock(const KvccAttentionParams& p, const Work& work, Keys& keys, Values& values, int value_dim, Tile& tile,
                 float* scores) {
  Softmax softmax(work.queries);
  constexpr int kAtOnce = Keys::kPagesAtOnce;
  for (int32_t i = work.page; i < work.page_end; i += kAtOnce) {
    const Slots slots = work.context.slots(i);
    const int count = std::min(kAtOnce, work.page_end - i);
    keys.score_pages(i, count, tile, scores);
    softmax.template soften<kAtOnce * kPage>(scores, work.queries, slots.begin, slots.end, values, count);
    values.add_pages(i, count, tile, scores);
  }
  for (int32_t i = work.tile; i < work.tile_end; ++i) {
    const int32_t from = work.context.exact_block(i) * kPage;
    std::fill(scores, scores + work.queries * kPage, -kHuge);
    for (int32_t slot = 0; slot < kPage; ++slot) {
      if (work.context.exact(p.key, from + slot)) keys.score_exact(from + slot, scores + slot, kPage);
    }
    softmax.soften(scores, work.queries, 0, kPage, values);
    for (int32_t slot = 0; slot < kPage; ++slot) {
      if (work.context.exact(p.key, from + slot)) values.add_exact(from + slot, scores + slot, kPage);
    }
  }
  const int64_t row = work.row(p.key, p.group), rows = static_cast<int64_t>(p.key.heads) * p.group;
  for (int g = 0; g < work.queries; ++g) {
    if (p.splits == 1) {
      float* const out = p.out + (row + g) * value_dim;
      values.finish(g, out);
      const float total = softmax.sum(g), inverse = total > 0 ? 1.0f / total : 0.0f;
      for (int c = 0; c < value_dim; ++c) out[c] *= inverse;
      continue;
    }
    const int64_t at =
        (static_cast<int64_t>(work.sequence) * p.splits + work.split) * rows + row + g - work.sequence * rows;
    float* const partial = p.partial + at * (value_dim + 2);
    values.finish(g, partial);
    partial[value_dim] = softmax.reference[g];
    partial[value_dim + 1] = softmax.sum(g);
  }
}

/// Log2 of e: scores are taken in base 2.
constexpr float kLog2E = 1.44269504f;

/// `config` has all of config.h.
template <class Config>
void Attention(const Config& config, const KvccAttentionParams& p, const KvccCpuTables& tables, uint32_t first,
               uint32_t last) {
  const int key_dim = config.key().head_dim(), value_dim = config.value().head_dim();
  AttentionScratch scratch;
  for (uint32_t block = first; block < last; ++block) {
    const Work work(p.key, block, p.group, p.splits, p.window);
    if (config.key().bits(p.key.layer, work.head) == 0 || config.value().bits(p.value.layer, work.head) == 0) continue;
    Keys keys(config, p.key, p.rope, tables, work,
              element_at(config.dtype(), p.query, work.row(p.key, p.group) * key_dim), p.multiplier * kLog2E,
              scratch.key);
    Values values(config.value(), p.value, tables, work, scratch.value);
    AttendBlock(p, work, keys, values, value_dim, scratch.tile, scratch.scores);
  }
}

/// Output row `block` of all: its parts combined in order; d: channels.
inline void MergeAttention(const KvccAttentionParams& p, uint32_t block, int d) {
  const int64_t rows = static_cast<int64_t>(p.key.heads) * p.group, stride = rows * (d + 2);
  const int64_t row = block % rows, sequence = block / rows;
  const float* from = p.partial + sequence * p.splits * stride + row * (d + 2);
  float reference = from[d], total = 0;
  for (int32_t split = 1; split < p.splits; ++split) reference = std::max(reference, from[split * stride + d]);
  float* const out = p.out + (sequence * rows + row) * d;
  std::fill(out, out + d, 0.0f);
  for (int32_t split = 0; split < p.splits; ++split) {
    const float* part = from + split * stride;
    const float factor = exp2_negative_one(part[d] - reference);
    total = std::fma(part[d + 1], factor, total);
    for (int c = 0; c < d; ++c) out[c] += part[c] * factor;
  }
  for (int c = 0; c < d; ++c) out[c] = total > 0 ? out[c] / total : 0.0f;
}

/// Launched only when splits > 1.
template <class Config>
void AttentionMerge(const Config& config, const KvccAttentionParams& p, const KvccCpuTables&, uint32_t first,
                    uint32_t last) {
  for (uint32_t block = first; block < last; ++block) {
    const int32_t head = static_cast<int32_t>(block % static_cast<uint32_t>(p.key.heads * p.group)) / p.group;
    if (config.key().bits(p.key.layer, head) == 0 || config.value().bits(p.value.layer, head) == 0) continue;
    MergeAttention(p, block, config.value().head_dim());
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
