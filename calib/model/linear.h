// y = x W^T + b, the part that costs most of the time of a pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "calib/model/stored_weight.h"

namespace kvcc {

/// Is told of the gradients of products, whose weights themselves get none.
class ProductGradients {
 public:
  virtual ~ProductGradients() = default;
  /// In the backward pass of y = x weight^T: x [..., in], gradient of y [..., out].
  virtual void add(const at::Tensor& weight, const at::Tensor& x, const at::Tensor& gradient) = 0;
};

/// weight [out, in] and bias [out] (undefined: none). Never trained: only x gets a gradient. The weight's type is that
/// of the arithmetic: with a bf16 one x and the products are rounded to bf16, sums are f32.
struct Linear {
  at::Tensor weight, bias;
  std::shared_ptr<const StoredWeight> stored;  ///< in place of `weight`, converted for each product
  ProductGradients* watcher = nullptr;         ///< not owned; may be null
  bool defined() const { return weight.defined() || stored; }
  /// The weight for a product.
  at::Tensor matrix() const { return stored ? stored->read() : weight; }
};

/// What is wanted of a product in a forward pass that a backward pass follows.
enum class Want { value, gradient_alone };

/// x [..., in] to [..., out], f32. Differentiable with respect to x; then the layer's watcher is told in the backward
/// pass, until which `layer` must live. Want::gradient_alone gives zeros that have the gradient of the product.
at::Tensor project(const at::Tensor& x, const Linear& layer, Want want = Want::value);

/// x [rows, in] f32 times weight^T (f32, or bf16 as in Linear) without a gradient, f32; weight may be a transposed
/// view.
at::Tensor times_transposed(const at::Tensor& x, const at::Tensor& weight);

}  // namespace kvcc
