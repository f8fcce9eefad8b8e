#include "calib/model/linear.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <string_view>

namespace kvcc {
namespace {

using PointwiseLinear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                   std::string_view, c10::List<std::optional<at::Scalar>>,
                                   std::optional<std::string_view>);

/// oneDNN's product, absent where libtorch was built without it. Chosen over at::linear (MKL) because it is as fast on
/// Intel's processors and more than twice as fast on others', and because its result was the same for every number of
/// threads that was tried (MKL's was not for few rows).
const std::optional<c10::TypedOperatorHandle<PointwiseLinear>>& onednn_linear() {
  static const auto operation = []() -> std::optional<c10::TypedOperatorHandle<PointwiseLinear>> {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!found || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
    return found->typed<PointwiseLinear>();
  }();
  return operation;
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (!onednn_linear() || !x.device().is_cpu()) return at::linear(x, weight, bias);
  return onednn_linear()->call(x.contiguous(), weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, ProductGradients* watcher) {
    context->save_for_backward(watcher != nullptr ? torch::autograd::variable_list{weight, x}
                                                  : torch::autograd::variable_list{weight});
    context->saved_data["watcher"] = reinterpret_cast<int64_t>(watcher);
    return product(x, weight, bias);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradient) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    auto* const watcher = reinterpret_cast<ProductGradients*>(context->saved_data["watcher"].toInt());
    if (watcher != nullptr) watcher->add(saved[0], saved[1], gradient[0]);
    return {product(gradient[0], saved[0].t(), std::nullopt), {}, {}, {}};
  }
};

}  // namespace

at::Tensor project(const at::Tensor& x, const Linear& layer) {
  const std::optional<at::Tensor> bias = layer.bias.defined() ? std::optional(layer.bias) : std::nullopt;
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) return product(x, layer.weight, bias);
  return LinearFunction::apply(x, layer.weight, bias, layer.watcher);
}

at::Tensor times_transposed(const at::Tensor& x, const at::Tensor& weight) { return product(x, weight, std::nullopt); }

}  // namespace kvcc
