// value_mix: sums of values by given weights, of visible positions. Grid kvcc_grid_mma_value_mix; errors as in
// values-inl.h. value_merge adds the parts of a context, grid kvcc_grid_value_merge.
#if defined(KVCC_KERNELS_CPU_VALUE_MIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_VALUE_MIX_INL_H_
#undef KVCC_KERNELS_CPU_VALUE_MIX_INL_H_
#else
#define KVCC_KERNELS_CPU_VALUE_MIX_INL_H_
#endif

#include "kernels/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// One block's part of the context; weights [queries, 64 of each page read at once] is scratch, d the values' channels.
template <class Values, class Tile>
void MixBlock(const KvccValueMixParams& p, const Work& work, Values& values, int dtype, int d, Tile& tile,
              float* weights) {
  const int64_t row = work.row(p.cache, p.group);
  constexpr int kAtOnce = Values::kPagesAtOnce;
  for (int32_t i = work.page; i < work.page_end; i += kAtOnce) {
    const Slots slots = work.context.slots(i);
    const int count = std::min(kAtOnce, work.page_end - i);
    for (int g = 0; g < work.queries; ++g) {
      const int64_t at = (row + g) * p.weights_stride + p.cache.sink + int64_t{i} * kPage;
      for (int slot = 0; slot < count * kPage; ++slot) {
        weights[g * kAtOnce * kPage + slot] = slots.has(slot) ? load_element(dtype, p.weights, at + slot) : 0.0f;
      }
    }
    values.add_pages(i, count, tile, weights);
  }
  for (int32_t i = work.tile; i < work.tile_end; ++i) {
    const int32_t from = work.context.exact_block(i) * kPage;
    for (int32_t position = from; position < from + kPage; ++position) {
      if (!work.context.exact(p.cache, position)) continue;
      for (int g = 0; g < work.queries; ++g) {
        weights[g] = load_element(dtype, p.weights, (row + g) * p.weights_stride + position);
      }
      values.add_exact(position, weights, 1);
    }
  }
  const int64_t rows = static_cast<int64_t>(p.cache.heads) * p.group;
  float* const to = p.splits == 1 ? p.out + row * d
                                  : p.partial + ((static_cast<int64_t>(work.sequence) * p.splits + work.split) * rows +
                                                 (row - work.sequence * rows)) *
                                                    d;
  for (int g = 0; g < work.queries; ++g) values.finish(g, to + static_cast<int64_t>(g) * d);
}

/// `config` has value(), dtype() (config.h).
template <class Config>
void ValueMix(const Config& config, const KvccValueMixParams& p, const KvccCpuTables& tables, uint32_t first,
              uint32_t last) {
  const auto& tensor = config.value();
  ValueScratch scratch;
  TileScratch tile;
  alignas(64) float weights[kMaxQueries * kPage];
  for (uint32_t block = first; block < last; ++block) {
    const Work work(p.cache, block, p.group, p.splits, p.window);
    if (tensor.bits(p.cache.layer, work.head) == 0) continue;
    Values values(tensor, p.cache, tables, work, scratch);
    MixBlock(p, work, values, config.dtype(), tensor.head_dim(), tile, weights);
  }
}

/// Block `block` of kvcc_grid_value_merge: parts added in order; d: the values' channels. serves(head): whether the
/// unit does.
template <class Serves>
void MergeValues(const KvccValueMixParams& p, uint32_t block, int d, const Serves& serves) {
  const int64_t head_elements = int64_t{p.group} * d, elements = p.cache.heads * head_elements;
  const uint32_t width = kvcc_grid_value_merge(&p, d).x;
  const int64_t sequence = block / width, begin = static_cast<int64_t>(block % width) * KVCC_THREADS;
  for (int64_t i = begin; i < std::min<int64_t>(begin + KVCC_THREADS, elements); ++i) {
    if (!serves(static_cast<int32_t>(i / head_elements))) continue;
    const float* from = p.partial + sequence * p.splits * elements + i;
    float sum = from[0];
    for (int32_t split = 1; split < p.splits; ++split) sum += from[split * elements];
    p.out[sequence * elements + i] = sum;
  }
}

/// Launched only when splits > 1.
template <class Config>
void ValueMerge(const Config& config, const KvccValueMixParams& p, const KvccCpuTables&, uint32_t first,
                uint32_t last) {
  const auto& tensor = config.value();
  const auto serves = [&](int32_t head) { return tensor.bits(p.cache.layer, head) != 0; };
  for (uint32_t block = first; block < last; ++block) MergeValues(p, block, tensor.head_dim(), serves);
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
