#include "calib/model/stored_weight.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "formats/core/error.h"

namespace kvcc {
namespace {

std::optional<at::ScalarType> scalar_type(WeightType type) {
  switch (type) {
    case WeightType::f32:
      return at::kFloat;
    case WeightType::f16:
      return at::kHalf;
    case WeightType::bf16:
      return at::kBFloat16;
    default:
      return std::nullopt;
  }
}

/// The files' own bytes as a tensor; undefined where they are not numbers in order.
at::Tensor mapped(const TensorSource& source, const std::string& name) {
  const TensorInfo* info = source.find(name);
  if (info == nullptr) throw bad_input("weights", "no tensor " + name);
  const std::optional<at::ScalarType> type = scalar_type(info->type);
  if (!type) return {};
  const std::span<const std::byte> raw = source.raw(name);
  if (raw.empty()) return {};
  // Read only: nothing here writes to a weight, so dropping const is safe.
  return at::from_blob(const_cast<std::byte*>(raw.data()), info->shape, *type);
}

}  // namespace

at::Tensor read_weight(const TensorSource& source, const std::string& name, at::ScalarType type) {
  if (const at::Tensor weight = mapped(source, name); weight.defined()) return weight.to(type);  // itself where it is
  at::Tensor weight = at::empty(source.find(name)->shape, at::kFloat);
  source.read(name, {weight.mutable_data_ptr<float>(), static_cast<size_t>(weight.numel())});
  return weight.to(type);
}

StoredWeight::StoredWeight(const TensorSource& source, std::string name, at::ScalarType type, at::Device device)
    : source_(source), name_(std::move(name)), type_(type), device_(device), out_(source.find(name_)->shape.at(0)) {}

at::Tensor StoredWeight::rows(const at::Tensor& ids) const {
  if (const at::Tensor weight = mapped(source_, name_); weight.defined()) {
    return at::embedding(weight, ids).to(device_, at::kFloat);
  }
  return at::embedding(read_weight(source_, name_, at::kFloat), ids).to(device_);
}

}  // namespace kvcc
