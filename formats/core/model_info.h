// What the files say about the model they were made from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvcc {

/// Geometry of a key/value cache. Letters used everywhere: L layers, H key/value heads, D head dimension of keys,
/// Dv of values, T tokens, C codes.
struct CacheShape {
  int layers = 0;                                       ///< L: layers that have a cache
  int query_heads = 0;                                  ///< a multiple of kv_heads (GQA)
  int kv_heads = 0;                                     ///< H
  int head_dim = 0;                                     ///< D
  int value_head_dim = 0;                               ///< Dv
  int group() const { return query_heads / kv_heads; }  ///< GQA group: query heads that share a KV head
  bool operator==(const CacheShape&) const = default;
};

/// Rotary embedding of the model. Angle of pair i at position p: p * theta^(-2i/rotary_dim), before scaling.
struct RopeInfo {
  double theta = 10000.0;
  std::string kind = "half-split";  ///< pairs (i, i + rotary_dim/2); or "interleaved", pairs (2i, 2i+1)
  std::string scaling = "none";     ///< none, linear, dynamic, yarn, llama3, longrope
  std::string scaling_json = "";    ///< the model's own parameters of the scaling, "" when none
  int rotary_dim = 0;
  bool operator==(const RopeInfo&) const = default;
};

struct ModelInfo {
  std::string name;            ///< file or folder name, for people
  std::string architecture;    ///< "llama", …
  std::string weights_sha256;  ///< of all weight bytes: the GGUF file, or the safetensors shards in name order
  CacheShape shape;
  RopeInfo rope;
  bool qk_norm = false;
  std::optional<bool> attention_bias;      ///< of the projections of keys, queries and values; empty: unknown
  std::vector<int> sliding_window_layers;  ///< those with a sliding window, 0 to shape.layers - 1
  std::string dtype;                       ///< of the weights as stored, e.g. "Q4_1", "bfloat16"
};

}  // namespace kvcc
