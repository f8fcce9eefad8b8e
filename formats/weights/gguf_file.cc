#include "formats/weights/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <unordered_set>

#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/weights/block_formats.h"

namespace kvcc {
namespace {

enum Kind : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
constexpr uint64_t kKindBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8 /* at least */, 12 /* at least */, 8, 8, 8};
constexpr uint64_t kMaxKey = 65535, kMaxDimensions = 4, kMaxNesting = 4;
constexpr uint64_t kMaxElements = 1 << 24;  // of an array; the largest vocabularies have a sixtieth of that

// A cursor that cannot leave the file: every read checks what is left first.
class Cursor {
 public:
  Cursor(std::string path, std::span<const std::byte> bytes) : path_(std::move(path)), bytes_(bytes) {}

  uint64_t position() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }

  const std::byte* take(uint64_t n, const std::string& what) {
    if (n > left()) {
      throw bad_input(path_,
                      "truncated in " + what + ": needs " + std::to_string(n) + " bytes at offset " +
                          std::to_string(at_) + ", has " + std::to_string(left()) + " (file of " +
                          std::to_string(bytes_.size()) + " bytes)",
                      "a whole GGUF file", "fetch the file again");
    }
    const std::byte* p = bytes_.data() + at_;
    at_ += n;
    return p;
  }
  template <typename T>
  T number(const std::string& what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }
  std::string string(const std::string& what, uint64_t limit) {
    const uint64_t length = number<uint64_t>("the length of " + what);
    if (length > limit) throw bad_input(path_, what + " claims " + std::to_string(length) + " bytes");
    return {reinterpret_cast<const char*>(take(length, what)), static_cast<size_t>(length)};
  }
  /// A count of things that take at least `each` bytes: one that can't fit is refused before anything is allocated.
  uint64_t count(const std::string& what, uint64_t each) {
    return checked(number<uint64_t>("the number of " + what), what, each);
  }
  uint64_t checked(uint64_t n, const std::string& what, uint64_t each) const {
    if (n > left() / each) {
      throw bad_input(path_, "truncated: claims " + std::to_string(n) + " " + what + ", which need at least " +
                                 std::to_string(each) + " bytes each; has " + std::to_string(left()) + " bytes left");
    }
    return n;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
};

int64_t as_integer(Cursor& in, uint32_t kind, const std::string& what) {
  switch (kind) {
    case kU8:
      return in.number<uint8_t>(what);
    case kI8:
      return in.number<int8_t>(what);
    case kU16:
      return in.number<uint16_t>(what);
    case kI16:
      return in.number<int16_t>(what);
    case kU32:
      return in.number<uint32_t>(what);
    case kI32:
      return in.number<int32_t>(what);
    case kBool: {
      const uint8_t value = in.number<uint8_t>(what);
      if (value > 1) throw bad_input(in.path(), what + " is " + std::to_string(value), "a boolean, 0 or 1");
      return value;
    }
    case kI64:
      return in.number<int64_t>(what);
    default: {
      const uint64_t value = in.number<uint64_t>(what);
      if (value > INT64_MAX) throw bad_input(in.path(), what + " is " + std::to_string(value), "at most 2^63 - 1");
      return static_cast<int64_t>(value);
    }
  }
}

double as_double(Cursor& in, uint32_t kind, const std::string& what) {
  return kind == kF32 ? static_cast<double>(in.number<float>(what)) : in.number<double>(what);
}

GgufValue read_value(Cursor& in, uint32_t kind, const std::string& what, uint64_t depth);

GgufValue read_array(Cursor& in, const std::string& what, uint64_t depth) {
  if (depth > kMaxNesting)
    throw bad_input(in.path(), what + " nests arrays more than " + std::to_string(kMaxNesting) + " deep");
  const uint32_t kind = in.number<uint32_t>(what);
  if (kind > kF64) throw bad_input(in.path(), what + " is an array of value type " + std::to_string(kind));
  const uint64_t n = in.count("elements of " + what, kKindBytes[kind]);
  if (n > kMaxElements) throw bad_input(in.path(), what + " has " + std::to_string(n) + " elements");
  if (kind == kArray) {
    for (uint64_t i = 0; i < n; ++i) read_array(in, what, depth + 1);
    return std::monostate{};
  }
  if (kind == kString) {
    std::vector<std::string> strings;
    strings.reserve(n);
    for (uint64_t i = 0; i < n; ++i) strings.push_back(in.string(what, UINT64_MAX));
    return strings;
  }
  if (kind == kF32 || kind == kF64) {
    std::vector<double> numbers(n);
    for (double& number : numbers) number = as_double(in, kind, what);
    return numbers;
  }
  std::vector<int64_t> numbers(n);
  for (int64_t& number : numbers) number = as_integer(in, kind, what);
  return numbers;
}

GgufValue read_value(Cursor& in, uint32_t kind, const std::string& what, uint64_t depth) {
  if (kind > kF64) throw bad_input(in.path(), what + " has value type " + std::to_string(kind), "a type from 0 to 12");
  if (kind == kString) return in.string(what, UINT64_MAX);
  if (kind == kArray) return read_array(in, what, depth);
  if (kind == kBool) return as_integer(in, kind, what) != 0;
  if (kind == kF32 || kind == kF64) return as_double(in, kind, what);
  return as_integer(in, kind, what);
}

struct Entry {
  GgufTensor tensor;
  uint64_t offset, size;
};

// Shape, type and offset of one tensor; the size is computed without wrapping.
Entry read_tensor_entry(Cursor& in, uint64_t number) {
  Entry entry{};
  entry.tensor.name = in.string("the name of tensor " + std::to_string(number), kMaxKey);
  const std::string place = in.path() + ": tensor " + entry.tensor.name;
  const uint32_t rank = in.number<uint32_t>("tensor " + entry.tensor.name);
  if (rank > kMaxDimensions) throw bad_input(place, std::to_string(rank) + " dimensions", "at most 4");
  std::vector<int64_t>& shape = entry.tensor.shape;
  uint64_t elements = 1;
  bool overflow = false;
  for (uint32_t i = 0; i < rank; ++i) {
    const uint64_t extent = in.number<uint64_t>("tensor " + entry.tensor.name);
    if (extent == 0 || extent > INT64_MAX) throw bad_input(place, "a dimension of " + std::to_string(extent));
    overflow |= __builtin_mul_overflow(elements, extent, &elements);
    shape.insert(shape.begin(), static_cast<int64_t>(extent));
  }
  const uint32_t type = in.number<uint32_t>("tensor " + entry.tensor.name);
  entry.offset = in.number<uint64_t>("tensor " + entry.tensor.name);
  const BlockFormat* format = block_format_of_ggml(type);
  if (!format) {
    throw bad_input(place, "weight type " + ggml_type_name(type), "one of " + known_weight_types(),
                    "use another quantisation of the model");
  }
  entry.tensor.type = format->type;
  const uint64_t row = shape.empty() ? 1 : static_cast<uint64_t>(shape.back());
  if (row % static_cast<uint64_t>(format->values) != 0) {
    throw bad_input(place, "rows of " + std::to_string(row) + " values in " + format->name,
                    "a multiple of " + std::to_string(format->values));
  }
  entry.size = elements / static_cast<uint64_t>(format->values);
  overflow |= __builtin_mul_overflow(entry.size, static_cast<uint64_t>(format->bytes), &entry.size);
  if (overflow || elements > INT64_MAX) throw bad_input(place, "shape " + shape_text(shape) + " overflows");
  return entry;
}

uint64_t alignment_of(const GgufFile& file) {
  const int64_t alignment = file.integer("general.alignment").value_or(32);
  if (alignment < 1 || alignment > (1 << 20) || !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    throw bad_input(file.path(), "general.alignment is " + std::to_string(alignment), "a power of two up to 2^20");
  }
  return static_cast<uint64_t>(alignment);
}

void check_overlaps(const std::string& path, std::vector<Entry>& entries) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->size > order[i]->offset) {
      throw bad_input(path + ": tensor " + order[i]->tensor.name,
                      "its bytes overlap those of " + order[i - 1]->tensor.name);
    }
  }
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : map_(path, true) {
  Cursor in(path, map_.bytes());
  if (in.left() >= 4 && std::memcmp(map_.bytes().data(), "GGUF", 4) != 0) {
    throw bad_input(path, "not a GGUF file", "the file to begin with \"GGUF\"");
  }
  in.take(4, "the magic number");
  const uint32_t version = in.number<uint32_t>("the version");
  if (version != 2 && version != 3) {
    const bool swapped = __builtin_bswap32(version) == 2 || __builtin_bswap32(version) == 3;
    throw bad_input(path, swapped ? "a big-endian GGUF file" : "GGUF version " + std::to_string(version),
                    "version 2 or 3, little-endian");
  }
  const uint64_t tensor_count = in.count("tensors", 8 + 4 + 4 + 8);
  const uint64_t value_count = in.count("metadata entries", 8 + 4 + 1);
  for (uint64_t i = 0; i < value_count; ++i) {
    const std::string key = in.string("metadata key " + std::to_string(i), kMaxKey);
    const uint32_t kind = in.number<uint32_t>("metadata " + key);
    if (!values_.try_emplace(key, read_value(in, kind, "metadata " + key, 0)).second) {
      throw bad_input(path, "metadata key " + key + " appears twice");
    }
  }
  const uint64_t alignment = alignment_of(*this);

  std::vector<Entry> entries;
  entries.reserve(tensor_count);
  std::unordered_set<std::string> names;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    entries.push_back(read_tensor_entry(in, i));
    const std::string& name = entries.back().tensor.name;
    if (!names.insert(name).second) throw bad_input(path + ": tensor " + name, "its name appears twice");
  }
  const uint64_t data_start = (in.position() + alignment - 1) / alignment * alignment;
  const uint64_t size = map_.bytes().size(), data_size = size > data_start ? size - data_start : 0;
  for (Entry& entry : entries) {
    const std::string place = path + ": tensor " + entry.tensor.name;
    if (entry.offset % alignment != 0) {
      throw bad_input(place, "offset " + std::to_string(entry.offset), "a multiple of " + std::to_string(alignment));
    }
    if (entry.offset > data_size || entry.size > data_size - entry.offset) {
      throw bad_input(place,
                      "truncated: needs " + std::to_string(entry.size) + " bytes at offset " +
                          std::to_string(entry.offset) + " of the data, which has " + std::to_string(data_size) +
                          " bytes",
                      "a whole GGUF file", "fetch the file again");
    }
    entry.tensor.bytes = map_.bytes().subspan(data_start + entry.offset, entry.size);
  }
  check_overlaps(path, entries);
  for (Entry& entry : entries) tensors_.push_back(std::move(entry.tensor));
}

