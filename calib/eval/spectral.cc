#include "calib/eval/spectral.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "calib/model/decoder.h"
#include "formats/codec/tensor_codec.h"
#include "formats/core/error.h"
#include "formats/core/hash.h"

namespace kvcc {
namespace {

constexpr int kClips = 11;  ///< 1, 0.95, … 0.5
double clip_of(int i) { return (20 - i) / 20.0; }

/// What is summed up over the windows.
struct LayerSums {
  at::Tensor query, output;              ///< f64 [H, D, D]
  std::vector<at::Tensor> keys, values;  ///< f32 [n, H, D] of some tokens of each window
};

/// x [1, T, Hq, D]: sum over tokens and the query heads of a key head of x x^T, f64 [H, D, D].
at::Tensor second_moment(const at::Tensor& x, int64_t kv_heads) {
  const at::Tensor rows = x[0].transpose(0, 1).reshape({kv_heads, -1, x.size(3)}).to(at::kDouble);
  return at::matmul(rows.transpose(1, 2), rows);
}

class Summing : public KvTap {
 public:
  Summing(std::vector<LayerSums>& sums, int64_t rows) : sums_(sums), rows_(rows) {}
  void before_rope(int, at::Tensor&, at::Tensor&) override {}
  void after_rope(int, at::Tensor&) override {}
  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionRule& rule) override {
    if (rule.expand) {
      throw Error(ErrorKind::usage, "layer " + std::to_string(layer), "rotations of latents", "keys of heads");
    }
    const at::Tensor output =
        attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), {}, rule).transpose(1, 2);
    LayerSums& sums = sums_.at(layer);
    const auto add = [&](at::Tensor& sum, const at::Tensor& x) {
      const at::Tensor moment = second_moment(x, key.size(2));
      sum = sum.defined() ? sum + moment : moment;
    };
    add(sums.query, query);
    add(sums.output, output);
    const int64_t tokens = key.size(1), count = std::min(rows_, tokens);
    std::vector<int64_t> chosen;
    for (int64_t i = 0; i < count; ++i) chosen.push_back(i * tokens / count);
    sums.keys.push_back(key[0].index_select(0, at::tensor(chosen)));
    sums.values.push_back(value[0].index_select(0, at::tensor(chosen)));
    return output;
  }

 private:
  std::vector<LayerSums>& sums_;
  int64_t rows_;
};

/// `weight` f64 [H, D, D], or undefined for the identity.
double weighted_error(const at::Tensor& error, const at::Tensor& weight) {
  const at::Tensor e = error.transpose(0, 1).to(at::kDouble);  // [H, n, D]
  const at::Tensor weighed = weight.defined() ? at::matmul(e, weight) : e;
  return (weighed * e).sum().item<double>();
}

SpectralTensor fit_tensor(const TensorScheme& scheme, const at::Tensor& covariance, const std::vector<at::Tensor>& rows,
                          const at::Tensor& weight, int threads, const std::string& place) {
  SpectralTensor result;
  for (int64_t h = 0; h < covariance.size(0); ++h) result.rotation.push_back(spectral_rotation(covariance[h]));
  at::Tensor x = at::cat(rows).contiguous();
  const std::span<const float> in(x.const_data_ptr<float>(), static_cast<size_t>(x.numel()));
  at::Tensor out = at::empty_like(x);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kClips; ++i) {
    TensorScheme clipped = scheme;
    clipped.clip = clip_of(i);
    const auto codec = make_codec(clipped, static_cast<int>(x.size(1)), static_cast<int>(x.size(2)), result.rotation);
    codec->round_trip(in, {out.mutable_data_ptr<float>(), in.size()}, threads, place);
    const double error = weighted_error(out - x, weight);
    if (error >= least) continue;
    least = error;
    result.clip = clipped.clip;
  }
  return result;
}

}  // namespace

std::vector<float> spectral_rotation(const at::Tensor& covariance) {
  const int64_t dim = covariance.size(0);
  int bits = 0;
  while ((int64_t{1} << bits) < dim) ++bits;
  if (int64_t{1} << bits != dim) {
    throw Error(ErrorKind::usage, "rotation", "heads of " + std::to_string(dim) + " channels", "a power of two");
  }
  at::Tensor vectors = at::flip(std::get<1>(at::linalg_eigh(covariance)), {1});  // eigenvalues rise
  const at::Tensor greatest = vectors.abs().argmax(0, /*keepdim=*/true);
  vectors = vectors * at::sign(vectors.gather(0, greatest));
  at::Tensor hadamard = at::ones({1, 1}, at::kDouble);
  for (int b = 0; b < bits; ++b) {
    hadamard = at::cat({at::cat({hadamard, hadamard}, 1), at::cat({hadamard, -hadamard}, 1)}, 0);
  }
  std::vector<int64_t> reversed(dim);
  for (int64_t c = 0; c < dim; ++c) {
    for (int b = 0; b < bits; ++b) reversed[c] |= (c >> b & 1) << (bits - 1 - b);
  }
  const at::Tensor turned =
      at::matmul(vectors, hadamard / std::sqrt(static_cast<double>(dim))).index_select(1, at::tensor(reversed));
  const at::Tensor matrix = turned.t().contiguous().to(at::kFloat);
  const float* numbers = matrix.const_data_ptr<float>();
  return {numbers, numbers + matrix.numel()};
}

SpectralRotations fit_rotations(const Decoder& decoder, const Scheme& scheme,
                                const std::vector<std::vector<int32_t>>& windows, int threads,
                                const std::function<void(uint64_t done)>& progress) {
  std::vector<LayerSums> sums(decoder.layers());
  const auto count = static_cast<int64_t>(windows.size());
  Summing tap(sums, (kClipRows + count - 1) / count);
  for (size_t w = 0; w < windows.size(); ++w) {
    decoder.forward(ids_tensor(windows[w]), &tap);
    if (progress) progress(w + 1);
  }
  SpectralRotations result;
  Sha256 hash;
  for (size_t l = 0; l < sums.size(); ++l) {
    const std::string place = "layer " + std::to_string(l);
    if (!sums[l].query.defined()) {  // a layer without attention
      result.key.emplace_back();
      result.value.emplace_back();
      continue;
    }
    result.key.push_back(fit_tensor(scheme.key, sums[l].query, sums[l].keys, sums[l].query, threads, place + " key"));
    result.value.push_back(fit_tensor(scheme.value, sums[l].output, sums[l].values, {}, threads, place + " value"));
    for (const SpectralTensor* tensor : {&result.key.back(), &result.value.back()}) {
      for (const std::vector<float>& matrix : tensor->rotation) {
        hash.update(matrix.data(), matrix.size() * sizeof(float));
      }
      hash.update(&tensor->clip, sizeof tensor->clip);
    }
  }
  result.sha256 = hash.hex();
  return result;
}

}  // namespace kvcc
