// A codebook artifact in its safetensors export (`kvcc export --to safetensors`), as the runtime takes it: checked
// once, read only from then on, shared by any number of sequences and threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/codec/vector_tables.h"
#include "formats/core/model_info.h"
#include "formats/core/scheme.h"
#include "formats/layout/mma.h"
#include "formats/layout/vector.h"

namespace kvcc::host {

/// How one of the two tensors is packed. L layers, H heads, D head dimension, C codes.
struct PackedTensor {
  mma::Tensor tensor = mma::Tensor::key;
  int head_dim = 0;
  bool token_axis = false;           ///< an online range a token, instead of static scales
  bool sparse = false;               ///< outliers are listed
  int tail = 0;                      ///< token axis: outliers of each tail a token
  int codes = 0;                     ///< C
  uint32_t default_capacity = 0;     ///< records that a tile is given at first, 0 without sparse part
  std::vector<float> levels;         ///< [L, H, C]
  std::vector<uint8_t> bits;         ///< [L, H], 2, 3, 4 or 8
  std::vector<float> scale, zero;    ///< [L, H, D]; empty on the token axis
  std::vector<float> lower, upper;   ///< [L, H, D] thresholds; empty on the token axis and without sparse part
  std::vector<int32_t> code_words;   ///< [L] of a page
  std::vector<uint32_t> head_words;  ///< [L, H] first word of a head's codes in a page; empty when all have one width

  std::vector<VectorTables> vectors;  ///< [L] of vector codebooks; then levels, bits and scales are empty
  bool is_vector() const { return !vectors.empty(); }

  const char* name() const { return tensor == mma::Tensor::key ? "key" : "value"; }
  /// Of a page of layer `layer` with `capacity` records a tile.
  mma::PageShape page_shape(int layer, int heads, uint32_t capacity) const;
};

struct RuntimeArtifact {
  std::string name;            ///< path, for messages
  std::string content_sha256;  ///< as the artifact states it
  std::string model;           ///< for people
  Scheme scheme;
  CacheShape shape;
  RopeInfo rope;
  std::vector<int> layer_index;  ///< [layers] the model's numbers of the layers
  int rotary_dim = 0;  ///< channels of keys that the cache turns; 0: none, also when keys are taken after RoPE
  PackedTensor key, value;

  /// Id of the layout of the pages of both tensors.
  const char* layout() const { return key.is_vector() ? vector_page::kLayoutId : mma::kLayoutId; }
};

/// Throws Error(bad_input) for what is no such file, is damaged or of a later version, and Error(usage) for what the
/// layouts mma-1 and vector-1 can't hold, naming it.
std::shared_ptr<const RuntimeArtifact> open_artifact(const std::string& path);
/// The same from bytes, which need not outlive the call. `name` stands for the path.
std::shared_ptr<const RuntimeArtifact> open_artifact(const std::string& name, std::span<const std::byte> bytes);

}  // namespace kvcc::host
