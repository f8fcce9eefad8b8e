// Codes of a tile of vector-1 to rows of coordinates in memory: row i holds coordinate i of all 64 tokens.
#if defined(KVCC_KERNELS_CPU_VECTOR_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_VECTOR_TILE_INL_H_
#undef KVCC_KERNELS_CPU_VECTOR_TILE_INL_H_
#else
#define KVCC_KERNELS_CPU_VECTOR_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "formats/layout/vector.h"
#include "kernels/cpu/decode-inl.h"
#include "kernels/cpu/vector_units.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// Where the tiles of one head of one sequence lie.
class VectorPages {
 public:
  VectorPages(const KvccCache& c, int64_t sequence, int32_t head)
      : cache_(c), first_(sequence * c.max_pages), byte_(size_t{c.head_words[head]} * 4) {}
  uint8_t* at(int32_t number) const {
    const int64_t slot = first_ + number;
    return cache_.pages + (cache_.page_table != nullptr ? cache_.page_table[slot] : slot) * cache_.page_bytes + byte_;
  }

 private:
  const KvccCache& cache_;
  int64_t first_;
  size_t byte_;
};

/// A tile's shares as 32-bit words, of all lanes side by side.
class VectorWords {
 public:
  void Read(const uint8_t* tile, int32_t token_bits) {
    tile_ = reinterpret_cast<const uint32_t*>(tile);
    const uint32_t bytes = vector_page::lane_bytes(static_cast<uint32_t>(token_bits)), rest = bytes % 4u;
    whole_ = static_cast<int32_t>(bytes / 4u);
    if (rest == 0) return;
    const DU d;
    const hn::Rebind<uint16_t, DU> d16;
    const hn::Rebind<uint8_t, DU> d8;
    const uint8_t* from = tile + whole_ * 128;
    for (int lane = 0; lane < 32; lane += kLanes) {
      auto word = hn::Zero(d);
      if (rest >= 2) word = hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from) + lane));
      if (rest % 2 != 0) {
        const auto byte = hn::PromoteTo(d, hn::LoadU(d8, from + (rest >= 2 ? 64 : 0) + lane));
        word = rest >= 2 ? hn::Or(word, hn::ShiftLeft<16>(byte)) : byte;
      }
      hn::Store(word, d, rest_ + lane);
    }
  }

  /// Of all 64 tokens: where the rows of a quad's codes begin, 4 code; or with kShift 0 the codes.
  template <int kShift = 2>
  HWY_INLINE void Offsets(const KvccVectorQuad& quad, uint32_t* HWY_RESTRICT out) const {
    const DU d;
    const int bit = 2 * quad.first_bit, shift = bit % 32, over = shift + 2 * quad.bits - 32;
    const uint32_t *const low = Word(bit / 32), *const high = over > 0 ? Word(bit / 32 + 1) : nullptr;
    const VU mask = hn::Set(d, (1u << quad.bits) - 1u);
    for (int lane = 0; lane < 32; lane += kLanes) {
      VU field = hn::ShiftRightSame(hn::LoadU(d, low + lane), shift);
      if (over > 0) field = hn::Or(field, hn::ShiftLeftSame(hn::LoadU(d, high + lane), 32 - shift));
      hn::Store(hn::ShiftLeft<kShift>(hn::And(field, mask)), d, out + lane);
      hn::Store(hn::ShiftLeft<kShift>(hn::And(hn::ShiftRightSame(field, quad.bits), mask)), d, out + 32 + lane);
    }
  }

 private:
  const uint32_t* Word(int i) const { return i < whole_ ? tile_ + 32 * i : rest_; }
  const uint32_t* tile_;
  int32_t whole_;
  alignas(64) uint32_t rest_[32];
};

