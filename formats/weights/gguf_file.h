// A GGUF file (version 2 or 3): metadata and tensor table. Nothing in the file is trusted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/core/file.h"
#include "formats/weights/model_files.h"

namespace kvcc {

/// One metadata value. Integers of any width are int64 (a u64 above 2^63 - 1 is refused), floats are double. Numeric
/// arrays are widened likewise; arrays of arrays are skipped over and kept as monostate.
using GgufValue = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

struct GgufTensor {
  std::string name;            ///< as in the file, e.g. "blk.3.attn_k.weight"
  std::vector<int64_t> shape;  ///< outermost first (the file has it innermost first)
  WeightType type;
  std::span<const std::byte> bytes;  ///< in the map
};

/// Reads and checks on construction. Throws Error(bad_input) that names the file and the key or tensor.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return map_.path(); }
  void release() const {
    map_.release();
    for (const MappedFile& map : joined_) map.release();
  }
  /// Of this part and those that joined it. Throws Error(bad_input) when a file was changed, or with `name_too` when
  /// its name stands for another one by now.
  void check_unchanged(bool name_too) const {
    name_too ? map_.check_same_file() : map_.check_unchanged();
    for (const MappedFile& map : joined_) name_too ? map.check_same_file() : map.check_unchanged();
  }
  /// Takes over the tensors of another part of the same model. Throws Error(bad_input) for a name that is there
  /// already.
  void join(GgufFile part);
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  ///< in file order
  const GgufTensor* find(std::string_view name) const;
  const GgufValue* value(const std::string& key) const;

  /// Absent keys give nullopt; a key of another type throws.
  std::optional<int64_t> integer(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<bool> boolean(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;  ///< empty when absent
  std::vector<int64_t> integers(const std::string& key) const;   ///< empty when absent
  std::vector<double> numbers(const std::string& key) const;     ///< empty when absent; integers are widened

 private:
  MappedFile map_;
  std::vector<MappedFile> joined_;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace kvcc
