// key_scores: multiplier * <query, RoPE_p(key)> of visible positions. Grid kvcc_grid_mma_key_scores; errors as in
// keys-inl.h.
#if defined(KVCC_KERNELS_CPU_KEY_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_KEY_SCORES_INL_H_
#undef KVCC_KERNELS_CPU_KEY_SCORES_INL_H_
#else
#define KVCC_KERNELS_CPU_KEY_SCORES_INL_H_
#endif

#include "kernels/cpu/keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

HWY_INLINE const void* element_at(int dtype, const void* from, int64_t i) {
  return static_cast<const uint8_t*>(from) + i * (dtype == KVCC_DTYPE_F32 ? 4 : 2);
}

/// One block's part of the context; scores [queries, 64 of each page read at once] is scratch.
template <class Keys, class Tile>
void ScoreBlock(const KvccMmaKeyScoresParams& p, const Work& work, Keys& keys, Tile& tile, float* scores) {
  float* const out = p.scores + work.row(p.cache, p.group) * p.scores_stride;
  constexpr int kAtOnce = Keys::kPagesAtOnce, kStride = kAtOnce * kPage;
  for (int32_t i = work.page; i < work.page_end; i += kAtOnce) {
    const int count = std::min(kAtOnce, work.page_end - i);
    keys.score_pages(i, count, tile, scores);
    const Slots slots = work.context.slots(i);
    const int begin = std::max(slots.begin, 0), end = std::min(slots.end, count * kPage);
    for (int g = 0; g < work.queries; ++g) {
      std::copy(scores + g * kStride + begin, scores + g * kStride + end,
                out + g * p.scores_stride + p.cache.sink + i * kPage + begin);
    }
  }
  for (int32_t i = work.tile; i < work.tile_end; ++i) {
    const int32_t from = work.context.exact_block(i) * kPage;
    for (int32_t position = from; position < from + kPage; ++position) {
      if (!work.context.exact(p.cache, position)) continue;
      keys.score_exact(position, scores, 1);
      for (int g = 0; g < work.queries; ++g) out[g * p.scores_stride + position] = scores[g];
    }
  }
}

/// `config` has key(), rope(), rotary_dim(), dtype() (config.h).
template <class Config>
void KeyScores(const Config& config, const KvccMmaKeyScoresParams& p, const KvccCpuTables& tables, uint32_t first,
               uint32_t last) {
  const auto& tensor = config.key();
  KeyScratch scratch;
  TileScratch tile;
  alignas(64) float scores[kMaxQueries * kPage];
  for (uint32_t block = first; block < last; ++block) {
    const Work work(p.cache, block, p.group, p.splits, p.window);
    if (tensor.bits(p.cache.layer, work.head) == 0) continue;
    if (work.page >= work.page_end && work.tile >= work.tile_end) continue;
    const int64_t row = work.row(p.cache, p.group);
    Keys keys(config, p.cache, p.rope, tables, work, element_at(config.dtype(), p.query, row * tensor.head_dim()),
              p.multiplier, scratch);
    ScoreBlock(p, work, keys, tile, scores);
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
