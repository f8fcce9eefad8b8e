// Outliers, written over the levels of a tile (decode-inl.h) as the level that would decode to their value,
// (value - zero) / scale: readers then know nothing of them. A scale below 2^-60 counts as 2^-60 here and in the
// readers, so that this level is finite.
#if defined(KVCC_KERNELS_CPU_OUTLIERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_OUTLIERS_INL_H_
#undef KVCC_KERNELS_CPU_OUTLIERS_INL_H_
#else
#define KVCC_KERNELS_CPU_OUTLIERS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

constexpr float kLeastReadScale = 0x1p-60f;
/// A scale as the readers take it.
HWY_INLINE float read_scale(float scale) { return scale < kLeastReadScale ? kLeastReadScale : scale; }
/// Static scale and zero-point of a head's channel.
HWY_INLINE float channel_scale(const KvccCache& c, int head, int head_dim, int channel) {
  return read_scale(c.scale[head * head_dim + channel]);
}
HWY_INLINE float channel_zero(const KvccCache& c, int head, int head_dim, int channel) {
  return c.zero[head * head_dim + channel];
}

/// How an outlier's value becomes a level, by channel or by token as scales go.
struct OutlierTables {
  alignas(64) float zero[kMaxHeadDim], inverse[kMaxHeadDim];  ///< inverse of the scale times the level's unit
  alignas(64) float unit[kMaxHeadDim];                        ///< scale times unit

  /// From the static scales of a head's channels.
  void set_channels(const KvccCache& c, int head, int head_dim, float level_unit) {
    HWY_ALIGN float scales[kMaxHeadDim], zeros[kMaxHeadDim];
    for (int i = 0; i < head_dim; ++i) {
      scales[i] = channel_scale(c, head, head_dim, i);
      zeros[i] = channel_zero(c, head, head_dim, i);
    }
    set(scales, zeros, head_dim, level_unit);
  }
  /// From scales and zero-points of tokens, 0 of those that are not visible, or of channels.
  void set(const float* HWY_RESTRICT scales, const float* HWY_RESTRICT zeros, int count, float level_unit) {
    const DF d;
    for (int i = 0; i < count; i += kLanes) {
      const VF u = hn::Mul(hn::Load(d, scales + i), hn::Set(d, level_unit));
      hn::Store(u, d, unit + i);
      hn::Store(hn::Load(d, zeros + i), d, zero + i);
      hn::Store(hn::IfThenElseZero(hn::Gt(u, hn::Zero(d)), hn::Div(hn::Set(d, 1.0f), u)), d, inverse + i);
    }
  }
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
/// table[index] of a table of `size` floats.
HWY_INLINE __m512 look_up(const float* HWY_RESTRICT table, int size, __m512i index) {
  const __m512i block = _mm512_srli_epi32(index, 5);
  __m512 x = _mm512_permutex2var_ps(_mm512_load_ps(table), index, _mm512_load_ps(table + 16));
  for (int i = 1; i * 32 < size; ++i) {
    const __mmask16 here = _mm512_cmpeq_epi32_mask(block, _mm512_set1_epi32(i));
    x = _mm512_mask_blend_ps(
        here, x, _mm512_permutex2var_ps(_mm512_load_ps(table + 32 * i), index, _mm512_load_ps(table + 32 * i + 16)));
  }
  return x;
}

/// As write_outliers() below, 16 at a time.
template <mma::Tensor kTensor, bool kShorts, bool kByToken, class Rest>
HWY_INLINE void write_outlier_vectors(const PageParts& tile, int capacity, int head_dim, const OutlierTables& tables,
                                      TileScratch& scratch, const Rest& rest) {
  const int count = std::min<int>(tile.ends[mma::kClasses - 1], capacity);
  const __m512i low3 = _mm512_set1_epi32(7), band_size = _mm512_set1_epi32(head_dim * 8);
  const __m512i numbers = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  alignas(64) int32_t places[16], whole[16];
  alignas(64) float levels[16];
  for (int first = 0; first < count; first += 16) {
    const int here = std::min(16, count - first);
    const auto valid = static_cast<__mmask16>((1u << here) - 1u);
    const __m512i record = _mm512_maskz_loadu_epi32(valid, tile.records + first);
    const __m512i number = _mm512_add_epi32(numbers, _mm512_set1_epi32(first));
    __m512i band = _mm512_setzero_si512();
    for (int i = 0; i < static_cast<int>(mma::kClasses) - 1; ++i) {
      const __m512i end = _mm512_set1_epi32(tile.ends[i]);
      band = _mm512_mask_add_epi32(band, _mm512_cmpge_epi32_mask(number, end), band, _mm512_set1_epi32(1));
    }
    const __m512i channel = _mm512_and_si512(record, _mm512_set1_epi32(255));
    const __m512i row = _mm512_and_si512(_mm512_srli_epi32(record, 8), low3);
    const __m512i token = _mm512_or_si512(_mm512_slli_epi32(band, 3), row), column = _mm512_and_si512(channel, low3);
    const __m512i along = kTensor == mma::Tensor::key ? column : row,
                  across = kTensor == mma::Tensor::key ? row : column;
    const __m512i half = _mm512_slli_epi32(_mm512_and_si512(across, _mm512_set1_epi32(4)), 3);
    const __m512i g = _mm512_and_si512(across, _mm512_set1_epi32(3));
    const __m512i t = _mm512_slli_epi32(_mm512_srli_epi32(along, 1), kShorts ? 3 : 2);
    const __m512i second = _mm512_and_si512(along, _mm512_set1_epi32(1));
    const __m512i element = kShorts ? _mm512_add_epi32(_mm512_add_epi32(g, g), _mm512_or_si512(t, second))
                                    : _mm512_or_si512(_mm512_or_si512(g, t), _mm512_slli_epi32(second, 4));
    const __m512i octet = _mm512_slli_epi32(_mm512_srli_epi32(channel, 3), 6);
    const __m512i place =
        _mm512_add_epi32(_mm512_mullo_epi32(band, band_size), _mm512_add_epi32(octet, _mm512_or_si512(half, element)));
    const __m512i index = kByToken ? token : channel;
    const int size = kByToken ? kPage : head_dim;
    const __m512 value = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(record, 16)));
    const __m512 level =
        _mm512_mul_ps(_mm512_sub_ps(value, look_up(tables.zero, size, index)), look_up(tables.inverse, size, index));
    _mm512_store_si512(places, place);
    if constexpr (kShorts) {
      const __m512 most = _mm512_set1_ps(32767.0f);
      _mm512_store_si512(whole, _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(level, most),
                                                                 _mm512_sub_ps(_mm512_setzero_ps(), most))));
      for (int i = 0; i < here; ++i) scratch.shorts[places[i]] = static_cast<int16_t>(whole[i]);
      __mmask16 over = _mm512_mask_cmp_ps_mask(valid, _mm512_abs_ps(level), most, _CMP_GT_OQ);
      if (over != 0) [[unlikely]] {
        alignas(64) int32_t tokens[16], channels[16];
        _mm512_store_ps(levels, _mm512_mul_ps(_mm512_sub_ps(level, _mm512_cvtepi32_ps(_mm512_load_si512(whole))),
                                              look_up(tables.unit, size, index)));
        _mm512_store_si512(tokens, token);
        _mm512_store_si512(channels, channel);
        for (int i = 0; i < here; ++i) {
          if (over >> i & 1) rest(tokens[i], channels[i], levels[i]);
        }
      }
    } else {
      _mm512_store_ps(levels, level);
      for (int i = 0; i < here; ++i) scratch.floats[places[i]] = levels[i];
    }
  }
}
#endif

