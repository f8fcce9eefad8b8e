// The checksum of HDF5's metadata (file format specification, "Checksums"): Bob Jenkins' lookup3.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace kvcc::hdf5 {

inline uint32_t lookup3(const char* data, size_t size) {
  uint32_t a = 0xdeadbeef + static_cast<uint32_t>(size), b = a, c = a;
  const auto word = [&](size_t at) {
    uint32_t value = 0;
    if (at < size) std::memcpy(&value, data + at, std::min<size_t>(4, size - at));
    return value;
  };
  size_t at = 0;
  for (; size - at > 12; at += 12) {
    a += word(at), b += word(at + 4), c += word(at + 8);
    a -= c, a ^= std::rotl(c, 4), c += b;
    b -= a, b ^= std::rotl(a, 6), a += c;
    c -= b, c ^= std::rotl(b, 8), b += a;
    a -= c, a ^= std::rotl(c, 16), c += b;
    b -= a, b ^= std::rotl(a, 19), a += c;
    c -= b, c ^= std::rotl(b, 4), b += a;
  }
  if (at == size) return c;
  a += word(at), b += word(at + 4), c += word(at + 8);
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

}  // namespace kvcc::hdf5
