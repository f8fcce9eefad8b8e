// A tile's codes between the order of layout mma-1 and rows of bytes, one a token. Both ways go through the lanes'
// pairs, as bytes: a vector takes the same field of many lanes' words at once, so a code costs a fraction of an
// instruction, and the words of a page's earlier tokens are read only where new tokens share their groups.
#if defined(KVCC_KERNELS_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_TILE_INL_H_
#undef KVCC_KERNELS_CPU_TILE_INL_H_
#else
#define KVCC_KERNELS_CPU_TILE_INL_H_
#endif

#include <cstring>

#include "formats/layout/mma.h"
#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Scratch of one tile.
struct CodeScratch {
  alignas(64) uint32_t words[128][mma::kLanes];  ///< word w of every lane
  alignas(64) uint8_t pairs[2][256 * 32];        ///< pair e of lane l at 32 e + l. 8 bits: first and second codes apart
};

/// A tile of `dim` channels. Rows are u8 [64, dim], a code each.
template <mma::Tensor kTensor, int kBits>
class TileCodes {
 public:
  TileCodes(uint32_t dim, CodeScratch& scratch) : dim_(dim), octets_(dim / 8u), scratch_(scratch) {}

  /// Words to pairs, for bands [first, last): they and the pairs that lie in the same groups.
  HWY_INLINE void ReadPairs(const uint32_t* tile, uint32_t first, uint32_t last) {
    const uint32_t begin = first * octets_ / 16u, end = (last * octets_ + 15u) / 16u;
    ReadWords(tile, begin * kBits, end * kBits);
    for (uint32_t group = begin; group < end; ++group) SplitWords(group);
  }
  /// Pairs to words, from band `first` on; pairs of the same group before it must be there.
  HWY_INLINE void WritePairs(uint32_t* tile, uint32_t first) {
    const uint32_t begin = first * octets_ / 16u;
    for (uint32_t group = begin; group < dim_ / 16u; ++group) MakeWords(group);
    WriteWords(tile, begin * kBits);
  }
  /// Pairs of bands from `first` on become 0.
  HWY_INLINE void ClearPairs(uint32_t first) {
    for (uint32_t plane = 0; plane < kPlanes; ++plane) {
      std::memset(scratch_.pairs[plane] + first * octets_ * 32u, 0, (dim_ - first * octets_) * 32u);
    }
  }
  /// Pairs of a band to its eight rows, and back.
  HWY_INLINE void PairsToRows(uint32_t band, uint8_t* rows) const {
    if constexpr (kTensor == mma::Tensor::key) {
      for (uint32_t octet = 0; octet < octets_; ++octet) {
        for (uint32_t r = 0; r < 8u; ++r) {
          const uint64_t codes = SplitPairs((band * octets_ + octet) * 32u + 4u * r);
          std::memcpy(rows + (band * 8u + r) * dim_ + octet * 8u, &codes, 8);
        }
      }
    } else {
      ValuePairsToRows(band, rows + band * 8u * dim_);
    }
  }
  HWY_INLINE void RowsToPairs(uint32_t band, const uint8_t* rows) {
    if constexpr (kTensor == mma::Tensor::key) {
      for (uint32_t r = 0; r < 8u; ++r) {
        const uint8_t* const row = rows + (band * 8u + r) * dim_;
        for (uint32_t octet = 0; octet < octets_; ++octet) {
          uint64_t codes;
          std::memcpy(&codes, row + octet * 8u, 8);
          MakePairs(codes, (band * octets_ + octet) * 32u + 4u * r);
        }
      }
    } else {
      ValueRowsToPairs(band, rows + band * 8u * dim_);
    }
  }

