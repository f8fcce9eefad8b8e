// Codes of a tile to levels in memory, the same for keys and values.
//
// Levels lie pair by pair, 64 a pair: half h (lanes 16 h to 16 h + 15 of the layout), then 16 elements e = 4 t + g with
// lane = 4 (4 h + g) + t. For pair (band, octet)
//   keys    token 8 band + 4 h + g,    channels 8 octet + 2 t, + 1;
//   values  channel 8 octet + 4 h + g, tokens 8 band + 2 t, + 1.
// f32: 16 first levels, then 16 second ones. i16: 16 pairs (first, second).
#if defined(KVCC_KERNELS_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_DECODE_INL_H_
#undef KVCC_KERNELS_CPU_DECODE_INL_H_
#else
#define KVCC_KERNELS_CPU_DECODE_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/walk.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#undef KVCC_CPU_I16
#if HWY_TARGET == HWY_AVX3_DL
#define KVCC_CPU_I16 1
#else
#define KVCC_CPU_I16 0
#endif

/// Up to 16 floats: all vectors here divide 16 elements evenly.
using DF = hn::CappedTag<float, 16>;
using DU = hn::Rebind<uint32_t, DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
static_assert(16 % kLanes == 0);

/// Four neighbours at `to`.
HWY_INLINE void store_four(float x, float* HWY_RESTRICT to) {
  const hn::CappedTag<float, 4> d;
  for (int i = 0; i < 4; i += static_cast<int>(hn::MaxLanes(d))) hn::StoreU(hn::Set(d, x), d, to + i);
}

/// f(n) for `queries` queries, n at most 4 and a constant.
template <class F>
HWY_INLINE void with_queries(int queries, const F& f) {
  switch (queries) {
    case 1:
      return f(std::integral_constant<int, 1>());
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    default:
      return f(std::integral_constant<int, 4>());
  }
}

/// By how much words are turned right, so that no field wraps; then field e of a word begins at bit 2 bits e.
constexpr int word_turn(int bits) { return bits == 2 ? 3 : bits == 3 ? 1 : bits == 4 ? 7 : 0; }

template <int kTurn>
HWY_INLINE VU turn_right(VU v) {
  if constexpr (kTurn == 0) return v;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return VU{_mm512_ror_epi32(v.raw, kTurn)};
#else
  return hn::Or(hn::ShiftRight<kTurn>(v), hn::ShiftLeft<(32 - kTurn) % 32>(v));
#endif
}

/// A tile's words by lane: [half][word][e], turned. `words`: of a lane.
template <int kTurn>
HWY_INLINE void sort_words(const uint32_t* HWY_RESTRICT tile, int words, uint32_t* HWY_RESTRICT out) {
#if HWY_TARGET != HWY_SCALAR
  const DU d;
  const hn::Repartition<uint64_t, DU> d64;
#endif
  const int quads = kLanes < 4 ? 0 : words / 4;
  for (int h = 0; h < 2; ++h) {
    uint32_t* to = out + h * words * 16;
#if HWY_TARGET != HWY_SCALAR
    for (int q = 0; q < quads; ++q, to += 64) {
      const uint32_t* from = tile + q * 128 + h * 64;
      for (int v = 0; v < 16; v += kLanes) {
        const VU a = turn_right<kTurn>(hn::LoadU(d, from + v)), b = turn_right<kTurn>(hn::LoadU(d, from + 16 + v));
        const VU c = turn_right<kTurn>(hn::LoadU(d, from + 32 + v)), e = turn_right<kTurn>(hn::LoadU(d, from + 48 + v));
        const auto ab = hn::BitCast(d64, hn::InterleaveLower(d, a, b)),
                   ce = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
        const auto AB = hn::BitCast(d64, hn::InterleaveUpper(d, a, b)),
                   CE = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
        hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, ab, ce)), d, to + v);
        hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce)), d, to + 16 + v);
        hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, AB, CE)), d, to + 32 + v);
        hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, AB, CE)), d, to + 48 + v);
      }
    }
