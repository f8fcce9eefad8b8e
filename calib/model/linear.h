// y = x W^T + b, the part that costs most of the time of a pass.
#pragma once

#include <ATen/core/Tensor.h>

namespace kvcc {

/// Is told of the gradients of products, whose weights themselves get none.
class ProductGradients {
 public:
  virtual ~ProductGradients() = default;
  /// In the backward pass of y = x weight^T: x [..., in], gradient of y [..., out].
  virtual void add(const at::Tensor& weight, const at::Tensor& x, const at::Tensor& gradient) = 0;
};

/// weight [out, in] and bias [out] (undefined: none), f32. Never trained: only x gets a gradient.
struct Linear {
  at::Tensor weight, bias;
  ProductGradients* watcher = nullptr;  ///< not owned; may be null
};

/// x [..., in] to [..., out], f32. Differentiable with respect to x; then the layer's watcher is told in the backward
/// pass.
at::Tensor project(const at::Tensor& x, const Linear& layer);

/// x [rows, in] times weight^T without a gradient; weight may be a transposed view.
at::Tensor times_transposed(const at::Tensor& x, const at::Tensor& weight);

}  // namespace kvcc
