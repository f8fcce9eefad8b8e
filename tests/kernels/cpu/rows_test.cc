// The arithmetic of rows against formats/codec/element.h and formats/layout/half.h, on every instruction set: every
// fp16 number, levels at and beside every boundary, sums that are hard to round.
#include <algorithm>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/cpu/rows_test.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// count a multiple of 16, all functions.
void test_floats(int32_t dtype, const void* x, int32_t count, float* out) {
  const float* const found = Floats(dtype, x, 0, count, out);
  if (found != out) std::copy_n(found, count, out);
}

template <int kBits>
void nearest(const float* levels, const float* y, int32_t count, uint32_t* out) {
  const Cells<kBits> cells(levels);
  for (int32_t i = 0; i < count; i += kRowLanes) {
    hn::StoreU(hn::BitCast(RowWords(), cells.Nearest(hn::LoadU(RowFloats(), y + i))), RowWords(), out + i);
  }
}
void test_nearest(int bits, const float* levels, const float* y, int32_t count, uint32_t* out) {
  if (bits == 2) nearest<2>(levels, y, count, out);
  if (bits == 3) nearest<3>(levels, y, count, out);
  if (bits == 4) nearest<4>(levels, y, count, out);
  if (bits == 8) nearest<8>(levels, y, count, out);
}

template <int kBits>
void lookup(const float* levels, const uint32_t* codes, int32_t count, float* out) {
  const Lookup<kBits> table(levels);
  for (int32_t i = 0; i < count; i += kRowLanes) {
    const auto code = hn::BitCast(RowInts(), hn::LoadU(RowWords(), codes + i));
    hn::StoreU(table.At(code), RowFloats(), out + i);
  }
}
void test_lookup(int bits, const float* levels, const uint32_t* codes, int32_t count, float* out) {
  if (bits == 2) lookup<2>(levels, codes, count, out);
  if (bits == 3) lookup<3>(levels, codes, count, out);
  if (bits == 4) lookup<4>(levels, codes, count, out);
  if (bits == 8) lookup<8>(levels, codes, count, out);
}

void test_fused(const float* a, const float* b, const float* c, int32_t count, float* out) {
  const RowFloats d;
  for (int32_t i = 0; i < count; i += kRowLanes) {
    hn::StoreU(FusedMultiplyAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), hn::LoadU(d, c + i)), d, out + i);
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

#include "tests/kernels/cpu/units.h"

namespace kvcc::cpu {
HWY_EXPORT(test_floats);
HWY_EXPORT(test_nearest);
HWY_EXPORT(test_lookup);
HWY_EXPORT(test_fused);

using test::on_every_target;

/// NaNs are equal, whatever their bits; zeros differ.
bool same(float a, float b) { return float_bits(a) == float_bits(b) || (std::isnan(a) && std::isnan(b)); }

TEST(CpuRows, EveryHalf) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  on_every_target([&] {
    std::vector<float> f16(65536), bf16(65536);
    HWY_DYNAMIC_DISPATCH(test_floats)(KVCC_DTYPE_F16, halves.data(), 65536, f16.data());
    HWY_DYNAMIC_DISPATCH(test_floats)(KVCC_DTYPE_BF16, halves.data(), 65536, bf16.data());
    for (size_t i = 0; i < halves.size(); ++i) {
      ASSERT_PRED2(same, f16[i], half_to_float(halves[i])) << i;
      ASSERT_PRED2(same, bf16[i], bfloat16_to_float(halves[i])) << i;
    }
  });
}

TEST(CpuRows, NearestLevelAndBack) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.2f, 1.2f);
  for (const int bits : {2, 3, 4, 8}) {
    const int count = 1 << bits;
    std::vector<float> levels(count), y = {bits_float(0x7fc00000u), HUGE_VALF, -HUGE_VALF, 0.0f, -0.0f};
    for (float& level : levels) level = uniform(random);
    levels[1] = levels[2];
    std::sort(levels.begin(), levels.end());
    for (int j = 0; j + 1 < count; ++j) {
      const float boundary = upper_boundary(levels.data(), j);
      y.insert(y.end(), {boundary, std::nextafter(boundary, 9.0f), std::nextafter(boundary, -9.0f)});
    }
    while (y.size() < 2048) y.push_back(uniform(random));
    on_every_target([&] {
      std::vector<uint32_t> codes(y.size());
      std::vector<float> back(y.size());
      const int32_t n = static_cast<int32_t>(y.size());
      HWY_DYNAMIC_DISPATCH(test_nearest)(bits, levels.data(), y.data(), n, codes.data());
      HWY_DYNAMIC_DISPATCH(test_lookup)(bits, levels.data(), codes.data(), n, back.data());
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(codes[i], nearest_level(levels.data(), count, y[i])) << bits << " bits, " << y[i];
        ASSERT_EQ(back[i], levels[codes[i]]);
      }
    });
  }
}

// Random bits are of all magnitudes; beside them products that an addend all but cancels, sums a hair from the middle
// between two floats, and results among the subnormal numbers, where rounding twice would show.
TEST(CpuRows, FusedMultiplyAddRoundsOnce) {
  std::mt19937 random(1);
  const auto any = [&] { return bits_float(random()); };
  const auto unit = [&] { return bits_float(0x3f800000u | (random() & 0x7fffffu)); };
  std::vector<float> a, b, c;
  const auto add = [&](float x, float y, float z) {
    a.push_back(x);
    b.push_back(y);
    c.push_back(z);
  };
  for (int i = 0; i < 40000; ++i) {
    const float x = unit(), y = unit();
    add(any(), any(), any());
    add(x, y, -(x * y));
    add(x, y, std::ldexp(unit(), 20 + static_cast<int>(random() % 40)));
    add(x, y, std::ldexp(unit(), -20 - static_cast<int>(random() % 60)));
    add(std::ldexp(x, -70), std::ldexp(y, -60), std::ldexp(unit(), -130 - static_cast<int>(random() % 20)));
    // The product lies in the middle of two floats, the addend decides.
    const float middle = 1.0f + std::ldexp(static_cast<float>(random() % 4096), -12);
    add(middle, 1.0f + 0x1p-12f, std::ldexp(random() % 2 ? 1.0f : -1.0f, -30 - static_cast<int>(random() % 90)));
    add(bits_float(0x00800000u), unit(), unit());  // the least scale
    add(std::ldexp(x, 64), std::ldexp(y, 63), std::ldexp(unit(), 104));
  }
  on_every_target([&] {
    std::vector<float> out(a.size());
    HWY_DYNAMIC_DISPATCH(test_fused)(a.data(), b.data(), c.data(), static_cast<int32_t>(a.size()), out.data());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_PRED2(same, out[i], std::fmaf(a[i], b[i], c[i])) << a[i] << " * " << b[i] << " + " << c[i];
    }
  });
}

}  // namespace kvcc::cpu
#endif  // HWY_ONCE