 private:
  using Words = hn::ScalableTag<uint32_t>;
  using Bytes = hn::Rebind<uint8_t, Words>;
  using Channels = hn::FixedTag<uint8_t, 16>;
  static constexpr uint32_t kStep = static_cast<uint32_t>(hn::MaxLanes(Words()));
  static_assert(mma::kLanes % kStep == 0);
  static constexpr uint32_t kPlanes = kBits == 8 ? 2u : 1u;
  static constexpr uint32_t kEach = kBits == 3 ? 5u : 16u / kBits;  ///< pairs of a word
  static constexpr int kStart = static_cast<int>(mma::pair_bit(0, kBits));
  static constexpr uint32_t kCode = (1u << kBits) - 1u;

  /// The pairs of a word follow one another from bit kStart on, as this class takes for granted.
  static constexpr bool fields_follow() {
    for (uint32_t e = 0; e < kEach * kBits; ++e) {
      if (mma::pair_word(e, kBits) != e / kEach) return false;
      if (mma::pair_bit(e, kBits) != (kStart + 2u * kBits * (e % kEach)) % 32u) return false;
    }
    return true;
  }
  static_assert(fields_follow());

  template <int kLeft>
  static HWY_INLINE hn::Vec<Words> RotateLeft(hn::Vec<Words> v) {
    if constexpr (kLeft == 0) {
      return v;
    } else {
      return hn::Or(hn::ShiftLeft<kLeft>(v), hn::ShiftRight<32 - kLeft>(v));
    }
  }
  static HWY_INLINE void StoreBytes(hn::Vec<Words> v, uint8_t* to) {  // of values below 256
    hn::StoreU(hn::DemoteTo(Bytes(), hn::BitCast(hn::RebindToSigned<Words>(), v)), Bytes(), to);
  }
  static HWY_INLINE hn::Vec<Words> LoadBytes(const uint8_t* from) {
    return hn::PromoteTo(Words(), hn::LoadU(Bytes(), from));
  }

  /// mma::word_place, plane by plane: every plane that holds one of words [first, last).
  HWY_INLINE void ReadWords(const uint32_t* tile, uint32_t first, uint32_t last) {
    const Words d;
    const uint32_t words = mma::lane_words(dim_, kBits), quads = words / 4u, rest = words % 4u;
    for (uint32_t q = first / 4u; q < quads && 4u * q < last; ++q) {
      for (uint32_t lane = 0; lane < mma::kLanes; lane += kStep) {
        hn::Vec<Words> v0, v1, v2, v3;
        hn::LoadInterleaved4(d, tile + q * 128u + lane * 4u, v0, v1, v2, v3);
        hn::Store(v0, d, scratch_.words[4u * q] + lane);
        hn::Store(v1, d, scratch_.words[4u * q + 1u] + lane);
        hn::Store(v2, d, scratch_.words[4u * q + 2u] + lane);
        hn::Store(v3, d, scratch_.words[4u * q + 3u] + lane);
      }
    }
    if (rest == 0 || last <= 4u * quads) return;
    const uint32_t* const left = tile + quads * 128u;
    for (uint32_t lane = 0; lane < mma::kLanes && rest >= 2u; lane += kStep) {
      hn::Vec<Words> v0, v1;
      hn::LoadInterleaved2(d, left + lane * 2u, v0, v1);
      hn::Store(v0, d, scratch_.words[4u * quads] + lane);
      hn::Store(v1, d, scratch_.words[4u * quads + 1u] + lane);
    }
    if (rest % 2u) std::memcpy(scratch_.words[words - 1u], left + (rest >= 2u ? 64u : 0u), mma::kLanes * 4u);
  }
  HWY_INLINE void WriteWords(uint32_t* tile, uint32_t first) const {
    const Words d;
    const uint32_t words = mma::lane_words(dim_, kBits), quads = words / 4u, rest = words % 4u;
    for (uint32_t q = first / 4u; q < quads; ++q) {
      for (uint32_t lane = 0; lane < mma::kLanes; lane += kStep) {
        hn::StoreInterleaved4(hn::Load(d, scratch_.words[4u * q] + lane),
                              hn::Load(d, scratch_.words[4u * q + 1u] + lane),
                              hn::Load(d, scratch_.words[4u * q + 2u] + lane),
                              hn::Load(d, scratch_.words[4u * q + 3u] + lane), d, tile + q * 128u + lane * 4u);
      }
    }
    uint32_t* const left = tile + quads * 128u;
    for (uint32_t lane = 0; lane < mma::kLanes && rest >= 2u; lane += kStep) {
      hn::StoreInterleaved2(hn::Load(d, scratch_.words[4u * quads] + lane),
                            hn::Load(d, scratch_.words[4u * quads + 1u] + lane), d, left + lane * 2u);
    }
    if (rest % 2u) std::memcpy(left + (rest >= 2u ? 64u : 0u), scratch_.words[words - 1u], mma::kLanes * 4u);
  }