/// Rows of kLanes / 4 tokens, `step` tokens apart, a block each.
template <int kStep>
HWY_INLINE VF TableRows(const float* HWY_RESTRICT table, const uint32_t* HWY_RESTRICT offset) {
  const hn::CappedTag<float, 4> d4;
  const auto row = [&](int i) { return hn::LoadU(d4, table + offset[i * kStep]); };
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::CappedTag<float, 8> d8;
  return hn::Combine(DF(), hn::Combine(d8, row(3), row(2)), hn::Combine(d8, row(1), row(0)));
#elif HWY_TARGET == HWY_AVX2
  return hn::Combine(DF(), row(1), row(0));
#else
  return row(0);
#endif
}

/// kLanes tokens of a quad's coordinates, a vector each.
struct QuadVectors {
  VF z0, z1, z2, z3;

  /// kWide: more than two coordinates; else z2 and z3 are the rows' zeros.
  template <bool kWide>
  static HWY_INLINE QuadVectors Read(const float* HWY_RESTRICT table, const uint32_t* HWY_RESTRICT offset) {
    const DF d;
    const hn::Repartition<double, DF> d64;
    // Block b of row r is of token 4 b + r.
    const VF r0 = TableRows<4>(table, offset), r1 = TableRows<4>(table, offset + 1);
    const VF r2 = TableRows<4>(table, offset + 2), r3 = TableRows<4>(table, offset + 3);
    const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
    QuadVectors q;
    q.z0 = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
    q.z1 = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
    if constexpr (kWide) {
      const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
      const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
      q.z2 = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
      q.z3 = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
    } else {
      q.z2 = q.z3 = hn::Zero(d);
    }
    return q;
  }

 private:
  HWY_INLINE QuadVectors() {}  // the implicit one would not be of the target (NEON)
};

#undef KVCC_CPU_PLANES
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define KVCC_CPU_PLANES 1

/// One coordinate of a table of up to 16 kVectors entries, in registers.
template <int kVectors>
struct Plane {
  VF t[kVectors];

  explicit HWY_INLINE Plane(const float* from) {
    KVCC_CPU_UNROLL
    for (int i = 0; i < kVectors; ++i) t[i] = hn::LoadU(DF(), from + 16 * i);
  }
  HWY_INLINE VF At(VU code) const {
    if constexpr (kVectors == 1) {
      return VF{_mm512_permutexvar_ps(code.raw, t[0].raw)};
    } else {
      const __m512 low = _mm512_permutex2var_ps(t[0].raw, code.raw, t[1].raw);
      if constexpr (kVectors == 2) return VF{low};
      const __m512 high = _mm512_permutex2var_ps(t[kVectors - 2].raw, code.raw, t[kVectors - 1].raw);
      return VF{_mm512_mask_blend_ps(_mm512_test_epi32_mask(code.raw, _mm512_set1_epi32(32)), low, high)};
    }
  }
};

/// f(n, floats of a coordinate) with n, a constant, vectors a coordinate of a quad that has planes.
template <class F>
HWY_INLINE void with_plane(int bits, const F& f) {
  if (bits <= 4) return f(std::integral_constant<int, 1>(), 16);
  if (bits == 5) return f(std::integral_constant<int, 2>(), 32);
  f(std::integral_constant<int, 4>(), 64);
}

/// Coordinates of a quad that has planes.
template <class To>
HWY_INLINE void ReadPlanes(const KvccVectorQuad& quad, const float* HWY_RESTRICT tables,
                           const uint32_t* HWY_RESTRICT codes, int tokens, const To& to) {
  with_plane(quad.bits, [&](auto n, int step) HWY_ATTR {
    for (int i = 0; i < quad.width; ++i) {
      const Plane<decltype(n)::value> plane(tables + quad.plane + i * step);
      float* HWY_RESTRICT row = to(i);
      for (int token = 0; token < tokens; token += 16) {
        hn::Store(plane.At(hn::Load(DU(), codes + token)), DF(), row + token);
      }
    }
  });
}
#else
#define KVCC_CPU_PLANES 0
#endif

