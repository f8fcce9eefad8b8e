#include "calib/model/rope.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "formats/core/error.h"
#include "formats/core/json.h"

namespace kvcc {
namespace {

using Json = nlohmann::json;

/// A number of the model's own scaling parameters.
double parameter(const Json& scaling, const RopeInfo& info, const char* name) {
  const auto it = scaling.find(name);
  if (it == scaling.end() || !it->is_number()) {
    throw bad_input("rope scaling " + info.scaling, std::string("no number ") + name + " in " + info.scaling_json);
  }
  return it->get<double>();
}

/// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between interpolated.
at::Tensor scale_llama3(const at::Tensor& frequencies, const Json& scaling, const RopeInfo& info) {
  const double factor = parameter(scaling, info, "factor");
  const double low = parameter(scaling, info, "low_freq_factor"), high = parameter(scaling, info, "high_freq_factor");
  const double context = parameter(scaling, info, "original_max_position_embeddings");
  if (!(factor > 0) || !(low > 0) || !(high > low) || !(context > 0)) {
    throw bad_input("rope scaling llama3", info.scaling_json,
                    "positive numbers, high_freq_factor above low_freq_factor");
  }
  const double longest = context / low, shortest = context / high;
  // The order of operations is that of transformers, so that the floats are the same.
  const at::Tensor wavelength = 2 * std::numbers::pi / frequencies;
  const at::Tensor scaled = at::where(wavelength > longest, frequencies / factor, frequencies);
  const at::Tensor smooth = (context / wavelength - low) / (high - low);
  const at::Tensor between = (1 - smooth) * scaled / factor + smooth * scaled;
  const at::Tensor medium = (wavelength < shortest).logical_not() * (wavelength > longest).logical_not();
  return at::where(medium, between, scaled);
}

/// GGUF stores the scaling of Llama 3.1 as one divisor a pair (rope_freqs.weight).
at::Tensor scale_by_factors(const at::Tensor& frequencies, const Json& factors, const RopeInfo& info) {
  const std::string place = "rope scaling " + info.scaling;
  const auto values = json_value<std::vector<float>>(factors, "freq_factors", place);
  for (const float value : values) {
    if (!(value > 0) || !std::isfinite(value))
      throw bad_input(place, "a factor of " + std::to_string(value), "above 0");
  }
  if (static_cast<int64_t>(values.size()) != frequencies.numel()) {
    throw bad_input(place, std::to_string(values.size()) + " factors", std::to_string(frequencies.numel()));
  }
  return frequencies / at::tensor(values);
}

}  // namespace

Rope::Rope(const RopeInfo& info) : rotary_dim_(info.rotary_dim) {
  if (info.kind != "half-split") throw bad_input("rope kind", info.kind, "half-split");
  const at::Tensor exponents = at::arange(0, rotary_dim_, 2, at::kFloat) / static_cast<double>(rotary_dim_);
  inverse_frequencies_ = 1.0 / at::pow(info.theta, exponents);
  if (info.scaling == "none") return;
  const Json scaling = parse_json<Json>(info.scaling_json, "rope scaling " + info.scaling);
  if (info.scaling == "linear") {
    const double factor = parameter(scaling, info, "factor");
    if (!(factor > 0)) throw bad_input("rope scaling linear", info.scaling_json, "a positive factor");
    inverse_frequencies_ = inverse_frequencies_ / factor;
  } else if (info.scaling == "llama3") {
    // A GGUF file whose factors follow the rule has its parameters too: then the rule, to the last bit.
    const bool factors_alone = scaling.contains("freq_factors") && !scaling.contains("low_freq_factor");
    inverse_frequencies_ = factors_alone ? scale_by_factors(inverse_frequencies_, scaling["freq_factors"], info)
                                         : scale_llama3(inverse_frequencies_, scaling, info);
  } else {
    throw bad_input("rope scaling", info.scaling, "one of: none, linear, llama3");
  }
}

Rope::Angles Rope::angles(int64_t first, int64_t count) const {
  const at::Tensor positions = at::arange(first, first + count, at::kFloat).unsqueeze(1);
  const at::Tensor half = positions * inverse_frequencies_;
  const at::Tensor angle = at::cat({half, half}, 1).unsqueeze(1);
  return {angle.cos(), angle.sin()};
}

at::Tensor Rope::rotate(const at::Tensor& x, const Angles& angles) const {
  const int64_t dim = x.size(-1), half = rotary_dim_ / 2;
  const at::Tensor turned = x.narrow(-1, 0, rotary_dim_);
  const at::Tensor other = at::cat({-turned.narrow(-1, half, half), turned.narrow(-1, 0, half)}, -1);
  const at::Tensor rotated = turned * angles.cos + other * angles.sin;
  return rotary_dim_ == dim ? rotated : at::cat({rotated, x.narrow(-1, rotary_dim_, dim - rotary_dim_)}, -1);
}

}  // namespace kvcc