  /// Sixteen pairs of every lane from `kBits` words of every lane.
  HWY_INLINE void SplitWords(uint32_t group) {
    const Words d;
    for (uint32_t lane = 0; lane < mma::kLanes; lane += kStep) {
      auto last = hn::Zero(d);  // pair 15 of three bits
      for (uint32_t j = 0; j < kBits; ++j) {
        const auto word = hn::Load(d, scratch_.words[group * kBits + j] + lane);
        auto fields = RotateLeft<(32 - kStart) % 32>(word);
        uint32_t at = (group * 16u + j * kEach) * 32u + lane;
        for (uint32_t e = 0; e < kEach; ++e, at += 32u) {
          if constexpr (kBits == 8) {
            StoreBytes(hn::And(fields, hn::Set(d, kCode)), scratch_.pairs[0] + at);
            fields = hn::ShiftRight<8>(fields);
            StoreBytes(hn::And(fields, hn::Set(d, kCode)), scratch_.pairs[1] + at);
            fields = hn::ShiftRight<8>(fields);
          } else {
            StoreBytes(hn::And(fields, hn::Set(d, (1u << 2 * kBits) - 1u)), scratch_.pairs[0] + at);
            fields = hn::ShiftRight<2 * kBits>(fields);
          }
        }
        if constexpr (kBits == 3) {
          const auto piece = hn::And(RotateLeft<1>(word), hn::Set(d, 3u));
          last = hn::Or(last, hn::ShiftLeftSame(piece, static_cast<int>(2u * j)));
        }
      }
      if constexpr (kBits == 3) StoreBytes(last, scratch_.pairs[0] + (group * 16u + 15u) * 32u + lane);
    }
  }
  HWY_INLINE void MakeWords(uint32_t group) {
    const Words d;
    for (uint32_t lane = 0; lane < mma::kLanes; lane += kStep) {
      auto last = hn::Zero(d);
      if constexpr (kBits == 3) last = LoadBytes(scratch_.pairs[0] + (group * 16u + 15u) * 32u + lane);
      for (uint32_t j = 0; j < kBits; ++j) {
        auto fields = hn::Zero(d);
        uint32_t at = (group * 16u + (j + 1u) * kEach) * 32u + lane;
        for (uint32_t e = 0; e < kEach; ++e) {
          at -= 32u;
          if constexpr (kBits == 8) {
            fields = hn::Or(hn::ShiftLeft<8>(fields), LoadBytes(scratch_.pairs[1] + at));
            fields = hn::Or(hn::ShiftLeft<8>(fields), LoadBytes(scratch_.pairs[0] + at));
          } else {
            fields = hn::Or(hn::ShiftLeft<2 * kBits>(fields), LoadBytes(scratch_.pairs[0] + at));
          }
        }
        auto word = RotateLeft<kStart>(fields);
        if constexpr (kBits == 3) {
          word = hn::Or(word, RotateLeft<31>(hn::And(last, hn::Set(d, 3u))));
          last = hn::ShiftRight<2>(last);
        }
        hn::Store(word, d, scratch_.words[group * kBits + j] + lane);
      }
    }
  }

