#include "calib/text/python_random.h"

#include <bit>

namespace kvcc {

PythonRandom::PythonRandom(uint64_t seed) {
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const int length = key[1] ? 2 : 1;
  state_[0] = 19650218u;
  for (int i = 1; i < kSize; ++i) {
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<uint32_t>(i);
  }
  int i = 1, j = 0;
  const auto next = [&] {
    if (++i == kSize) {
      state_[0] = state_[kSize - 1];
      i = 1;
    }
  };
  for (int k = 0; k < kSize; ++k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525u)) + key[j] + static_cast<uint32_t>(j);
    next();
    j = (j + 1) % length;
  }
  for (int k = 0; k < kSize - 1; ++k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941u)) - static_cast<uint32_t>(i);
    next();
  }
  state_[0] = 0x80000000u;
}

uint32_t PythonRandom::bits32() {
  if (at_ == kSize) {
    for (int i = 0; i < kSize; ++i) {
      const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kSize] & 0x7fffffffu);
      state_[i] = state_[(i + 397) % kSize] ^ (y >> 1) ^ ((y & 1u) ? 0x9908b0dfu : 0u);
    }
    at_ = 0;
  }
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

uint64_t PythonRandom::bits(int count) {
  const int low = count < 32 ? count : 32;
  uint64_t value = bits32() >> (32 - low);
  if (count > 32) value |= static_cast<uint64_t>(bits32() >> (64 - count)) << 32;
  return value;
}

int64_t PythonRandom::randint(int64_t first, int64_t last) {
  const uint64_t width = static_cast<uint64_t>(last) - static_cast<uint64_t>(first) + 1;
  const int count = std::bit_width(width);
  uint64_t value = bits(count);
  while (value >= width) value = bits(count);
  return first + static_cast<int64_t>(value);
}

}  // namespace kvcc
