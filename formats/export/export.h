// A codebook artifact in the formats of others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/store/tree.h"

namespace kvcc {

struct ExportedTensor {
  std::string name;   ///< dataset's path without the leading slash, "key/codebook"
  std::string dtype;  ///< safetensors' name, "F32"
  std::vector<int64_t> shape;
};

/// The safetensors file of an artifact's tree: every dataset as a tensor; every attribute of the root, the model and
/// the provenance as text in __metadata__ ("scheme", "model.name", "provenance.seed"). Tensors lie in order of
/// descending element size, then name, so that each is aligned. Equal trees give equal bytes.
std::string tree_to_safetensors(const Tree& tree);

/// The artifact as one JSON document: attributes by object, and each dataset with type, shape, axes, unit and its
/// values in one flat list (padding and other NaN as null).
std::string tree_to_json(const Tree& tree);

/// Names and shapes that a safetensors file states, in order of their bytes. Throws Error(bad_input) naming `place` and
/// tensor when the header is truncated, no JSON, or its offsets don't fit shapes and file.
std::vector<ExportedTensor> check_safetensors(const std::string& path);

}  // namespace kvcc
