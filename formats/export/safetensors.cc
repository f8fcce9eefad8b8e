#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/json.h"
#include "formats/core/text.h"
#include "formats/export/export.h"

namespace kvcc {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kDtypes[] = {"U8", "U16", "U32", "U64", "I8", "I16", "I32", "I64", "F32", "F64"};
constexpr size_t kHeaderLimit = 100'000'000;  // as the reference implementation

const char* dtype_of(Element type) { return kDtypes[static_cast<size_t>(type)]; }

size_t dtype_bytes(const std::string& dtype) {
  for (size_t i = 0; i < std::size(kDtypes); ++i) {
    if (dtype == kDtypes[i]) return element_bytes(static_cast<Element>(i));
  }
  if (dtype == "BF16" || dtype == "F16") return 2;
  return dtype == "BOOL" ? 1 : 0;
}

/// The library would turn 1.5 into 1 and -1 into 2^64 - 1.
uint64_t natural(const json& value, const std::string& place) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) {
    throw bad_input(place, json_brief(value), "a whole number from 0 to 2^63 - 1");
  }
  return value.get<uint64_t>();
}

/// A runtime takes such a scale as it is: 0 or NaN would make a cache of NaN.
void check_fp8_scales(const std::string& path, const ExportedTensor& tensor, const std::byte* bytes) {
  const bool scale = tensor.name.ends_with(".k_scale") || tensor.name.ends_with(".v_scale");
  if (!scale || tensor.dtype != "F32") return;
  uint64_t count = 1;
  for (const int64_t extent : tensor.shape) count *= static_cast<uint64_t>(extent);
  for (uint64_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, bytes + i * sizeof value, sizeof value);
    if (!std::isfinite(value) || value <= 0) {
      throw bad_input(fmt::format("{}: {}", path, tensor.name), fmt::format("scale {} at {}", value, i),
                      "a finite scale above 0");
    }
  }
}

}  // namespace

std::string tree_to_safetensors(const Tree& tree) {
  std::vector<const Tree::value_type*> order;
  for (const auto& entry : tree) {
    if (entry.second.dataset) order.push_back(&entry);
  }
  ordered_json metadata = ordered_json::object();
  for (const auto& [name, value] : named_attributes(tree)) metadata[name] = attribute_text(*value);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return element_bytes(a->second.value.type) > element_bytes(b->second.value.type);
  });
  ordered_json header;
  header["__metadata__"] = metadata;
  size_t offset = 0;
  for (const auto* entry : order) {
    const TreeValue& value = entry->second.value;
    header[entry->first.substr(1)] = {{"dtype", dtype_of(value.type)},
                                      {"shape", value.shape},
                                      {"data_offsets", {offset, offset + value.bytes.size()}}};
    offset += value.bytes.size();
  }
  std::string text = header.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data start aligned
  static_assert(std::endian::native == std::endian::little);
  const uint64_t length = text.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  file.reserve(sizeof length + text.size() + offset);
  file += text;
  for (const auto* entry : order) file += entry->second.value.bytes;
  return file;
}

std::vector<ExportedTensor> check_safetensors(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  uint64_t length = 0;
  if (bytes.size() < sizeof length) {
    throw bad_input(path, fmt::format("truncated: needs {} bytes, has {}", sizeof length, bytes.size()));
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kHeaderLimit || length > bytes.size() - sizeof length) {
    throw bad_input(path, fmt::format("truncated: a header of {} bytes in a file of {}", length, bytes.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof length, static_cast<size_t>(length));
  const json header = parse_json<json>(text, path + ": header");
  const uint64_t data = bytes.size() - sizeof length - length;
  struct Found {
    uint64_t begin, end;
    ExportedTensor tensor;
  };
  std::vector<Found> found;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      json_value<std::map<std::string, std::string>>(entry, name, path);
      continue;
    }
    const std::string place = path + ": " + name;
    try {
      const json &offsets = entry.at("data_offsets"), &shape = entry.at("shape");
      if (!offsets.is_array() || offsets.size() != 2) throw bad_input(place, "data_offsets", "two numbers");
      if (!shape.is_array()) throw bad_input(place, "shape", "a list");
      Found one{
          natural(offsets[0], place), natural(offsets[1], place), {name, entry.at("dtype").get<std::string>(), {}}};
      for (const json& extent : shape) {
        one.tensor.shape.push_back(static_cast<int64_t>(natural(extent, place)));
      }
      uint64_t wanted = dtype_bytes(one.tensor.dtype);
      if (wanted == 0) throw bad_input(place, fmt::format("unknown dtype {}", one.tensor.dtype));
      for (const int64_t extent : one.tensor.shape) {
        if (__builtin_mul_overflow(wanted, static_cast<uint64_t>(extent), &wanted)) {
          throw bad_input(place, fmt::format("shape {}", shape_text(one.tensor.shape)));
        }
      }
      if (one.begin > one.end || one.end > data || one.end - one.begin != wanted) {
        throw bad_input(place, fmt::format("bytes {} to {} of {}", one.begin, one.end, data),
                        fmt::format("{} bytes for {} {}", wanted, one.tensor.dtype, shape_text(one.tensor.shape)));
      }
      found.push_back(std::move(one));
    } catch (const json::exception& error) {
      throw bad_input(place, error.what());
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  std::vector<ExportedTensor> tensors;
  uint64_t end = 0;
  for (Found& one : found) {
    if (one.begin != end)
      throw bad_input(path + ": " + one.tensor.name, fmt::format("starts at {}", one.begin),
                      fmt::format("{}, without holes", end));
    end = one.end;
    one.tensor.offset = sizeof length + length + one.begin;
    check_fp8_scales(path, one.tensor, bytes.data() + one.tensor.offset);
    tensors.push_back(std::move(one.tensor));
  }
  if (end != data) throw bad_input(path, fmt::format("{} bytes of data", data), fmt::format("{}", end));
  return tensors;
}

}  // namespace kvcc
