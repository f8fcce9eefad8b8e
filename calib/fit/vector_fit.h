// Fit of vector codebooks (CODEBOOKS.md): transforms and rate-distortion tables of every layer, one allocation of bits
// over the model for each budget, then the codebooks. Functions of statistics, no files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "calib/fit/allocate.h"
#include "calib/fit/bytes.h"
#include "calib/fit/excess.h"
#include "calib/fit/fisher_transform.h"
#include "calib/fit/fit.h"
#include "calib/fit/vector_kmeans.h"
#include "formats/codec/key_prediction.h"
#include "formats/codec/vector_codec.h"
#include "formats/core/model_info.h"
#include "formats/core/scheme.h"

namespace kvcc {

struct VectorFitSettings {
  int64_t held_out = 0;  ///< last samples that have no part in the fit; errors on them correct the tables
  double shrink = 0.1;   ///< of the metric, towards its diagonal
  /// Powers of tokens' weights, which few tokens have most of: in the transform's mean and covariance, and in k-means.
  /// Errors are judged with the weights as they are. RESULTS.md: held-out text prefers these on SmolLM2.
  double spread_power = 0.75, weight_power = 0.5;
  int table_rounds = 2;   ///< of Lloyd for each width of the tables
  int final_rounds = 12;  ///< … for the codebooks that are kept
  int threads = 1;
};

/// One tensor of one layer, fitted for one scheme.
struct TensorVectors {
  VectorQuantiser quantiser;
  std::vector<uint16_t> order;  ///< [U, N] without a rotation
  std::vector<float>
      from_key;  ///< [U, N, K] of values that are predicted (KeyPrediction); the quantiser is of the rest
  /// Half the mean over tokens of (g . e)^2, nats a token; NaN where nothing is measured.
  double predicted_fitted = 0, predicted_held_out = 0;
  std::vector<float> energy;                 ///< [U, N] TensorStats::energy, of the tokens that are fitted
  std::vector<float> weighted_sse, sqnr_db;  ///< [H], over all tokens but the sinks, as in TensorFit
};
struct LayerVectors {
  TensorVectors key, value;
};

/// Schemes that are fitted together differ in budget, sinks and tail alone. Two passes over the layers, in any order:
/// tabulate() of each, allocate() once, fit() of each. Results don't depend on the threads. Memory: the codebooks of
/// every width of every group, about 8 KiB a coordinate.
class VectorFit {
 public:
  VectorFit(const CacheShape& shape, std::span<const Scheme> schemes, const VectorFitSettings& settings);
  /// Whether two schemes can be fitted together.
  static bool together(const Scheme& a, const Scheme& b);

  /// `row` of the layers that have a cache. Throws Error(bad_input) for values that are not finite.
  void tabulate(int row, const LayerActivations& activations);
  /// What allocate() looks at of a layer that was tabulated, and the same of one that another process has tabulated:
  /// then every process allocates alike, and fits the layers that it tabulated itself.
  void write_table(int row, ByteWriter& out) const;
  void read_table(int row, ByteReader& in);
  void allocate();
  /// One result a scheme.
  std::vector<LayerVectors> fit(int row, const LayerActivations& activations) const;

 private:
  struct Group {
    int first = 0, width = 0;              ///< coordinates of the unit
    std::vector<VectorCodebook> books;     ///< of 0 … bits
    std::vector<double> fitted, held_out;  ///< errors a token, in nats
  };
  struct Block {
    int unit = 0;
    std::vector<std::vector<Group>> ways;
  };
  struct Tensor {
    std::vector<UnitTransform> units;
    std::vector<float> from_key;  ///< of values that are predicted
    std::vector<Block> blocks;
    double numbers = 0;  ///< of the transforms, that are kept
  };
  struct Data;

  const TensorScheme& scheme_of(int tensor) const { return tensor == 0 ? schemes_[0].key : schemes_[0].value; }
  int dim_of(int tensor) const { return tensor == 0 ? shape_.head_dim : shape_.value_head_dim; }
  int units_of(int tensor) const { return scheme_of(tensor).rotation == Rotation::fklt_layer ? 1 : shape_.kv_heads; }
  int unit_size(int tensor) const { return shape_.kv_heads * dim_of(tensor) / units_of(tensor); }
  Data data_of(const LayerActivations& activations, int tensor) const;
  void tabulate(int row, int layer, std::span<Data> data);
  VectorQuantiser provisional_keys(int row) const;
  std::vector<float> decode(VectorQuantiser quantiser, std::span<const float> x) const;
  std::vector<float> regress(const Data& values, const std::vector<float>& keys) const;
  void take_off(int row, const std::vector<float>& keys, Data& values) const;
  void transform(Data& data) const;
  WeightedPoints points(const Data& data, const Block& block, const Group& group, bool fitted) const;
  std::vector<float> tempered(const WeightedPoints& points) const;
  Excess excess() const;
  int place_of(size_t tensor, const Group& group) const;
  std::vector<Block> blocks_of(int tensor) const;
  std::vector<float> energies(const Data& data) const;
  TensorVectors quantiser_of(int row, int tensor, std::span<const GroupBits> chosen,
                             const std::vector<std::vector<VectorCodebook>>& books) const;
  /// `coded`: what the quantiser is of where that is not the tensor itself; else empty.
  void measure(const LayerActivations& activations, int tensor, const Scheme& scheme, std::span<const float> coded,
               TensorVectors& out) const;

  CacheShape shape_;
  std::vector<Scheme> schemes_;
  VectorFitSettings settings_;
  std::vector<Tensor> tensors_;                 ///< [L, 2] key and value
  std::vector<std::vector<GroupBits>> chosen_;  ///< [scheme] of all blocks, layer by layer, key before value
  std::vector<size_t> first_block_;             ///< [L, 2] among them
};

}  // namespace kvcc
