// y = x W^T + b, the part that costs most of the time of a pass.
#pragma once

#include <ATen/core/Tensor.h>

namespace kvcc {

/// weight [out, in] and bias [out] (undefined: none), f32. Never trained: only x gets a gradient.
struct Linear {
  at::Tensor weight, bias;
};

/// x [..., in] to [..., out], f32. Differentiable with respect to x.
at::Tensor project(const at::Tensor& x, const Linear& layer);

/// x [rows, in] times weight^T without a gradient; weight may be a transposed view.
at::Tensor times_transposed(const at::Tensor& x, const at::Tensor& weight);

}  // namespace kvcc
