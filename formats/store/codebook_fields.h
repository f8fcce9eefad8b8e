// Every dataset of a .kvcb in one table: writer, reader, validator and the test of formats/spec/codebook.md go by it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/store/codebook.h"

namespace kvcc {

/// When a dataset has to be there.
enum class Need : uint8_t {
  always,    ///< in every file
  channel,   ///< when the tensor is scaled per channel, and only then
  outliers,  ///< when the tensor is scaled per channel and has a sparse part, and only then
  qnorm,     ///< when the scheme has Q-Norm, and only then
  optional,
};
const char* need_name(Need need);

struct CodebookField {
  const char* path;  ///< below /key and /value: "codebook", "stats/min"; from the root: "/layer_index"
  Element type;
  const char* axes;  ///< "layer,head,code"
  const char* unit;  ///< "1" for pure numbers
  Need need;
  const char* since;  ///< format version
  // Exactly one is set, and the other pointers are null.
  std::vector<float> TensorCodebooks::*floats = nullptr;
  std::vector<uint8_t> TensorCodebooks::*bytes = nullptr;
  std::vector<float> TensorStats::*stat_floats = nullptr;
  std::vector<uint32_t> TensorStats::*stat_words = nullptr;
};

/// The datasets below /key and below /value.
std::span<const CodebookField> tensor_fields();

/// Attributes that a reader needs, with their type: "text", "integer", "float", "integers".
struct CodebookAttribute {
  const char* object;  ///< "/", "/model", "/provenance"
  const char* name;
  const char* type;
  bool required;
};
std::span<const CodebookAttribute> codebook_attributes();

}  // namespace kvcc
