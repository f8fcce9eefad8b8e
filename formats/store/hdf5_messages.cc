// Element types, shapes, fill values and global heaps of an HDF5 file.
#include "formats/store/hdf5_bytes.h"

namespace kvcc::hdf5 {
namespace {

void check_integer(Cursor& in, uint64_t bytes) {
  const uint64_t offset = in.number(2), precision = in.number(2);
  in.need(bytes >= 1 && bytes <= 8 && precision >= 1 && offset + precision <= 8 * bytes, "bits of an integer");
}

/// `low`: order of the bytes (bit 0; 6: VAX), padding, and how mantissas begin (4 and 5).
void check_float(Cursor& in, uint64_t bytes, uint64_t low, uint64_t sign) {
  // libhdf5 1.10 that meets these in an attribute frees what it has not made yet.
  in.need((low >> 4 & 3) <= 2 && (low & 0x40) == 0, "order or mantissa of a float");
  const uint64_t offset = in.number(2), precision = in.number(2);
  const uint64_t exponent = in.number(1), exponent_bits = in.number(1);
  const uint64_t mantissa = in.number(1), mantissa_bits = in.number(1);
  in.skip(4);  // bias
  const uint64_t bits = 8 * bytes;
  const bool inside = precision >= 1 && offset + precision <= bits && exponent + exponent_bits <= bits &&
                      mantissa + mantissa_bits <= bits && sign < bits && exponent_bits >= 1 && mantissa_bits >= 1;
  const bool apart = exponent >= mantissa + mantissa_bits || mantissa >= exponent + exponent_bits;
  in.need(bytes >= 2 && bytes <= 8 && inside && apart, "bits of a float");
}

}  // namespace

Type read_type(Cursor& in, int depth) {
  const uint64_t head = in.number(1), low = in.number(1), sign = in.number(1);
  in.skip(1);
  const Type type{static_cast<int>(head & 15), in.number(4)};
  in.need(head >> 4 >= 1 && head >> 4 <= 3, "version of an element type");
  in.need(type.bytes >= 1, "an element of 0 bytes");
  switch (type.kind) {
    case 0:
      check_integer(in, type.bytes);
      return type;
    case 1:
      check_float(in, type.bytes, low, sign);
      return type;
    case kText:
      return type;
    case kVariable: {
      const bool text = (low & 15) == 1 && type.bytes == 16 && depth == 0;
      if (text && read_type(in, depth + 1).bytes == 1) return type;
      throw in.bytes().refuse(in.path(), "an element type of variable length", "plain little-endian numbers");
    }
    default:
      throw in.bytes().refuse(in.path(), fmt::format("an element type of class {} and {} bytes", type.kind, type.bytes),
                              "plain little-endian numbers");
  }
}

uint64_t read_space(Cursor& in) {
  constexpr uint64_t kMostAxes = 32;
  const uint64_t version = in.number(1), axes = in.number(1), flags = in.number(1), kind = in.number(1);
  in.need(version == 1 || version == 2, "version of a shape");
  in.need(axes <= kMostAxes && (flags & ~uint64_t{1}) == 0, "axes of a shape");
  if (version == 1) in.skip(4);
  in.need(version == 1 || kind <= 2, "kind of a shape");
  const bool null = version == 2 && kind == 2;
  in.need(axes == 0 || !(version == 2 && kind != 1), "axes of a scalar");
  uint64_t count = null ? 0 : 1;
  for (uint64_t i = 0; i < axes; ++i) {
    const uint64_t extent = in.number(8);
    if (__builtin_mul_overflow(count, extent, &count) || count > INT64_MAX) count = kTooMany;
  }
  if (flags & 1) in.skip(8 * axes);
  return count;
}

void check_fill(Cursor& in, bool old, uint64_t& bytes) {
  bytes = 0;
  if (!old) {
    const uint64_t version = in.number(1);
    in.need(version >= 1 && version <= 3, "version of a fill value");
    if (version == 3) {
      if (!(in.number(1) & 0x20)) return;
    } else {
      in.skip(2);
      if (in.number(1) == 0 && version == 2) return;
    }
  }
  const uint64_t size = in.number(4);
  if (size > INT32_MAX) return;  // -1: none is defined
  in.skip(size);
  bytes = size;
}

void GlobalHeaps::check(const std::string& path, uint64_t at, uint64_t index, uint64_t length) {
  if (!heaps_.contains(at)) read(path, at);
  const auto& objects = heaps_.at(at);
  const auto found = objects.find(index);
  if (found == objects.end() || found->second < length) {
    throw bytes_.damaged(path, fmt::format("text {} of {} bytes in the heap at {}", index, length, at));
  }
}

void GlobalHeaps::read(const std::string& path, uint64_t at) {
  constexpr uint64_t kHead = 16, kObject = 16;
  constexpr size_t kMostHeaps = 4096;
  bytes_.need(at, kHead, path, "a heap");
  if (bytes_.text(at, 4) != "GCOL" || bytes_.number(at + 4, 1) != 1 || heaps_.size() >= kMostHeaps) {
    throw bytes_.damaged(path, fmt::format("no heap at {}", at));
  }
  const uint64_t size = bytes_.number(at + 8, 8);
  Cursor in(bytes_, path, "a heap", at, size);
  in.skip(kHead);
  auto& objects = heaps_[at];
  while (in.left() >= kObject) {
    const uint64_t index = in.number(2);
    in.skip(6);  // references, and nothing
    const uint64_t length = in.number(8);
    if (index == 0) {  // what is free, its own head included
      in.need(length >= kObject && length - kObject <= in.left(), "free bytes of a heap");
      in.skip(length - kObject);
      continue;
    }
    in.need(length <= in.left() && objects.emplace(index, length).second, "an object of a heap");
    in.skip((length + 7) / 8 * 8);
  }
  extents_[at] = size;
}

}  // namespace kvcc::hdf5
