#include "formats/weights/safetensors_file.h"

#include <algorithm>
#include <cstring>

#include "formats/core/error.h"
#include "formats/core/json.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation

constexpr struct {
  const char* name;
  uint64_t bytes;
} kDtypes[] = {{"F32", 4},  {"F16", 2},     {"BF16", 2},    {"F64", 8},    {"I64", 8}, {"I32", 4},
               {"I16", 2},  {"I8", 1},      {"U64", 8},     {"U32", 4},    {"U16", 2}, {"U8", 1},
               {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};

std::optional<WeightType> weight_type(const std::string& dtype) {
  if (dtype == "F32") return WeightType::f32;
  if (dtype == "F16") return WeightType::f16;
  if (dtype == "BF16") return WeightType::bf16;
  return {};
}

uint64_t natural(const std::string& place, const json& value, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) {
    throw bad_input(
        place,
        std::string(what) + (value.is_number() ? " is " + value.dump() : std::string(" is a ") + value.type_name()),
        "a natural number");
  }
  return value.get<uint64_t>();
}

SafeTensor read_entry(const std::string& place, const std::string& name, const json& entry,
                      std::span<const std::byte> data) {
  SafeTensor tensor;
  tensor.name = name;
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
    throw bad_input(place, "no dtype, shape and data_offsets");
  }
  const json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!dtype.is_string()) throw bad_input(place, "dtype is not a string");
  if (!shape.is_array() || shape.size() > 16) throw bad_input(place, "shape is not a list of at most 16 extents");
  if (!offsets.is_array() || offsets.size() != 2) throw bad_input(place, "data_offsets is not a pair");
  tensor.dtype = dtype.get<std::string>();
  tensor.type = weight_type(tensor.dtype);
  uint64_t elements = 1;
  bool overflow = false;
  for (const json& extent : shape) {
    const uint64_t n = natural(place, extent, "an extent of the shape");
    tensor.shape.push_back(static_cast<int64_t>(n));
    overflow |= __builtin_mul_overflow(elements, n, &elements);
  }
  const uint64_t begin = natural(place, offsets[0], "data_offsets"), end = natural(place, offsets[1], "data_offsets");
  if (begin > end)
    throw bad_input(place, "data_offsets run backwards, from " + std::to_string(begin) + " to " + std::to_string(end));
  if (end > data.size()) {
    throw bad_input(
        place,
        "truncated: needs " + std::to_string(end) + " bytes of data, has " + std::to_string(data.size()) + " bytes",
        "a whole file", "fetch the file again");
  }
  const auto known =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto& d) { return tensor.dtype == d.name; });
  if (known != std::end(kDtypes)) {
    uint64_t size = 0;
    overflow |= __builtin_mul_overflow(elements, known->bytes, &size);
    if (overflow || size != end - begin) {
      throw bad_input(place, "data_offsets cover " + std::to_string(end - begin) + " bytes",
                      (overflow ? "more than can be" : std::to_string(size)) + " bytes for shape " +
                          shape_text(tensor.shape) + " in " + tensor.dtype);
    }
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), map_(std::in_place, path, true) {
  read(map_->bytes());
}

SafetensorsFile::SafetensorsFile(std::string name, std::span<const std::byte> bytes) : path_(std::move(name)) {
  read(bytes);
}

void SafetensorsFile::read(std::span<const std::byte> all) {
  const auto truncated = [&](uint64_t needs) {
    return bad_input(
        path_, "truncated: needs " + std::to_string(needs) + " bytes, has " + std::to_string(all.size()) + " bytes",
        "a whole safetensors file", "fetch the file again");
  };
  if (all.size() < 8) throw truncated(8);
  uint64_t length = 0;
  std::memcpy(&length, all.data(), sizeof length);
  if (length > kMaxHeader) {
    throw bad_input(path_, "claims a header of " + std::to_string(length) + " bytes",
                    "at most " + std::to_string(kMaxHeader) + "; is it a safetensors file?");
  }
  if (length > all.size() - 8) throw truncated(8 + length);
  const std::string_view text(reinterpret_cast<const char*>(all.data()) + 8, length);
  const json header = parse_json<json>(text, path_ + ": header");
  const std::span<const std::byte> data = all.subspan(8 + length);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) throw bad_input(path_, "__metadata__ is not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) throw bad_input(path_ + ": __metadata__", key + " is " + json_brief(value), "text");
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    tensors_.push_back(read_entry(path_ + ": tensor " + name, name, entry, data));
  }
  std::vector<const SafeTensor*> order;
  for (const SafeTensor& tensor : tensors_) {
    if (!tensor.bytes.empty()) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->bytes.data() < b->bytes.data(); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->bytes.data() + order[i - 1]->bytes.size() > order[i]->bytes.data()) {
      throw bad_input(path_ + ": tensor " + order[i]->name, "its bytes overlap those of " + order[i - 1]->name);
    }
  }
  uint64_t covered = 0;
  for (const SafeTensor* tensor : order) covered += tensor->bytes.size();
  if (covered != data.size()) {
    throw bad_input(path_, std::to_string(data.size() - covered) + " bytes of the data belong to no tensor",
                    "data without holes", "fetch the file again");
  }
}

}  // namespace kvcc