#endif
    for (int w = 4 * quads; w < words; ++w, to += 16) {  // the planes of two words and of one
      for (uint32_t e = 0; e < 16; ++e) {
        const uint32_t lane = static_cast<uint32_t>(16 * h) + e % 4 * 4 + e / 4;
        const uint32_t x = tile[mma::word_place(static_cast<uint32_t>(w), lane, static_cast<uint32_t>(words))];
        to[e] = mma::rotate_left(x, (32 - kTurn) % 32);
      }
    }
  }
}

/// Pair 15 of a group of three-bit pairs, from the turned words.
HWY_INLINE VU last_pair(VU a, VU b, VU c) {
  const DU d;
  return hn::Or(hn::ShiftRight<30>(a), hn::Or(hn::And(hn::ShiftRight<28>(b), hn::Set(d, 12u)),
                                              hn::And(hn::ShiftRight<26>(c), hn::Set(d, 48u))));
}

/// The levels of one head, for look-up by the low bits of an index; higher bits may be any.
template <int kBits>
class FloatLevels {
 public:
  explicit FloatLevels(const float* levels) : levels_(levels) {
    if constexpr (kBits <= 4 && kLanes >= 4) {
      HWY_ALIGN float all[16];
      for (int i = 0; i < 16; ++i) all[i] = levels[i % (1 << kBits)];
      for (int i = 0; i < kTables; ++i) table_[i] = hn::Load(DF(), all + i * kLanes);
    }
  }
  HWY_INLINE VF at(VU index) const {
    const DU d;
    if constexpr (kBits > 4) {
      return hn::GatherIndex(DF(), levels_, hn::BitCast(hn::RebindToSigned<DU>(), hn::And(index, hn::Set(d, 255u))));
    } else {
#if HWY_TARGET == HWY_SCALAR
      return hn::Set(DF(), levels_[hn::GetLane(index) % (1u << kBits)]);
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
      return VF{_mm512_permutexvar_ps(index.raw, table_[0].raw)};
#else
      const auto low = hn::IndicesFromVec(DF(), hn::And(index, hn::Set(d, kLanes - 1u)));
      VF x = hn::TableLookupLanes(table_[0], low);
      if constexpr (kTables > 1) {
        const auto bit = hn::RebindMask(DF(), hn::TestBit(index, hn::Set(d, static_cast<uint32_t>(kLanes))));
        x = hn::IfThenElse(bit, hn::TableLookupLanes(table_[1], low), x);
        if constexpr (kTables > 2) {
          const VF y = hn::IfThenElse(bit, hn::TableLookupLanes(table_[3], low), hn::TableLookupLanes(table_[2], low));
          x = hn::IfThenElse(hn::RebindMask(DF(), hn::TestBit(index, hn::Set(d, 2u * kLanes))), y, x);
        }
      }
      return x;
#endif
    }
  }

 private:
  static constexpr int kTables = kBits > 4 || kLanes<4 ? 1 : (1 << kBits)> kLanes ? (1 << kBits) / kLanes : 1;
  const float* levels_;
  VF table_[kTables];
};

template <int kBits, int kField>
HWY_INLINE void decode_field(VU word, const FloatLevels<kBits>& levels, float* HWY_RESTRICT out) {
  hn::Store(levels.at(hn::ShiftRight<2 * kBits * kField>(word)), DF(), out);
  hn::Store(levels.at(hn::ShiftRight<2 * kBits * kField + kBits>(word)), DF(), out + 16);
}
template <int kBits, int kField, int kFields>
HWY_INLINE void decode_word(VU word, const FloatLevels<kBits>& levels, float* HWY_RESTRICT out) {
  decode_field<kBits, kField>(word, levels, out);
  if constexpr (kField + 1 < kFields) decode_word<kBits, kField + 1, kFields>(word, levels, out + 64);
}