  /// Eight codes of a key's row, a byte each, from the four pairs at `at`, and back.
  HWY_INLINE uint64_t SplitPairs(uint32_t at) const {
    constexpr uint64_t kLow = 0x0001000100010001u * kCode;
    if constexpr (kBits == 8) {
      return Spread(scratch_.pairs[0] + at) | Spread(scratch_.pairs[1] + at) << 8;
    } else {
      const uint64_t pairs = Spread(scratch_.pairs[0] + at);
      return (pairs & kLow) | (pairs << (8 - kBits) & kLow << 8);
    }
  }
  HWY_INLINE void MakePairs(uint64_t codes, uint32_t at) {
    if constexpr (kBits == 8) {
      Gather(codes, scratch_.pairs[0] + at);
      Gather(codes >> 8, scratch_.pairs[1] + at);
    } else {
      Gather(codes | codes >> (8 - kBits), scratch_.pairs[0] + at);
    }
  }
  /// Four bytes to four 16-bit numbers, and the low bytes of these back.
  static HWY_INLINE uint64_t Spread(const uint8_t* from) {
    uint32_t bytes;
    std::memcpy(&bytes, from, 4);
    const uint64_t halves = (bytes | uint64_t{bytes} << 16) & 0x0000ffff0000ffffu;
    return (halves | halves << 8) & 0x00ff00ff00ff00ffu;
  }
  static HWY_INLINE void Gather(uint64_t numbers, uint8_t* to) {
    const uint64_t low = numbers & 0x00ff00ff00ff00ffu, halves = (low | low >> 8) & 0x0000ffff0000ffffu;
    const uint32_t bytes = static_cast<uint32_t>(halves | halves >> 16);
    std::memcpy(to, &bytes, 4);
  }

  /// A value's pairs: byte 4 c + t of a band is that of channel c and tokens 2 t, 2 t + 1.
  HWY_INLINE void ValuePairsToRows(uint32_t band, uint8_t* rows) const {
    const Channels d;
    const uint32_t first = band * octets_ * 32u;
    for (uint32_t c = 0; c < dim_; c += 16u) {
      hn::Vec<Channels> low[4], high[4];
      hn::LoadInterleaved4(d, scratch_.pairs[0] + first + 4u * c, low[0], low[1], low[2], low[3]);
      if constexpr (kBits == 8) {
        hn::LoadInterleaved4(d, scratch_.pairs[1] + first + 4u * c, high[0], high[1], high[2], high[3]);
      }
      for (uint32_t t = 0; t < 4u; ++t) {
        if constexpr (kBits < 8) {
          high[t] = hn::ShiftRight<kBits>(low[t]);
          low[t] = hn::And(low[t], hn::Set(d, static_cast<uint8_t>(kCode)));
        }
        hn::StoreU(low[t], d, rows + 2u * t * dim_ + c);
        hn::StoreU(high[t], d, rows + (2u * t + 1u) * dim_ + c);
      }
    }
  }
  HWY_INLINE void ValueRowsToPairs(uint32_t band, const uint8_t* rows) {
    const Channels d;
    const uint32_t first = band * octets_ * 32u;
    for (uint32_t c = 0; c < dim_; c += 16u) {
      hn::Vec<Channels> low[4], high[4];
      for (uint32_t t = 0; t < 4u; ++t) {
        low[t] = hn::LoadU(d, rows + 2u * t * dim_ + c);
        high[t] = hn::LoadU(d, rows + (2u * t + 1u) * dim_ + c);
        if constexpr (kBits < 8) low[t] = hn::Or(low[t], hn::ShiftLeft<kBits>(high[t]));
      }
      hn::StoreInterleaved4(low[0], low[1], low[2], low[3], d, scratch_.pairs[0] + first + 4u * c);
      if constexpr (kBits == 8) {
        hn::StoreInterleaved4(high[0], high[1], high[2], high[3], d, scratch_.pairs[1] + first + 4u * c);
      }
    }
  }

  uint32_t dim_, octets_;
  CodeScratch& scratch_;
};

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVCC_KERNELS_CPU_TILE_INL_H_
