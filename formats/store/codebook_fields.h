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
  always,     ///< in every file
  channel,    ///< when the tensor is scaled per channel, and only then
  outliers,   ///< when the tensor is scaled per channel and has a sparse part, and only then
  qnorm,      ///< when the scheme has Q-Norm, and only then
  levels,     ///< unless the tensor's grid is vq
  vector,     ///< when the tensor's grid is vq, and only then
  order,      ///< when it is and has no rotation, and only then
  predicted,  ///< when it is predicted, and only then
  optional,
};
const char* need_name(Need need);

struct CodebookField {
  const char* path;  ///< below /key and /value: "codebook", "stats/min"; with a '/' before it below /rotation/key, …
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
  std::vector<uint16_t> TensorCodebooks::*words = nullptr;
};
/// Where the field of "/key" or "/value" lies: "/key/bits", "/rotation/key/forward".
std::string field_path(const CodebookField& field, const std::string& tensor);
/// Extents of the field's axes; -1 for the codes of a codebook and the numbers of all vectors.
std::vector<int64_t> field_extents(const CodebookField& field, const CacheShape& shape, const TensorCodebooks& tensor,
                                   int dim);

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