/// Sorted words of a tile to f32 levels, [head_dim pairs, 64].
template <int kBits>
HWY_NOINLINE void decode_floats(const uint32_t* HWY_RESTRICT words, int head_dim, const float* table,
                                float* HWY_RESTRICT out, const uint32_t* ahead) {
  const FloatLevels<kBits> levels(table);
  const DU d;
  constexpr int kFields = kBits == 3 ? 5 : 16 / kBits;
  for (int h = 0; h < 2; ++h) {
    for (int v = 0; v < 16; v += kLanes) {
      const uint32_t* from = words + h * (head_dim / 16) * kBits * 16 + v;
      float* to = out + h * 32 + v;
      for (int group = 0; group < head_dim / 16; ++group, from += 16 * kBits, to += 16 * 64) {
        KVCC_CPU_UNROLL
        for (int w = 0; w < kBits; ++w) {
          if (v == 0) __builtin_prefetch(ahead + 16 * w);
          decode_word<kBits, 0, kFields>(hn::Load(d, from + 16 * w), levels, to + w * kFields * 64);
        }
        if (v == 0) ahead += 16 * kBits;
        if constexpr (kBits == 3) {
          decode_field<3, 0>(last_pair(hn::Load(d, from), hn::Load(d, from + 16), hn::Load(d, from + 32)), levels,
                             to + 15 * 64);
        }
      }
    }
  }
}

#if KVCC_CPU_I16
/// Sorted words of a tile to i16 levels, [head_dim pairs, 64]. table: 32 levels, repeated. vpmultishiftqb brings both
/// codes of a field to the low bits of 16-bit lanes; what is above a code does not matter to vpermw in a repeated
/// table.
template <int kBits>
HWY_NOINLINE void decode_shorts(const uint32_t* HWY_RESTRICT words, int head_dim, const int16_t* HWY_RESTRICT table,
                                int16_t* HWY_RESTRICT out, const uint32_t* ahead) {
  constexpr int kFields = kBits == 3 ? 5 : 16 / kBits;
  const __m512i levels = _mm512_load_si512(table);
  __m512i control[kFields];
  KVCC_CPU_UNROLL
  for (int e = 0; e < kFields; ++e) {
    const auto bit = static_cast<long long>(2 * kBits * e);
    control[e] = _mm512_set1_epi64(bit | (bit + kBits) << 16 | (bit + 32) << 32 | (bit + 32 + kBits) << 48);
  }
  const auto put = [&](__m512i word, __m512i field, int16_t* to) HWY_ATTR {
    _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_multishift_epi64_epi8(field, word), levels));
  };
  for (int h = 0; h < 2; ++h) {
    int16_t* to = out + 32 * h;
    for (int group = 0; group < head_dim / 16; ++group, words += 16 * kBits, ahead += 16 * kBits, to += 16 * 64) {
      KVCC_CPU_UNROLL
      for (int w = 0; w < kBits; ++w) {
        __builtin_prefetch(ahead + 16 * w);
        const __m512i word = _mm512_load_si512(words + 16 * w);
        KVCC_CPU_UNROLL
        for (int e = 0; e < kFields; ++e) put(word, control[e], to + (w * kFields + e) * 64);
      }
      if constexpr (kBits == 3) {
        const DU d;
        const VU last = last_pair(hn::Load(d, words), hn::Load(d, words + 16), hn::Load(d, words + 32));
        put(last.raw, control[0], to + 15 * 64);
      }
    }
  }
}
#endif

/// Words and levels of a tile; decoding leaves them here for the readers.
struct alignas(64) TileScratch {
  uint32_t words[2 * kMaxHeadDim * 8];
  union {
    float floats[64 * kMaxHeadDim];
    int16_t shorts[64 * kMaxHeadDim];
  };
  uint8_t apart[64 * 9];  ///< two of them do not lie a multiple of 4 KiB apart
};

