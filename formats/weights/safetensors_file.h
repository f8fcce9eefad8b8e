// A safetensors file: an 8-byte header length, a JSON header, then the data. Nothing in the file is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/core/file.h"
#include "formats/weights/model_files.h"

namespace kvcc {

struct SafeTensor {
  std::string name;
  std::vector<int64_t> shape;        ///< outermost first
  std::string dtype;                 ///< as in the file: "BF16", "F8_E4M3"
  std::optional<WeightType> type;    ///< absent when kvcc does not read that dtype
  std::span<const std::byte> bytes;  ///< in the map
};

/// Reads and checks on construction: offsets against shape, against the file, and against each other. Throws
/// Error(bad_input) that names file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  const std::string& path() const { return map_.path(); }
  const std::vector<SafeTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  MappedFile map_;
  std::vector<SafeTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace kvcc
