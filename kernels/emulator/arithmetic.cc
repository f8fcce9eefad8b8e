// The arithmetic that intrinsics.cuh takes from the machine: pairs of fp16, and ex2.
#include <cmath>

#include "kernels/device/intrinsics.cuh"
#include "kernels/emulator/half_arithmetic.h"

namespace kvcc::emulator {
namespace {

template <class One>
uint32_t both(const One& one) {
  return uint32_t{one(0)} | uint32_t{one(16)} << 16;
}

}  // namespace

uint32_t fma_half2(uint32_t a, uint32_t b, uint32_t c) {
  return both([&](int shift) {
    return internal::fma_half(static_cast<uint16_t>(a >> shift), static_cast<uint16_t>(b >> shift),
                              static_cast<uint16_t>(c >> shift));
  });
}
// Products and sums of two fp16 are exact in double.
uint32_t multiply_half2(uint32_t a, uint32_t b) {
  return both([&](int shift) {
    return internal::round_to_half_once(static_cast<double>(internal::half_value(a >> shift)) *
                                        internal::half_value(b >> shift));
  });
}
uint32_t add_half2(uint32_t a, uint32_t b) {
  return both([&](int shift) {
    return internal::round_to_half_once(static_cast<double>(internal::half_value(a >> shift)) +
                                        internal::half_value(b >> shift));
  });
}

float exp2_approximate(float x) {
  if (std::isnan(x)) return bits_float(0x7fffffffu);
  const float y = static_cast<float>(std::exp2(static_cast<double>(std::abs(x) < 0x1p-126f ? 0.0f : x)));
  return y < 0x1p-126f ? 0.0f : y;
}

}  // namespace kvcc::emulator
