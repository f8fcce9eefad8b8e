// What the C++ that ptx_to_cpp.py writes needs: PTX arithmetic where C++ differs, typed memory, shuffles. The calling
// fiber of kernels/emulator is one thread. Bit for bit as the PTX ISA says; results that are NaN are the canonical NaN
// in f32 arithmetic. Addresses: generic, global, constant and parameter ones are the host's; shared and local ones are
// offsets from the block's arena and the thread's.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "kernels/device/intrinsics.cuh"
#include "kernels/emulator/emulator.h"

namespace kvcc::ptx {

constexpr float kNan = std::bit_cast<float>(0x7fffffffu);

/// The bits of a register read as another type: of the same size as they are, narrower as the low ones.
template <class To, class From>
constexpr To as(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (sizeof(To) == sizeof(From)) {
    return std::bit_cast<To>(x);
  } else {
    static_assert(sizeof(To) < sizeof(From) && std::is_integral_v<To> && std::is_integral_v<From>);
    return static_cast<To>(x);
  }
}

/// A result of an integer type in a register that may be wider: extended by its sign.
template <class Register, class From>
constexpr Register extend(From x) {
  if constexpr (sizeof(Register) > sizeof(From) && std::is_integral_v<Register>) {
    return static_cast<Register>(static_cast<std::conditional_t<std::is_signed_v<From>, int64_t, uint64_t>>(x));
  } else {
    return as<Register>(x);
  }
}

inline float quiet(float x) { return x == x ? x : kNan; }

// min and max give the number where one operand is NaN, and order -0 below +0.
inline float minimum(float a, float b) {
  if (a != a || b != b) return a != a ? quiet(b) : quiet(a);
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
inline float maximum(float a, float b) {
  if (a != a || b != b) return a != a ? quiet(b) : quiet(a);
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}

// Shift amounts above the width count as the width.
template <class T>
constexpr T shift_left(T x, uint32_t n) {
  return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(x << n);
}
template <class T>
constexpr T shift_right(T x, uint32_t n) {
  if (n >= 8 * sizeof(T)) return x < T{0} ? static_cast<T>(-1) : T{0};
  return static_cast<T>(x >> n);
}

/// Division by zero gives all ones, its remainder the dividend (unspecified in PTX, but no trap).
template <class T>
constexpr T divide(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - std::make_unsigned_t<T>(a));
  return static_cast<T>(a / b);
}
template <class T>
constexpr T remainder(T a, T b) {
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
  return static_cast<T>(a % b);
}

constexpr uint32_t funnel_left(uint32_t low, uint32_t high, uint32_t n) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) << n >> 32);
}
constexpr uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t n) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> n);
}

constexpr uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t d = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    if (table >> i & 1u) d |= (i & 4u ? a : ~a) & (i & 2u ? b : ~b) & (i & 1u ? c : ~c);
  }
  return d;
}

/// Bit 3 of a selector replicates the byte's sign.
constexpr uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> 4 * i & 15u;
    uint32_t byte = static_cast<uint32_t>(bytes >> 8 * (selector & 7u)) & 255u;
    if (selector & 8u) byte = byte & 128u ? 255u : 0u;
    out |= byte << 8 * i;
  }
  return out;
}

template <class T>
constexpr T extract_bits(T x, uint32_t position, uint32_t length) {
  constexpr uint32_t width = 8 * sizeof(T);
  position &= 255u;
  length &= 255u;
  if (length == 0) return 0;
  const bool negative = std::is_signed_v<T> && x >> std::min(position + length - 1, width - 1) & 1;
  std::make_unsigned_t<T> out = negative ? ~std::make_unsigned_t<T>{0} : 0;
  for (uint32_t i = 0; i < length && i < width && position + i < width; ++i) {
    const std::make_unsigned_t<T> bit = std::make_unsigned_t<T>{1} << i;
    out = (std::make_unsigned_t<T>(x) >> (position + i) & 1u) ? out | bit : out & ~bit;
  }
  return static_cast<T>(out);
}
constexpr uint32_t insert_bits(uint32_t from, uint32_t into, uint32_t position, uint32_t length) {
  position &= 255u;
  length &= 255u;
  for (uint32_t i = 0; i < length && position + i < 32u; ++i) {
    const uint32_t bit = 1u << (position + i);
    into = (i < 32u && from >> i & 1u) ? into | bit : into & ~bit;
  }
  return into;
}

/// Index of the highest bit that differs from the sign; all ones when there is none.
constexpr uint32_t find_high_bit(uint32_t x) { return x == 0 ? ~0u : 31u - static_cast<uint32_t>(std::countl_zero(x)); }
constexpr uint32_t reverse_bits(uint32_t x) {
  uint32_t out = 0;
  for (uint32_t i = 0; i < 32; ++i) out |= (x >> i & 1u) << (31u - i);
  return out;
}

/// cvt to an integer: rounded already, clamped to its range; NaN gives 0.
template <class To>
To to_integer(float rounded) {
  if (rounded != rounded) return 0;
  const double x = rounded, low = static_cast<double>(std::numeric_limits<To>::min());
  const double high = std::ldexp(1.0, std::numeric_limits<To>::digits);
  if (x >= high) return std::numeric_limits<To>::max();
  return x <= low ? std::numeric_limits<To>::min() : static_cast<To>(x);
}
inline float half_to_float(uint16_t h) { return quiet(kvcc::half_to_float(h)); }
inline uint16_t float_to_half(float x) { return x == x ? kvcc::float_to_half(x) : uint16_t{0x7fff}; }
inline uint16_t float_to_bfloat16(float x) { return x == x ? kvcc::float_to_bfloat16(x) : uint16_t{0x7fff}; }

inline void check_alignment(const void* address, size_t bytes, const char* file, int line) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  throw emulator::Fault(std::string(file) + ":" + std::to_string(line) + ": access of " + std::to_string(bytes) +
                        " bytes at an address that is not a multiple of them");
}
template <class T>
T load(const uint8_t* address) {
  T x;
  std::memcpy(&x, address, sizeof x);
  return x;
}
template <class T>
void store(uint8_t* address, T x) {
  std::memcpy(address, &x, sizeof x);
}
inline uint8_t* generic(uint64_t address) { return reinterpret_cast<uint8_t*>(address); }

/// Exchanges on memory that other threads change too, by the emulator's atomic_*.
inline uint32_t* atomic_word(uint8_t* address) { return reinterpret_cast<uint32_t*>(address); }

/// shfl.sync: lane that the calling thread reads, by the ISA's pseudo-code, and whether it lies inside the segment.
struct ShuffleSource {
  uint32_t lane;
  bool inside;
};
enum class Shuffle { up, down, bfly, idx };
inline ShuffleSource shuffle_source(Shuffle mode, uint32_t b, uint32_t c) {
  const uint32_t lane = emulator::thread_index() & 31u, value = b & 31u, clamp = c & 31u, segment = c >> 8 & 31u;
  const uint32_t least = lane & segment, most = least | (clamp & ~segment);
  int64_t from = lane;
  bool inside = false;
  switch (mode) {
    case Shuffle::up:
      from = int64_t{lane} - value;
      inside = from >= int64_t{most};
      break;
    case Shuffle::down:
      from = int64_t{lane} + value;
      inside = from <= int64_t{most};
      break;
    case Shuffle::bfly:
      from = lane ^ value;
      inside = from <= int64_t{most};
      break;
    case Shuffle::idx:
      from = least | (value & ~segment);
      inside = from <= int64_t{most};
  }
  return {inside ? static_cast<uint32_t>(from) : lane, inside};
}

}  // namespace kvcc::ptx
