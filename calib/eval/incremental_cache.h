// A quantised key/value cache that grows token by token, simulated in f32: what the packed cache of kernels/host does,
// by the reference codec and libtorch's attention. It shows what a scheme does to generated text, and the packed cache
// is judged against it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calib/eval/simulated_cache.h"
#include "calib/model/decoder.h"
#include "calib/model/rope.h"
#include "formats/store/codebook.h"

namespace kvcc {

/// Rows are kept as the cache would give them back. The first scheme.sink and the last tokens (coded_end) are exact but
/// for the rounding to fp16; tokens that leave that window are quantised, once, from their fp16 rows. Takes
/// f32 memory; `rope` must outlive it. Throws Error(bad_input) for values that a scheme can't hold, naming the layer.
class IncrementalCache : public AttentionCache {
 public:
  /// Of an artifact, which must have all `layers` layers of the model.
  IncrementalCache(const Codebook& codebook, const Rope& rope, int layers, int threads);
  /// Of a scheme without calibration; fp keeps what was computed, unrounded.
  IncrementalCache(const Scheme& scheme, const CacheShape& shape, const Rope& rope, int threads,
                   const SpectralRotations* rotations = nullptr);
  /// Everything in fp16, without an artifact.
  static IncrementalCache half(const CacheShape& shape, const Rope& rope, int threads);

  at::Tensor attend(int layer, int64_t first, const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value) override;
  void append(int layer, int64_t first, const at::Tensor& key, const at::Tensor& value) override;
  std::pair<at::Tensor, at::Tensor> read(int layer, int64_t count) const override;

 private:
  struct Rows {
    std::shared_ptr<const TensorCodec> codec;  ///< null: rows are kept as computed
    at::Tensor store;                          ///< [H, capacity, D], keys after RoPE
    at::Tensor waiting;                        ///< [n, H, D] fp16-rounded rows of positions `coded` on
    int64_t coded = 0;                         ///< tokens before it are sinks or quantised
  };
  struct Layer {
    Rows key, value;
    KeyPrediction prediction;  ///< empty: values are coded as they are
    int64_t length = 0;
  };
  IncrementalCache(const Rope& rope, int sink, int residual, bool turns_keys, int threads);
  /// Tokens are quantised as they come, so that those of a chunk can be added at once.
  bool at_once(const Rows& rows) const { return residual_ == 0 && (!rows.codec || rows.codec->block_tokens() == 1); }
  /// x [T, H, D] to the cache; `turn`: the layer as whose keys they are turned when they are put into the store, or -1.
  /// Returns the rows that were quantised now, as they are decoded, or an undefined tensor; `predicted`: what is taken
  /// off them before and added after, or undefined.
  at::Tensor add(Rows& rows, int turn, int64_t first, const at::Tensor& x, const std::string& place,
                 const at::Tensor& predicted = {});
  void quantise(const Rows& rows, at::Tensor& x, const std::string& place, int64_t first,
                const at::Tensor& predicted) const;
  void put(Rows& rows, int turn, int64_t first, const at::Tensor& x);
  at::Tensor turned(int layer, int64_t first, const at::Tensor& key);

  const Rope& rope_;
  int64_t sink_, residual_;
  bool turns_keys_;  ///< keys are stored before RoPE, and turned when they are read
  int threads_;
  std::vector<Layer> layers_;
  Rope::Angles angles_;
  int64_t angles_first_ = -1, angles_count_ = 0;
};

}  // namespace kvcc
