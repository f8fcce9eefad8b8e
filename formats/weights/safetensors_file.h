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
  std::span<const std::byte> bytes;  ///< in the file
};

/// Reads and checks on construction: offsets against shape, against the file, and against each other, which
/// leaves no holes. Throws
/// Error(bad_input) that names file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  /// The same from the bytes of such a file, which must outlive this. `name` stands for the path in messages.
  SafetensorsFile(std::string name, std::span<const std::byte> bytes);
  const std::string& path() const { return path_; }
  const std::vector<SafeTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  void release() const {
    if (map_) map_->release();
  }
  /// As TensorSource's. Bytes in memory never change.
  void check_unchanged(bool name_too) const {
    if (map_) name_too ? map_->check_same_file() : map_->check_unchanged();
  }

 private:
  void read(std::span<const std::byte> all);
  std::string path_;
  std::optional<MappedFile> map_;
  std::vector<SafeTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace kvcc