/// Coordinates of a quad of `tokens` tokens, each to its row at to(i).
template <class To>
HWY_INLINE void ReadQuad(const KvccVectorQuad& quad, const float* HWY_RESTRICT tables,
                         const uint32_t* HWY_RESTRICT offset, int tokens, const To& to) {
  const DF d;
  const float* const table = tables + quad.table;
  float* const rows[4] = {to(0), quad.width > 1 ? to(1) : nullptr, quad.width > 2 ? to(2) : nullptr,
                          quad.width > 3 ? to(3) : nullptr};
  for (int token = 0; token < tokens; token += kLanes) {
    const QuadVectors q = quad.width > 2 ? QuadVectors::Read<true>(table, offset + token)
                                         : QuadVectors::Read<false>(table, offset + token);
    hn::Store(q.z0, d, rows[0] + token);
    if (quad.width > 1) hn::Store(q.z1, d, rows[1] + token);
    if (quad.width > 2) hn::Store(q.z2, d, rows[2] + token);
    if (quad.width > 3) hn::Store(q.z3, d, rows[3] + token);
  }
}

/// The quads of one head of a tensor.
struct VectorHead {
  const KvccVectorTensor& tensor;
  int32_t head;

  const KvccVectorQuad* begin() const { return tensor.quads + tensor.first_quad[head]; }
  const KvccVectorQuad* end() const { return tensor.quads + tensor.first_quad[head + 1]; }
  int places() const { return tensor.places[head]; }
  const int32_t* place() const { return tensor.place + row(); }
  /// Of [H, D] and [H, D, D].
  size_t row() const { return static_cast<size_t>(head) * tensor.head_dim; }
  size_t matrix() const { return row() * tensor.head_dim; }
};

/// Pages that are worked on at once: a quad's table is in the fastest cache only while one quad of several pages is.
constexpr int kBatchPages = 8, kBatch = kBatchPages * kPage;

struct alignas(64) VectorTile {
  uint32_t offset[kBatch];
  float rows[kMaxHeadDim * kBatch];      ///< [coordinate or channel, kBatch]
  float channels[kMaxHeadDim * kBatch];  ///< [channel, kBatch]
};

/// The words of pages [first, first + count), count at most kBatchPages.
class VectorBatchWords {
 public:
  VectorBatchWords(const VectorHead& head, const VectorPages& pages, int32_t first, int count) : count_(count) {
    for (int i = 0; i < count; ++i) words_[i].Read(pages.at(first + i), head.tensor.token_bits[head.head]);
  }
  template <int kShift = 2>
  HWY_INLINE void Offsets(const KvccVectorQuad& quad, uint32_t* HWY_RESTRICT out) const {
    for (int i = 0; i < count_; ++i) words_[i].template Offsets<kShift>(quad, out + i * kPage);
  }

 private:
  int count_;
  VectorWords words_[kBatchPages];
};

/// Rows of pages [first, first + count): by place, or where place() puts them.
template <bool kPlaced>
HWY_INLINE void ReadRows(const VectorHead& head, const VectorPages& pages, int32_t first, int count,
                         uint32_t* HWY_RESTRICT offset, float* HWY_RESTRICT rows) {
  const VectorBatchWords words(head, pages, first, count);
  const int32_t* const place = head.place();
  for (const KvccVectorQuad& quad : head) {
    const auto to = [&](int i) {
      const int at = quad.first + i;
      return rows + (kPlaced ? place[at] : at) * kBatch;
    };
#if KVCC_CPU_PLANES
    if (quad.plane >= 0) {
      words.Offsets<0>(quad, offset);
      ReadPlanes(quad, head.tensor.tables, offset, count * kPage, to);
      continue;
    }
#endif
    words.Offsets(quad, offset);
    ReadQuad(quad, head.tensor.tables, offset, count * kPage, to);
  }
}

/// Rows of `constant` for what no quad gives; the others are left alone.
inline void FillConstants(const VectorHead& head, float* HWY_RESTRICT rows) {
  const float* const constant = head.tensor.constant + head.row();
  for (int i = head.places(); i < head.tensor.head_dim; ++i) {
    const int c = head.place()[i];
    std::fill(rows + c * kBatch, rows + (c + 1) * kBatch, constant[c]);
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
