#include <fmt/format.h>

#include <charconv>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/text.h"
#include "formats/export/export.h"
#include "formats/export/zip.h"

namespace kvcc {
namespace {

/// A header in the one form that NumPy writes: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }
class NpyHeader {
 public:
  NpyHeader(std::string_view text, const std::string& place) : text_(text), place_(place) {}

  ExportedTensor read(std::string name) {
    ExportedTensor tensor{std::move(name), "", {}};
    expect("{'descr': '");
    const size_t quote = text_.find('\'');
    if (quote == std::string_view::npos || quote > 32) throw wrong();
    tensor.dtype = text_.substr(0, quote);
    text_.remove_prefix(quote);
    expect("', 'fortran_order': False, 'shape': (");
    while (!text_.starts_with(')')) {
      int64_t extent = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), extent);
      if (error != std::errc() || extent < 0 || tensor.shape.size() == 32) throw wrong();
      tensor.shape.push_back(extent);
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      if (text_.starts_with(')') && tensor.shape.size() > 1) break;
      expect(",");
      if (text_.starts_with(' ')) text_.remove_prefix(1);
    }
    expect("), }");
    if (text_.find_first_not_of(' ') != text_.size() - 1 || !text_.ends_with('\n')) throw wrong();
    return tensor;
  }

 private:
  Error wrong() const {
    return bad_input(place_, "no header of an .npy array",
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }");
  }
  void expect(std::string_view word) {
    if (!text_.starts_with(word)) throw wrong();
    text_.remove_prefix(word.size());
  }
  std::string_view text_;
  const std::string& place_;
};

/// Bytes of an element: the number that ends "<f4", "|u1", "|S123"; 0 for others ("|O").
uint64_t item_bytes(const std::string& dtype) {
  if (dtype.size() < 3 || std::string_view("<|").find(dtype[0]) == std::string_view::npos) return 0;
  if (std::string_view("fiubS").find(dtype[1]) == std::string_view::npos) return 0;
  uint64_t bytes = 0;
  const char* end = dtype.data() + dtype.size();
  const auto [stop, error] = std::from_chars(dtype.data() + 2, end, bytes);
  return error == std::errc() && stop == end ? bytes : 0;
}

ExportedTensor check_npy(const ZipEntry& entry, const std::string& place) {
  const std::string_view bytes = entry.bytes;
  constexpr size_t kPrefix = 10;
  if (bytes.size() < kPrefix || !bytes.starts_with(std::string_view("\x93NUMPY\x01\x00", 8))) {
    throw bad_input(place, "no .npy array of version 1.0");
  }
  const size_t length = static_cast<uint8_t>(bytes[8]) | static_cast<size_t>(static_cast<uint8_t>(bytes[9])) << 8;
  if (bytes.size() - kPrefix < length) throw bad_input(place, fmt::format("truncated: a header of {} bytes", length));
  const size_t extension = entry.name.ends_with(".npy") ? 4 : 0;
  ExportedTensor tensor =
      NpyHeader(bytes.substr(kPrefix, length), place).read(entry.name.substr(0, entry.name.size() - extension));
  uint64_t wanted = item_bytes(tensor.dtype);
  if (wanted == 0) throw bad_input(place, "dtype " + tensor.dtype, "little-endian numbers or bytes");
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(wanted, static_cast<uint64_t>(extent), &wanted)) {
      throw bad_input(place, "shape " + shape_text(tensor.shape) + " overflows");
    }
  }
  if (bytes.size() - kPrefix - length != wanted) {
    throw bad_input(place, fmt::format("{} bytes", bytes.size() - kPrefix - length),
                    fmt::format("{} for {} {}", wanted, tensor.dtype, shape_text(tensor.shape)));
  }
  return tensor;
}

}  // namespace

std::vector<ExportedTensor> check_npz(const std::string& path) {
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  std::vector<ExportedTensor> tensors;
  for (const ZipEntry& entry : read_zip(bytes, path)) {
    tensors.push_back(check_npy(entry, path + ": " + entry.name));
    const std::string_view data = entry.bytes;
    tensors.back().offset = static_cast<uint64_t>(data.data() - bytes.data());
  }
  return tensors;
}

}  // namespace kvcc
