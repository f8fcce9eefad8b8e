// The packed cache of one sequence: all layers of a model, over the CPU units. What kvcc_runtime.h offers in C; all
// functions throw Error in place of its codes. Used by one thread at a time. Host only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/host/kvcc_runtime.h"
#include "kernels/host/rope_table.h"
#include "kernels/host/runtime_artifact.h"
#include "kernels/host/runtime_pages.h"
#include "kernels/host/runtime_units.h"
#include "kernels/host/thread_pool.h"

namespace kvcc::host {

/// KvccOptions, checked and with its defaults filled in.
struct RuntimeOptions {
  int threads = 1;
  int64_t max_tokens = 0;  ///< 0: default
  int arithmetic = 0;
  std::string units;  ///< empty: built-in
};

/// Positions that a sequence can have, as many as there are rotary tables for.
constexpr int64_t kMostTokens = int64_t{1} << 24;

class RuntimeSequence {
 public:
  RuntimeSequence(std::shared_ptr<const RuntimeArtifact> artifact, const RuntimeOptions& options);

  /// Pointers are not null unless count is 0.
  void append(int layer, const float* key, const float* value, int64_t count);
  void attend(int layer, const float* query, float multiplier, int64_t window, float* out);
  void append_attend(int layer, const float* key, const float* value, const float* query, int64_t count,
                     float multiplier, int64_t window, float* out);
  /// As `layer` has it; -1: as all layers have it. Throws Error(usage) where they differ.
  void rotate(int layer, float* query, int64_t first, int64_t count) const;
  void read(int layer, int64_t first, int64_t count, float* key, float* value);

  const RuntimeArtifact& artifact() const { return *artifact_; }
  bool has_layer(int layer) const { return layer >= 0 && layer < artifact_->shape.layers; }
  int64_t length(int layer) const { return layers_[layer].tokens; }
  KvccUsage usage() const;
  std::vector<int32_t>& tokens() { return tokens_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }

  /// Of the cache file.
  const PagePool& pool(int layer, mma::Tensor tensor) const;
  /// Makes a layer that holds nothing one of `tokens` tokens, with lists of at least the given records a tile. Pages
  /// and exact rows are for the caller to fill.
  void restore_layer(int layer, int64_t tokens, uint32_t key_capacity, uint32_t value_capacity);
  /// Pages, and rows of the exact region, that hold `tokens` tokens.
  int64_t pages_of(int64_t tokens) const;
  int64_t exact_rows_of(int64_t tokens) const;

 private:
  struct Layer {
    PagePool key, value;
    int64_t tokens = 0;
    int rotation = 0;  ///< of rotations_
  };
  /// What layers that rotate alike share.
  struct Rotation {
    RopeInfo rope;
    bool turns = true;
    RopeFrequencies frequencies = {};
    BlockRopeTables tables = {};
  };
  class Undo;
  /// Rows of both tensors, [count, H, D] and [count, H, Dv].
  struct Rows {
    const float *key, *value;
  };

  void check_layer(int layer) const;
  void check_rows(int layer, const PackedTensor& tensor, const float* x, int64_t count) const;
  void check_append(int layer, const float* key, const float* value, int64_t count) const;
  void check_query(const float* query, int64_t count) const;
  static int64_t check_window(float multiplier, int64_t window);

  void prepare(int layer, int64_t count);
  void extend(int layer, Rows x, int64_t count);
  void extend_window(int layer, Rows x, int64_t count);
  void pack(int layer, Rows x, int64_t first, int64_t count);
  void pack_once(int layer, Rows x, int32_t first, int32_t count, const int32_t repeat_above[2]);

  /// One query position, over `tokens` of the layer's tokens.
  struct Attention {
    const float* query;
    float* out;
    float multiplier;
    int64_t window;
    int32_t tokens;
  };
  int32_t splits_of(const Attention& a) const;
  KvccAttentionParams attention_params(int layer, const Attention& a, float* partial);
  size_t partial_floats(int32_t splits) const;
  void attend_shared(int layer, const Attention& a);
  void attend_many(int layer, Attention first, int64_t count);

  void find_rotations();
  void make_rope(int64_t positions);
  const BlockRopeTables* tables_of(int layer) const {
    return rotations_.empty() ? nullptr : &rotations_[layers_[layer].rotation].tables;
  }
  int64_t columns(const PackedTensor& tensor) const { return int64_t{artifact_->shape.kv_heads} * tensor.head_dim; }

  std::shared_ptr<const RuntimeArtifact> artifact_;
  RuntimeUnits units_;
  ThreadPool threads_;
  std::vector<Layer> layers_;
  std::vector<int32_t> tokens_;

  int64_t max_tokens_, positions_ = 0;  ///< positions_: of the rotary tables
  std::vector<Rotation> rotations_;     ///< none: keys are not turned

  std::vector<uint32_t> selected_[2];
  std::vector<float> inliers_[2], rows_[2];
  AlignedBytes partial_;
};

}  // namespace kvcc::host
