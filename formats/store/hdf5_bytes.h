// Bytes of an HDF5 file by address, none of them trusted. For hdf5_structure.cc and its parts.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/core/error.h"

namespace kvcc::hdf5 {

constexpr uint64_t kNowhere = UINT64_MAX;  ///< the undefined address

class Bytes {
 public:
  Bytes(std::span<const std::byte> file, const std::string& place) : file_(file), place_(place) {}

  uint64_t size() const { return file_.size(); }

  Error refuse(const std::string& path, std::string found, std::string wanted = "") const {
    return bad_input(path.empty() ? place_ : place_ + ": " + path, std::move(found), std::move(wanted));
  }
  Error damaged(const std::string& path, const std::string& what) const {
    return refuse(path, fmt::format("damaged or truncated HDF5 file of {} bytes ({})", file_.size(), what));
  }

  /// Throws unless `bytes` bytes from `at` lie in the file.
  void need(uint64_t at, uint64_t bytes, const std::string& path, const char* what) const {
    if (at > file_.size() || bytes > file_.size() - at) {
      throw damaged(path, fmt::format("{} of {} bytes at {}", what, bytes, at));
    }
  }
  /// A little-endian number of `width` bytes. The caller has asked need(), or gives a path and a name.
  uint64_t number(uint64_t at, int width) const {
    uint64_t value = 0;
    for (int i = width; i-- > 0;) value = value << 8 | static_cast<uint64_t>(file_[at + static_cast<uint64_t>(i)]);
    return value;
  }
  std::string_view text(uint64_t at, uint64_t bytes) const {
    return {reinterpret_cast<const char*>(file_.data()) + at, static_cast<size_t>(bytes)};
  }

 private:
  const std::span<const std::byte> file_;
  const std::string& place_;
};

/// A part of the file that is read from its beginning to its end.
class Cursor {
 public:
  Cursor(const Bytes& bytes, const std::string& path, const char* what, uint64_t begin, uint64_t size)
      : bytes_(bytes), path_(path), what_(what), at_(begin), end_(begin + size) {
    bytes.need(begin, size, path, what);
  }
  uint64_t at() const { return at_; }
  uint64_t left() const { return end_ - at_; }
  uint64_t number(int width) {
    const uint64_t from = at_;
    skip(static_cast<uint64_t>(width));
    return bytes_.number(from, width);
  }
  std::string_view text(uint64_t n) {
    const uint64_t from = at_;
    skip(n);
    return bytes_.text(from, n);
  }
  void skip(uint64_t n) {
    if (n > left()) throw wrong(fmt::format("ends {} bytes early", n - left()));
    at_ += n;
  }
  /// The next `n` bytes.
  Cursor part(const char* what, uint64_t n) {
    const uint64_t from = at_;
    skip(n);
    return Cursor(bytes_, path_, what, from, n);
  }
  Error wrong(const std::string& found) const { return bytes_.damaged(path_, fmt::format("{}: {}", what_, found)); }
  void need(bool holds, const char* found) const {
    if (!holds) throw wrong(found);
  }
  const std::string& path() const { return path_; }
  const Bytes& bytes() const { return bytes_; }

 private:
  const Bytes& bytes_;
  const std::string& path_;
  const char* what_;
  uint64_t at_, end_;
};

/// An element type, as far as sizes depend on it.
struct Type {
  int kind = 0;  ///< the specification's class: 0 integer, 1 float, 3 text, 9 text of variable length
  uint64_t bytes = 0;
};
constexpr int kText = 3, kVariable = 9;

/// Elements of a shape; kTooMany when they can't lie in the file.
constexpr uint64_t kTooMany = UINT64_MAX;

Type read_type(Cursor& in, int depth = 0);
uint64_t read_space(Cursor& in);
void check_fill(Cursor& in, bool old, uint64_t& bytes);

/// Global heaps, where texts of variable length lie. Each is read once.
class GlobalHeaps {
 public:
  explicit GlobalHeaps(const Bytes& bytes) : bytes_(bytes) {}
  /// Throws unless the heap at `at` holds object `index` with `length` bytes.
  void check(const std::string& path, uint64_t at, uint64_t index, uint64_t length);
  /// Begin and size of each.
  const std::map<uint64_t, uint64_t>& extents() const { return extents_; }

 private:
  void read(const std::string& path, uint64_t at);
  const Bytes& bytes_;
  std::map<uint64_t, std::map<uint64_t, uint64_t>> heaps_;  ///< size of each object, by address and index
  std::map<uint64_t, uint64_t> extents_;
};

}  // namespace kvcc::hdf5
