// Numbers and arrays of numbers as bytes, between ranks of one build on one kind of processor. Not a file format.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "formats/core/error.h"

namespace kvcc {

class ByteWriter {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    static_assert(std::is_arithmetic_v<T>);
    put(static_cast<uint64_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what ByteWriter wrote, in its order. Throws Error(failed) at the end of the bytes.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  void get(T& value) {
    static_assert(std::is_arithmetic_v<T>);
    copy(&value, sizeof value);
  }
  template <typename T>
  void get(std::vector<T>& values) {
    uint64_t size = 0;
    get(size);
    if (size > bytes_.size() / sizeof(T)) throw too_short();
    values.resize(size);
    copy(values.data(), size * sizeof(T));
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  static Error too_short() { return Error(ErrorKind::failed, "another rank", "a message that ends too soon"); }
  void copy(void* to, size_t size) {
    if (size > bytes_.size()) throw too_short();
    if (size > 0) std::memcpy(to, bytes_.data(), size);
    bytes_.remove_prefix(size);
  }
  std::string_view bytes_;
};

}  // namespace kvcc
