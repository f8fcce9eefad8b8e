// The packed cache of kernels/host, by its C API, as a cache that the decoder attends to. Programs and tests' drivers.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "calib/model/decoder.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/export/export.h"
#include "formats/store/tree.h"
#include "formats/weights/safetensors_file.h"
#include "kernels/host/kvcc_runtime.h"

namespace kvcc::cli {

/// The C API's errors as the project's; its codes are those of ErrorKind.
inline void check_runtime(int code) {
  if (code != KVCC_OK) throw Error(static_cast<ErrorKind>(code), kvcc_error_message(), "");
}

/// The model that an exported artifact was made for, as its metadata says.
inline ModelInfo exported_model(const std::string& path) {
  const SafetensorsFile file(path);
  const auto text = [&](const std::string& name) {
    const auto it = file.metadata().find("model." + name);
    if (it == file.metadata().end()) {
      throw bad_input(path, "no model." + name, "an artifact that kvcc export --to safetensors wrote");
    }
    return it->second;
  };
  const auto integer = [&](const std::string& name) { return std::atoi(text(name).c_str()); };
  ModelInfo model;
  model.name = text("name");
  model.architecture = text("architecture");
  model.weights_sha256 = text("weights_sha256");
  model.shape = {integer("layers"), integer("query_heads"), integer("kv_heads"), integer("head_dim"),
                 integer("value_head_dim")};
  model.rope = {std::strtod(text("rope_theta").c_str(), nullptr), text("rope_kind"), text("rope_scaling"),
                text("rope_scaling_json"), integer("rope_rotary_dim")};
  model.qk_norm = integer("qk_norm") != 0;
  return model;
}

/// Whether a file is a .kvcb by its first bytes, and not an export.
inline bool is_hdf5(const std::string& path) {
  const MappedFile file(path, true);
  const auto bytes = file.bytes();
  return bytes.size() >= 4 && std::memcmp(bytes.data(), "\x89HDF", 4) == 0;
}

struct FreeArtifact {
  void operator()(KvccArtifact* artifact) const { kvcc_artifact_free(artifact); }
};
using PackedArtifact = std::unique_ptr<KvccArtifact, FreeArtifact>;

/// Of a .kvcb, which is exported in memory, or of its safetensors export.
inline PackedArtifact open_packed_artifact(const std::string& path, bool exported) {
  KvccArtifact* artifact = nullptr;
  if (exported) {
    check_runtime(kvcc_artifact_open(path.c_str(), &artifact));
  } else {
    const std::string bytes = tree_to_safetensors(hdf5_to_tree(MappedFile(path).bytes(), path));
    check_runtime(kvcc_artifact_open_memory(bytes.data(), bytes.size(), path.c_str(), &artifact));
  }
  return PackedArtifact(artifact);
}

class PackedCache : public AttentionCache {
 public:
  /// Empty; or, with `file`, as it was saved. `rope` must outlive it. Throws Error.
  PackedCache(const KvccArtifact* artifact, const Rope& rope, const KvccOptions& options, const std::string& file = "")
      : rope_(rope) {
    check_runtime(kvcc_artifact_shape(artifact, &shape_));
    KvccSequence* sequence = nullptr;
    check_runtime(file.empty() ? kvcc_create(artifact, &options, &sequence)
                               : kvcc_load(artifact, file.c_str(), &options, &sequence));
    sequence_.reset(sequence);
  }

  at::Tensor attend(int layer, int64_t first, const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value) override {
    const at::Tensor stored = as_stored(first, key);
    at::Tensor out = at::empty({query.size(0), shape_.query_heads, shape_.value_head_dim}, at::kFloat);
    check_runtime(kvcc_append_attend(sequence_.get(), layer, data(stored), data(value), data(query), query.size(0),
                                     /*multiplier=*/0, /*window=*/0, out.mutable_data_ptr<float>()));
    return out;
  }
  void append(int layer, int64_t first, const at::Tensor& key, const at::Tensor& value) override {
    const at::Tensor stored = as_stored(first, key);
    check_runtime(kvcc_append(sequence_.get(), layer, data(stored), data(value), key.size(0)));
  }
  std::pair<at::Tensor, at::Tensor> read(int layer, int64_t count) const override {
    at::Tensor key = at::empty({count, shape_.kv_heads, shape_.head_dim}, at::kFloat);
    at::Tensor value = at::empty({count, shape_.kv_heads, shape_.value_head_dim}, at::kFloat);
    check_runtime(
        kvcc_read(sequence_.get(), layer, 0, count, key.mutable_data_ptr<float>(), value.mutable_data_ptr<float>()));
    return {shape_.rotary_dim > 0 ? turned(0, key) : key, value};
  }

  int64_t length() const { return kvcc_length(sequence_.get(), 0); }
  KvccUsage usage() const {
    KvccUsage usage{};
    check_runtime(kvcc_usage(sequence_.get(), &usage));
    return usage;
  }
  /// Ids that came with a loaded file.
  std::vector<int32_t> tokens() const {
    const int32_t* ids = nullptr;
    int64_t count = 0;
    check_runtime(kvcc_tokens(sequence_.get(), &ids, &count));
    return {ids, ids + count};
  }
  void save(const std::string& path, std::span<const int32_t> ids) const {
    check_runtime(kvcc_save(sequence_.get(), path.c_str(), ids.data(), static_cast<int64_t>(ids.size())));
  }

 private:
  struct FreeSequence {
    void operator()(KvccSequence* sequence) const { kvcc_free(sequence); }
  };
  static const float* data(const at::Tensor& x) { return x.const_data_ptr<float>(); }
  at::Tensor turned(int64_t first, const at::Tensor& key) const {
    return rope_.rotate(key.unsqueeze(0), rope_.angles(first, key.size(0)))[0];
  }
  /// Keys that the cache does not turn are of a scheme that takes them after RoPE.
  at::Tensor as_stored(int64_t first, const at::Tensor& key) const {
    return shape_.rotary_dim > 0 ? key : turned(first, key).contiguous();
  }

  const Rope& rope_;
  KvccShape shape_{};
  std::unique_ptr<KvccSequence, FreeSequence> sequence_;
};

}  // namespace kvcc::cli