void GgufFile::join(GgufFile part) {
  std::set<std::string_view> names;
  for (const GgufTensor& tensor : tensors_) names.insert(tensor.name);
  for (const GgufTensor& tensor : part.tensors_) {
    if (names.contains(tensor.name))
      throw bad_input(part.path() + ": tensor " + tensor.name, "it is in another part too");
  }
  tensors_.insert(tensors_.end(), part.tensors_.begin(), part.tensors_.end());
  joined_.push_back(std::move(part.map_));
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto it = std::find_if(tensors_.begin(), tensors_.end(), [&](const GgufTensor& t) { return t.name == name; });
  return it == tensors_.end() ? nullptr : &*it;
}

const GgufValue* GgufFile::value(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

namespace {
Error wrong_type(const GgufFile& file, const std::string& key, const char* wanted) {
  return bad_input(file.path(), "metadata " + key + " has another type", wanted);
}
}  // namespace

std::optional<int64_t> GgufFile::integer(const std::string& key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  if (const int64_t* i = std::get_if<int64_t>(v)) return *i;
  throw wrong_type(*this, key, "an integer");
}

std::optional<double> GgufFile::number(const std::string& key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  if (const double* d = std::get_if<double>(v)) return *d;
  if (const int64_t* i = std::get_if<int64_t>(v)) return static_cast<double>(*i);
  throw wrong_type(*this, key, "a number");
}

std::optional<bool> GgufFile::boolean(const std::string& key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  if (const bool* b = std::get_if<bool>(v)) return *b;
  throw wrong_type(*this, key, "a boolean");
}

std::optional<std::string> GgufFile::text(const std::string& key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  if (const std::string* s = std::get_if<std::string>(v)) return *s;
  throw wrong_type(*this, key, "a string");
}

std::vector<std::string> GgufFile::texts(const std::string& key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  if (const auto* list = std::get_if<std::vector<std::string>>(v)) return *list;
  throw wrong_type(*this, key, "an array of strings");
}

std::vector<int64_t> GgufFile::integers(const std::string& key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  if (const auto* list = std::get_if<std::vector<int64_t>>(v)) return *list;
  throw wrong_type(*this, key, "an array of integers");
}

std::vector<double> GgufFile::numbers(const std::string& key) const {
  const GgufValue* v = value(key);
  if (!v) return {};
  if (const auto* list = std::get_if<std::vector<double>>(v)) return *list;
  if (const auto* list = std::get_if<std::vector<int64_t>>(v)) return {list->begin(), list->end()};
  throw wrong_type(*this, key, "an array of numbers");
}

}  // namespace kvcc
