// A key/value cache that is quantised while the model runs, driven by an artifact or by a scheme alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "calib/eval/spectral.h"
#include "calib/model/decoder.h"
#include "formats/codec/key_prediction.h"
#include "formats/codec/tensor_codec.h"
#include "formats/core/scheme.h"
#include "formats/store/codebook.h"

namespace kvcc {

enum class CacheTensor { key, value };

/// The codec of row `row` (of codebook.layer_index) of an artifact, exactly as the artifact says.
std::shared_ptr<const TensorCodec> codec_of(const Codebook& codebook, size_t row, CacheTensor tensor);
/// The codec of a scheme that needs no calibration in layer `layer`; null for fp, which keeps what was computed,
/// unrounded. `rotations` may be null where the scheme needs none. Throws Error(usage) for a scheme that needs more.
std::shared_ptr<const TensorCodec> codec_of(const Scheme& scheme, const CacheShape& shape, CacheTensor tensor,
                                            int layer, const SpectralRotations* rotations = nullptr);
/// Of the layers 0 to layers - 1; those that are alike share one.
std::vector<std::shared_ptr<const TensorCodec>> codecs_of(const Scheme& scheme, const CacheShape& shape,
                                                          CacheTensor tensor, int layers,
                                                          const SpectralRotations* rotations = nullptr);

/// Attention sees only what the cache would give back: full mode, the whole window quantised in one forward pass.
/// The first scheme.sink and the last tokens (coded_end) are exact but for the rounding to fp16.
class SimulatedCache : public KvTap {
 public:
  /// Of an artifact; its layer_index says which layers of the model it holds. `layers`: of the model.
  SimulatedCache(const Codebook& codebook, int layers, int threads);
  /// Of a scheme without calibration; `layers` of the model, which may be more than have a cache.
  SimulatedCache(const Scheme& scheme, const CacheShape& shape, int layers, int threads,
                 const SpectralRotations* rotations = nullptr);

  void before_rope(int layer, at::Tensor& key, at::Tensor& value) override;
  void after_rope(int layer, at::Tensor& key) override;

  /// Of a cache of `tokens` tokens, the position before which a layer's tokens but the sinks are quantised; 0 for fp.
  int64_t quantised_end(int layer, CacheTensor tensor, int64_t tokens) const;
  const Scheme& scheme() const { return scheme_; }
  int64_t key_outliers() const { return key_outliers_; }  ///< of the quantised key elements so far
  int64_t key_elements() const { return key_elements_; }  ///< quantised so far

 private:
  /// `predicts`: keys as they were stored, of which predictions_ tells what is taken off x; or null.
  void store(int layer, CacheTensor tensor, at::Tensor& x, const at::Tensor* predicts = nullptr);

  Scheme scheme_;
  int threads_;
  std::vector<std::shared_ptr<const TensorCodec>> key_, value_;  ///< by the model's layer; null: as computed
  std::vector<KeyPrediction> predictions_;  ///< by the model's layer; empty ones for values coded as they are
  int64_t key_outliers_ = 0, key_elements_ = 0;
};

}  // namespace kvcc
