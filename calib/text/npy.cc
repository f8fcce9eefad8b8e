// The .npy format, versions 1 to 3: magic, header length, a Python dictionary as text, data. Nothing is trusted.
#include <cstring>

#include "calib/text/corpus.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

// The value of `key` in a flat dictionary such as {'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }.
std::string_view value_of(std::string_view header, std::string_view key, const std::string& path) {
  const std::string quoted = std::string("'").append(key).append("'");
  size_t at = header.find(quoted);
  if (at != std::string_view::npos) at = header.find(':', at + quoted.size());
  if (at == std::string_view::npos) throw bad_input(path, "no " + std::string(key) + " in the .npy header");
  at = header.find_first_not_of(' ', at + 1);
  if (at == std::string_view::npos) throw bad_input(path, "the .npy header ends after " + std::string(key));
  const char close = header[at] == '(' ? ')' : header[at] == '\'' ? '\'' : ',';
  const size_t end = header.find(close, at + 1);
  if (end == std::string_view::npos) throw bad_input(path, "the .npy header ends within " + std::string(key));
  return header.substr(at, end - at + (close == ',' ? 0 : 1));
}

std::vector<int64_t> parse_shape(std::string_view text, const std::string& path) {
  const auto wrong = [&] { return bad_input(path, "shape " + std::string(text), "(n,) or (n, length)"); };
  if (text.size() < 2 || text.front() != '(') throw wrong();
  std::vector<int64_t> shape;
  int64_t number = -1;
  for (const char c : text.substr(1)) {
    if (c >= '0' && c <= '9') {
      number = std::max<int64_t>(number, 0) * 10 + (c - '0');
      if (number > (int64_t{1} << 40)) throw wrong();
    } else if (c == ',' || c == ')') {
      if (number >= 0) shape.push_back(number);
      number = -1;
    } else if (c != ' ') {
      throw wrong();
    }
  }
  if (shape.empty() || shape.size() > 2) throw wrong();
  return shape;
}

}  // namespace

NpyIds read_npy_ids(const std::string& path) {
  const MappedFile file(path, true);
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const auto truncated = [&](uint64_t needs) {
    return bad_input(
        path, "truncated: needs " + std::to_string(needs) + " bytes, has " + std::to_string(all.size()) + " bytes");
  };
  if (all.size() < 10) throw truncated(10);
  if (all.substr(0, 6) != "\x93NUMPY") throw bad_input(path, "not a .npy file", "int32 ids written by numpy.save");
  const auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(all[i])); };
  const uint64_t version = byte(6);
  if (version < 1 || version > 3) throw bad_input(path, ".npy version " + std::to_string(version), "1, 2 or 3");
  const size_t start = version == 1 ? 10 : 12;
  if (all.size() < start) throw truncated(start);
  const uint64_t length = byte(8) | byte(9) << 8 | (version == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > all.size() - start) throw truncated(start + length);
  const std::string_view header = all.substr(start, length);

  const std::string type(value_of(header, "descr", path));
  const size_t width = type == "'<i4'" ? 4 : type == "'<i8'" ? 8 : 0;
  if (!width) throw bad_input(path, "ids of type " + type, "'<i4' or '<i8' (int32 or int64)");
  NpyIds result;
  result.shape = parse_shape(value_of(header, "shape", path), path);
  if (value_of(header, "fortran_order", path) != "False" && result.shape.size() > 1) {
    throw bad_input(path, "columns first (fortran_order)", "rows first", "save numpy.ascontiguousarray(ids)");
  }
  uint64_t count = 1;  // both extents are at most 2^40
  bool overflow = false;
  for (const int64_t extent : result.shape)
    overflow |= __builtin_mul_overflow(count, static_cast<uint64_t>(extent), &count);
  const std::string_view data = all.substr(start + length);
  if (overflow || count > data.size() / width) {
    throw bad_input(path, "truncated: shape " + shape_text(result.shape) + " needs more than the " +
                              std::to_string(data.size()) + " bytes of data");
  }
  if (count * width != data.size()) {
    throw bad_input(path, std::to_string(data.size() - count * width) + " bytes after the ids");
  }
  result.ids.resize(count);
  for (size_t i = 0; i < count; ++i) {
    int64_t id = 0;
    if (width == 4) {
      int32_t narrow;
      std::memcpy(&narrow, data.data() + 4 * i, sizeof narrow);
      id = narrow;
    } else {
      std::memcpy(&id, data.data() + 8 * i, sizeof id);
    }
    if (id < 0 || id > INT32_MAX) {
      throw bad_input(path, "id " + std::to_string(id) + " at position " + std::to_string(i), "a token id from 0");
    }
    result.ids[i] = static_cast<int32_t>(id);
  }
  return result;
}

}  // namespace kvcc
