// Rows of values in vectors: dtypes to f32, nearest levels, levels by code, a fused multiply-add on every target. All
// of it bit-equal to formats/codec/element.h and formats/layout/half.h.
#if defined(KVCC_KERNELS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_ROWS_INL_H_
#undef KVCC_KERNELS_CPU_ROWS_INL_H_
#else
#define KVCC_KERNELS_CPU_ROWS_INL_H_
#endif

#include "formats/codec/element.h"
#include "formats/layout/half.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/units.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using RowFloats = hn::ScalableTag<float>;
using RowInts = hn::RebindToSigned<RowFloats>;
using RowWords = hn::RebindToUnsigned<RowFloats>;
using RowBytes = hn::Rebind<uint8_t, RowFloats>;
constexpr int32_t kRowLanes = static_cast<int32_t>(hn::MaxLanes(RowFloats()));
static_assert(16 % kRowLanes == 0, "rows are multiples of 16 elements");

/// fp16 bits in 32-bit lanes to f32, exact; infinities and NaNs stay such.
HWY_INLINE hn::Vec<RowFloats> FromHalf(hn::Vec<RowWords> bits) {
  const RowFloats d;
  const RowWords du;
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
  // 2^112 puts the exponent right, of subnormal numbers too.
  const auto scaled = hn::BitCast(du, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
  const auto special = hn::Gt(hn::BitCast(RowInts(), magnitude), hn::Set(RowInts(), 0x0f7fffff));
  const auto whole = hn::IfThenElse(hn::RebindMask(du, special), hn::Or(magnitude, hn::Set(du, 0x7f800000u)), scaled);
  return hn::BitCast(d, hn::Or(whole, hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)))));
}

/// Elements [first, first + count) of an array of a dtype as f32; in `scratch`, unless they are f32 already. count: a
/// multiple of 16.
HWY_INLINE const float* Floats(int32_t dtype, const void* x, int64_t first, int32_t count, float* scratch) {
  if (dtype == KVCC_DTYPE_F32) return static_cast<const float*>(x) + first;
  const RowFloats d;
  const RowWords du;
  const hn::Rebind<uint16_t, RowFloats> dh;
  const uint16_t* const from = static_cast<const uint16_t*>(x) + first;
  for (int32_t i = 0; i < count; i += kRowLanes) {
    const auto bits = hn::PromoteTo(du, hn::LoadU(dh, from + i));
    hn::StoreU(dtype == KVCC_DTYPE_F16 ? FromHalf(bits) : hn::BitCast(d, hn::ShiftLeft<16>(bits)), d, scratch + i);
  }
  return scratch;
}

/// The cells of a head's levels, for nearest_level() of a vector.
template <int kBits>
struct Cells {
  static constexpr int kCount = 1 << kBits;
  alignas(64) float end[kCount];  ///< upper boundaries; that of the last level counts for nothing

  explicit Cells(const float* levels) {
    for (int j = 0; j + 1 < kCount; ++j) end[j] = upper_boundary(levels, j);
    end[kCount - 1] = 0;
  }
  /// As boundaries do not decrease, the level's number is that of the boundaries below y; NaN is above none.
  HWY_INLINE hn::Vec<RowInts> Nearest(hn::Vec<RowFloats> y) const {
    const RowFloats d;
    const RowInts di;
    auto level = hn::Zero(di);
    if constexpr (kBits <= 4) {
      for (int j = 0; j + 1 < kCount; ++j) {
        level = hn::Sub(level, hn::VecFromMask(di, hn::RebindMask(di, hn::Gt(y, hn::Set(d, end[j])))));
      }
    } else {
      for (int step = kCount / 2; step > 0; step /= 2) {
        const auto boundary = hn::GatherIndex(d, end, hn::Add(level, hn::Set(di, step - 1)));
        const auto above = hn::RebindMask(di, hn::Gt(y, boundary));
        level = hn::Add(level, hn::IfThenElseZero(above, hn::Set(di, step)));
      }
    }
    return level;
  }
};

/// The level of each code of a vector.
template <int kBits>
class Lookup {
 public:
  static constexpr int kCount = 1 << kBits;
  static constexpr bool kOne = kCount <= kRowLanes, kTwo = kCount == 2 * kRowLanes;

  explicit Lookup(const float* levels) {
    for (int i = 0; i < kSize; ++i) level_[i] = levels[i % kCount];
  }
  HWY_INLINE hn::Vec<RowFloats> At(hn::Vec<RowInts> code) const {
    const RowFloats d;
    const RowInts di;
    if constexpr (kOne) {
      return hn::TableLookupLanes(hn::Load(d, level_), hn::IndicesFromVec(d, code));
    } else if constexpr (kTwo) {
      const auto index = hn::IndicesFromVec(d, hn::And(code, hn::Set(di, kRowLanes - 1)));
      return hn::IfThenElse(hn::RebindMask(d, hn::Gt(code, hn::Set(di, kRowLanes - 1))),
                            hn::TableLookupLanes(hn::Load(d, level_ + kRowLanes), index),
                            hn::TableLookupLanes(hn::Load(d, level_), index));
    } else {
      return hn::GatherIndex(d, level_, code);
    }
  }

 private:
  static constexpr int kSize = kCount < kRowLanes ? kRowLanes : kCount;
  alignas(64) float level_[kSize];
};

#if !HWY_NATIVE_FMA
/// Half a vector's a * b + c in double: the product is exact, and the sum is rounded to odd, so that rounding it to f32
/// afterwards gives what rounding once would.
template <class D64, class V32>
HWY_INLINE hn::Vec<D64> SumToOdd(D64 d, V32 a, V32 b, V32 c) {
  const hn::RebindToSigned<D64> di;
  const auto product = hn::Mul(hn::PromoteTo(d, a), hn::PromoteTo(d, b)), addend = hn::PromoteTo(d, c);
  const auto sum = hn::Add(product, addend), part = hn::Sub(sum, product);
  const auto error = hn::Add(hn::Sub(product, hn::Sub(sum, part)), hn::Sub(addend, part));
  const auto inexact = hn::Or(hn::Gt(error, hn::Zero(d)), hn::Lt(error, hn::Zero(d)));  // neither for NaN
  const auto bits = hn::BitCast(di, sum);
  const auto even = hn::Eq(hn::And(bits, hn::Set(di, 1)), hn::Zero(di));
  const auto inward = hn::Lt(hn::Xor(bits, hn::BitCast(di, error)), hn::Zero(di));  // of unlike signs
  const auto step = hn::IfThenElse(inward, hn::Set(di, -1), hn::Set(di, 1));
  return hn::BitCast(d, hn::Add(bits, hn::IfThenElseZero(hn::And(hn::RebindMask(di, inexact), even), step)));
}
#endif

/// a * b + c, rounded once.
HWY_INLINE hn::Vec<RowFloats> FusedMultiplyAdd(hn::Vec<RowFloats> a, hn::Vec<RowFloats> b, hn::Vec<RowFloats> c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  const RowFloats d;
  const hn::Half<RowFloats> dh;
  const hn::Repartition<double, RowFloats> dd;
  const auto low = SumToOdd(dd, hn::LowerHalf(dh, a), hn::LowerHalf(dh, b), hn::LowerHalf(dh, c));
  const auto high = SumToOdd(dd, hn::UpperHalf(dh, a), hn::UpperHalf(dh, b), hn::UpperHalf(dh, c));
  return hn::Combine(d, hn::DemoteTo(dh, high), hn::DemoteTo(dh, low));
#endif
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVCC_KERNELS_CPU_ROWS_INL_H_
