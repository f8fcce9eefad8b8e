// The content of a plain HDF5 file as a value: objects by path, each with attributes, datasets with their bytes. The
// only users of the HDF5 library are the two functions at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

/// Element types that kvcc's files use: little-endian numbers, and UTF-8 text (attributes only).
enum class Element : uint8_t { u8, u16, u32, u64, i8, i16, i32, i64, f32, f64, text };

const char* element_name(Element type);  ///< "u8", …, "text"
size_t element_bytes(Element type);      ///< text: 1

struct TreeValue {
  Element type = Element::u8;
  std::vector<int64_t> shape;  ///< empty: a scalar; text is always a scalar
  std::string bytes;           ///< little-endian, last axis fastest; text without its padding
  bool operator==(const TreeValue&) const = default;
};

struct TreeObject {
  bool dataset = false;  ///< else a group
  TreeValue value;       ///< of a dataset
  std::map<std::string, TreeValue> attributes;
  bool operator==(const TreeObject&) const = default;
};

/// By absolute path; "/" is the root group and always there.
using Tree = std::map<std::string, TreeObject>;

TreeValue text_value(std::string_view text);
TreeValue integer_value(int64_t number);  ///< i64
TreeValue float_value(double number);     ///< f64
template <typename T>
TreeValue array_value(Element type, std::vector<int64_t> shape, const std::vector<T>& data) {
  return {type, std::move(shape), std::string(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(T))};
}
/// The bytes as numbers of the same type. The caller has checked the type.
template <typename T>
std::vector<T> array_of(const TreeValue& value) {
  std::vector<T> data(value.bytes.size() / sizeof(T));
  value.bytes.copy(reinterpret_cast<char*>(data.data()), data.size() * sizeof(T));
  return data;
}

/// SHA-256 over attributes and datasets in name order, the root's attribute "content_sha256" left out. The exact byte
/// string is in formats/spec/codebook.md.
std::string content_sha256(const Tree& tree);

/// The HDF5 file of the tree: fixed types, contiguous storage, no times, checksummed metadata (file format of
/// HDF5 1.8), so that equal trees give equal bytes and a flipped byte of the structure is noticed. Groups above a
/// dataset are made.
std::string tree_to_hdf5(const Tree& tree);

/// Reads every object of the file. Throws Error(bad_input) at `place` for what is no HDF5 file, is damaged, or holds
/// what kvcc's files do not: links, compound or variable-length datasets, chunked or filtered storage. Thread-safe.
Tree hdf5_to_tree(std::span<const std::byte> file, const std::string& place);

}  // namespace kvcc
