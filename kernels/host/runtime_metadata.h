// Text metadata and tensors of a safetensors file, taken one by one with their checks. Shared by the runtime's two
// files: artifact and cache. Host only.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "formats/core/error.h"
#include "formats/weights/safetensors_file.h"

namespace kvcc::host {

class FileFields {
 public:
  explicit FileFields(const SafetensorsFile& file);

  /// All throw Error(bad_input) naming file and field.
  const std::string& text(const std::string& name) const;
  int64_t integer(const std::string& name, int64_t least, int64_t most) const;
  double number(const std::string& name) const;
  /// Whole numbers separated by commas; wants `count` of them.
  std::vector<int64_t> integers(const std::string& name, size_t count, int64_t least, int64_t most) const;
  /// 64 lower-case hexadecimal digits.
  const std::string& digest(const std::string& name) const;
  /// "MAJOR.MINOR" with MAJOR from 1 to `most`.
  void check_version(const std::string& name, int most) const;

  bool has_tensor(const std::string& name) const { return tensors_.contains(name); }
  /// Extent -1 of the shape is not checked.
  const SafeTensor& tensor(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) const;
  std::vector<float> floats(const std::string& name, const std::vector<int64_t>& shape) const;

  Error wrong(const std::string& name, std::string found, std::string wanted = "", std::string hint = "") const;

 private:
  const SafetensorsFile& file_;
  std::map<std::string, const SafeTensor*> tensors_;
};

}  // namespace kvcc::host