template <int kBits>
HWY_INLINE void decode_tile(const uint32_t* tile, int head_dim, const float* levels, const int16_t* shorts,
                            TileScratch& scratch, const uint32_t* ahead) {
  sort_words<word_turn(kBits)>(tile, head_dim * kBits / 16, scratch.words);
#if KVCC_CPU_I16
  if constexpr (kBits <= 4) {
    if (shorts != nullptr) return decode_shorts<kBits>(scratch.words, head_dim, shorts, scratch.shorts, ahead);
  }
#endif
  (void)shorts;
  decode_floats<kBits>(scratch.words, head_dim, levels, scratch.floats, ahead);
}

/// Levels of a tile into the scratch: i16 where `shorts` is given (bits at most 4), else f32. Asks for the codes of the
/// tile `ahead` on the way: all at once, they would wait for one another.
HWY_INLINE void decode(int bits, const uint32_t* tile, int head_dim, const float* levels, const int16_t* shorts,
                       TileScratch& scratch, const uint32_t* ahead) {
  switch (bits) {
    case 2:
      return decode_tile<2>(tile, head_dim, levels, shorts, scratch, ahead);
    case 3:
      return decode_tile<3>(tile, head_dim, levels, shorts, scratch, ahead);
    case 4:
      return decode_tile<4>(tile, head_dim, levels, shorts, scratch, ahead);
    default:
      return decode_tile<8>(tile, head_dim, levels, nullptr, scratch, ahead);
  }
}

/// Asks for what a tile consists of beside codes, about as many records as the last one had.
HWY_INLINE void prefetch(const PageParts& tile, int records, bool by_token) {
  if (by_token) {
    for (int i = 0; i < 4; ++i) __builtin_prefetch(tile.ranges + 16 * i);
  }
  if (records > 0) {
    __builtin_prefetch(tile.ends);
    for (int i = 0; i < records + 16; i += 16) __builtin_prefetch(tile.records + i);
  }
}

/// Low or high halves of 32-bit words, fp16, as floats. D: at most as many lanes as DF has.
template <class D, class V>
HWY_INLINE hn::Vec<D> low_halves(D d, V words) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, half_to_float(static_cast<uint16_t>(hn::GetLane(words))));
#else
  const hn::Rebind<int32_t, D> di;
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> dh;
  const auto low = hn::And(words, hn::Set(hn::Rebind<uint32_t, D>(), 0xffffu));
  return hn::PromoteTo(d, hn::BitCast(dh, hn::DemoteTo(d16, hn::BitCast(di, low))));
#endif
}
template <class D, class V>
HWY_INLINE hn::Vec<D> high_halves(D d, V words) {
  return low_halves(d, hn::ShiftRight<16>(words));
}

/// A row of fp16, `count` a multiple of 16, as floats.
HWY_INLINE void load_halves(const uint16_t* HWY_RESTRICT row, int count, float* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  for (int i = 0; i < count; i += 8) {
    hn::StoreU(hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, decltype(d)>(), hn::LoadU(d16, row + i))), d,
               to + i);
  }
#else
  for (int i = 0; i < count; ++i) to[i] = half_to_float(row[i]);
#endif
}

/// The ranges of a page's tokens, 0 of slots that are not visible: their bytes may be any.
HWY_INLINE void load_ranges(const linear::RangeRecord* ranges, const Slots& slots, float* HWY_RESTRICT scale,
                            float* HWY_RESTRICT zero) {
  const DF d;
  for (int i = 0; i < kPage; i += kLanes) {
    const VU words = hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(ranges + i));
    hn::Store(low_halves(d, words), d, scale + i);
    hn::Store(high_halves(d, words), d, zero + i);
  }
  if (slots.all()) return;
  for (int i = 0; i < kPage; ++i) {
    if (!slots.has(i)) scale[i] = zero[i] = 0;
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
