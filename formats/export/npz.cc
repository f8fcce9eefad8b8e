#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "formats/core/error.h"
#include "formats/export/export.h"
#include "formats/export/zip.h"

namespace kvcc {
namespace {

constexpr const char* kDescr[] = {"|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8"};
constexpr size_t kPrefix = 10;  // magic number, version, length of the header

/// An .npy file, version 1.0. NumPy pads the header so that the data start at a multiple of 64.
std::string npy(const std::string& descr, const std::vector<int64_t>& shape, const std::string& bytes) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr,
                                   fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  header.resize((kPrefix + header.size() + 1 + 63) / 64 * 64 - kPrefix - 1, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(length & 0xff);
  file += static_cast<char>(length >> 8);
  return file + header + bytes;
}

}  // namespace

std::string tree_to_npz(const Tree& tree) {
  ZipWriter zip;
  nlohmann::ordered_json metadata = nlohmann::ordered_json::object();
  for (const auto& [name, value] : named_attributes(tree)) metadata[name] = attribute_text(*value);
  nlohmann::ordered_json& datasets = metadata["datasets"];
  for (const auto& [path, object] : tree) {
    if (!object.dataset) continue;
    nlohmann::ordered_json& entry = datasets[path.substr(1)];
    for (const auto& [name, value] : object.attributes) entry[name] = attribute_text(value);
  }
  const std::string text = metadata.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  zip.add("metadata.npy", npy(fmt::format("|S{}", text.size()), {}, text));
  for (const auto& [path, object] : tree) {
    if (!object.dataset) continue;
    const TreeValue& value = object.value;
    zip.add(path.substr(1) + ".npy", npy(kDescr[static_cast<size_t>(value.type)], value.shape, value.bytes));
  }
  return zip.finish();
}

}  // namespace kvcc
