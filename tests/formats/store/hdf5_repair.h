// Puts the checksums of a spoilt HDF5 file right, so that more than the checksum is tried.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "formats/store/hdf5_checksum.h"

namespace kvcc::made {

/// Writes the checksum of `bytes` bytes from `begin` behind them.
inline void seal(std::string& image, size_t begin, size_t bytes) {
  if (begin + bytes + 4 > image.size()) return;
  const uint32_t sum = hdf5::lookup3(image.data() + begin, bytes);
  std::memcpy(image.data() + begin + bytes, &sum, sizeof sum);
}

/// Those of the continuations that the messages in [at, end) of an object header name.
inline void seal_continuations(std::string& image, size_t at, size_t end, size_t prefix) {
  constexpr uint8_t kContinuation = 0x10;
  while (at + prefix <= end && end <= image.size()) {
    uint16_t size = 0;
    std::memcpy(&size, image.data() + at + 1, sizeof size);
    uint64_t place[2] = {};  // address and bytes, the checksum's included
    if (static_cast<uint8_t>(image[at]) == kContinuation && size == sizeof place && at + prefix + size <= end) {
      std::memcpy(place, image.data() + at + prefix, sizeof place);
      if (place[0] < image.size() && place[1] >= 4 && place[1] < image.size()) seal(image, place[0], place[1] - 4);
    }
    at += prefix + size;
  }
}

/// Those of the superblock (version 2), of object headers and of their first continuations.
inline void repair_hdf5(std::string& image) {
  seal(image, 0, 44);
  for (size_t at = 0; (at = image.find("OHDR\x02", at)) != std::string::npos; ++at) {
    if (at + 6 > image.size()) return;
    const auto flags = static_cast<uint8_t>(image[at + 5]);
    size_t head = 6 + (flags & 0x20 ? 16 : 0) + (flags & 0x10 ? 4 : 0);
    uint64_t bytes = 0;
    const size_t width = size_t{1} << (flags & 3);
    if (at + head + width > image.size()) return;
    std::memcpy(&bytes, image.data() + at + head, width);
    head += width;
    if (bytes >= image.size()) continue;
    seal_continuations(image, at + head, at + head + bytes, flags & 4 ? 6 : 4);
    seal(image, at, head + bytes);
  }
}

}  // namespace kvcc::made