/// The tile's outliers over its levels. Where one does not fit i16, rest(token, channel, what is missing) is called.
template <mma::Tensor kTensor, bool kShorts, bool kByToken, class Rest>
HWY_INLINE void write_outliers(const PageParts& tile, int capacity, int head_dim, const OutlierTables& tables,
                               TileScratch& scratch, const Rest& rest) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  write_outlier_vectors<kTensor, kShorts, kByToken>(tile, capacity, head_dim, tables, scratch, rest);
#else
  static_assert(!kShorts);
  (void)rest;
  const int count = std::min<int>(tile.ends[mma::kClasses - 1], capacity);
  int i = 0;
  for (uint32_t band = 0; band < mma::kClasses; ++band) {
    const int end = std::min<int>(tile.ends[band], count);
    for (; i < end; ++i) {
      const mma::Element at = mma::record_element(tile.records[i].place, band);
      const uint32_t along = (kTensor == mma::Tensor::key ? at.channel : at.token) % 8u;
      const uint32_t across = (kTensor == mma::Tensor::key ? at.token : at.channel) % 8u;
      const uint32_t place = (band * static_cast<uint32_t>(head_dim) / 8u + at.channel / 8u) * 64u + across / 4u * 32u +
                             along % 2u * 16u + along / 2u * 4u + across % 4u;
      const uint32_t index = kByToken ? at.token : at.channel;
      scratch.floats[place] = (half_to_float(tile.records[i].value) - tables.zero[index]) * tables.inverse[index];
    }
  }
#endif
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
