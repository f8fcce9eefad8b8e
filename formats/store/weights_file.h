// Quantised weights (.kvcw), version 1: formats/spec/weights.md is the authoritative page.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/core/file.h"
#include "formats/core/model_info.h"
#include "formats/core/quantised_matrix.h"
#include "formats/store/tree.h"

namespace kvcc {

/// The text whose gradients weighed the fit.
struct WeightsProvenance {
  std::string tool_version;
  std::string text_name, text_sha256, text_flavour, tokenizer_sha256;
  std::string bos;         ///< "on" or "off"
  std::string ids_sha256;  ///< of all samples' ids, int32 little-endian, one after another
  int64_t samples = 0, seqlen = 0, seed = 0;
};

/// As the file holds it, and as inspect prints it.
nlohmann::ordered_json to_json(const WeightsProvenance& provenance);

struct QuantisedWeights {
  std::string format_version = "1.0";  ///< as read
  int bits = 4;
  double sparse = 0, sensitive = 0;  ///< shares, as asked for
  ModelInfo model;                   ///< whose weights they stand for
  WeightsProvenance provenance;
  std::vector<QuantisedMatrix> matrices;  ///< layers ascending, names different
  std::string content_sha256;             ///< set by read and write

  /// "w4-s0.45", "w3" without exact weights; per cent.
  std::string name() const;
};

/// Writes to the name that `file` took before the work. Equal content gives equal bytes. Sets content_sha256. Throws
/// Error(failed) for content that read_weights() would refuse, before anything is written.
void write_weights(AtomicFile& file, const std::string& path, QuantisedWeights& weights);

/// Reads and checks structure, version, shapes, meaning and checksum. Throws Error(bad_input) with path and object.
QuantisedWeights read_weights(const std::string& path);

/// All that is wrong with the file, one line each; empty when it is sound. Throws only if it can't be opened.
std::vector<std::string> validate_weights(const std::string& path);

/// Whether an HDF5 file says that it is of this kind.
bool is_weights_tree(const Tree& tree);

/// A dataset of a layer's group, for the page's table. Letters there: M matrices of the layer, R their rows together,
/// C codes, W words of all codes, S exact weights.
struct WeightsField {
  const char* path;
  Element type;
  const char *axes, *unit;
  bool required;  ///< else it is there when weights are exact
};
const std::vector<WeightsField>& weights_fields();
/// Attributes of the root group.
const std::vector<std::pair<const char*, Element>>& weights_attributes();

}  // namespace kvcc
