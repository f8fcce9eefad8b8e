#include "calib/model/linear.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <string_view>
#include <vector>

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
  if (weight.scalar_type() == at::kBFloat16 && x.scalar_type() != at::kBFloat16) {
    const at::Tensor rounded = product(x.to(at::kBFloat16), weight, std::nullopt).to(at::kFloat);
    return bias ? rounded.add(*bias) : rounded;
  }
  if (!onednn_linear() || !x.device().is_cpu()) return at::linear(x, weight, bias);
  return onednn_linear()->call(x.contiguous(), weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

at::Tensor product(const at::Tensor& x, const Linear& layer) {
  return product(x, layer.matrix(), layer.bias.defined() ? std::optional(layer.bias) : std::nullopt);
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Linear* layer,
                            int64_t out) {
    if (layer->watcher != nullptr) context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    if (out == 0) return product(x, *layer);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = out;
    return at::zeros(shape, x.options());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradient) {
    const auto& layer = *reinterpret_cast<const Linear*>(context->saved_data["layer"].toInt());
    const at::Tensor weight = layer.matrix();
    if (layer.watcher != nullptr) layer.watcher->add(weight, context->get_saved_variables()[0], gradient[0]);
    return {product(gradient[0], weight.t(), std::nullopt), {}, {}};
  }
};

}  // namespace

at::Tensor project(const at::Tensor& x, const Linear& layer, Want want) {
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) return product(x, layer);
  const int64_t out = want == Want::value ? 0 : layer.stored ? layer.stored->out() : layer.weight.size(0);
  return LinearFunction::apply(x, &layer, out);
}

at::Tensor times_transposed(const at::Tensor& x, const at::Tensor& weight) { return product(x, weight, std::nullopt); }

}  // namespace kvcc
