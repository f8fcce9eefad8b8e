#include "calib/model/rope.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "formats/core/error.h"
#include "formats/core/json.h"

namespace kvcc {
namespace {

using Json = nlohmann::json;

/// The model's own parameters of a scaling.
class Parameters {
 public:
  explicit Parameters(const RopeInfo& info)
      : info_(info),
        json_(info.scaling_json.empty() ? Json::object()
                                        : parse_json<Json>(info.scaling_json, "rope scaling " + info.scaling)) {}
  bool has(const char* name) const { return json_.contains(name) && !json_[name].is_null(); }
  double number(const char* name) const {
    if (!has(name) || !json_[name].is_number()) throw wrong(std::string("no number ") + name);
    return json_[name].get<double>();
  }
  double number(const char* name, double otherwise) const { return has(name) ? number(name) : otherwise; }
  double positive(const char* name) const {
    const double value = number(name);
    if (!(value > 0) || !std::isfinite(value)) throw wrong(std::string(name) + " is not positive");
    return value;
  }
  bool flag(const char* name, bool otherwise) const {
    if (!has(name)) return otherwise;
    if (!json_[name].is_boolean()) throw wrong(std::string(name) + " is not true or false");
    return json_[name].get<bool>();
  }
  /// One positive number a rotary pair.
  at::Tensor divisors(const char* name) const {
    std::vector<float> values;
    if (has(name) && json_[name].is_array()) {
      for (const Json& value : json_[name]) values.push_back(value.is_number() ? value.get<float>() : 0.0f);
    }
    const bool good = std::all_of(values.begin(), values.end(), [](float v) { return v > 0 && std::isfinite(v); });
    if (static_cast<int>(values.size()) != info_.rotary_dim / 2 || !good) {
      throw wrong(std::string(name) + " is not " + std::to_string(info_.rotary_dim / 2) + " positive factors");
    }
    return at::tensor(values);
  }
  Error wrong(const std::string& found) const {
    return bad_input("rope scaling " + info_.scaling, found + " in " + info_.scaling_json);
  }

 private:
  const RopeInfo& info_;
  Json json_;
};

/// base^(2i / R), the wavelengths over 2 pi.
at::Tensor powers(double base, int rotary_dim) {
  const at::Tensor exponents = at::arange(0, rotary_dim, 2, at::kFloat) / static_cast<double>(rotary_dim);
  return at::pow(base, exponents);
}

// The order of operations is that of transformers' ROPE_INIT_FUNCTIONS throughout, so that the floats are the same.

/// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between interpolated.
at::Tensor scale_llama3(const at::Tensor& frequencies, const Parameters& parameters) {
  const double factor = parameters.positive("factor");
  const double low = parameters.positive("low_freq_factor"), high = parameters.positive("high_freq_factor");
  const double context = parameters.positive("original_max_position_embeddings");
  if (!(high > low)) throw parameters.wrong("high_freq_factor is not above low_freq_factor");
  const double longest = context / low, shortest = context / high;
  const at::Tensor wavelength = 2 * std::numbers::pi / frequencies;
  const at::Tensor scaled = at::where(wavelength > longest, frequencies / factor, frequencies);
  const at::Tensor smooth = (context / wavelength - low) / (high - low);
  const at::Tensor between = (1 - smooth) * scaled / factor + smooth * scaled;
  const at::Tensor medium = (wavelength < shortest).logical_not() * (wavelength > longest).logical_not();
  return at::where(medium, between, scaled);
}

/// YaRN (arXiv 2309.00071): pairs that turn less than beta_slow times in the trained context are interpolated, those
/// that turn more than beta_fast times kept, and those between follow a ramp.
at::Tensor scale_yarn(const RopeInfo& info, const Parameters& parameters, double& attention_factor) {
  const int dim = info.rotary_dim;
  const double factor = parameters.positive("factor"),
               context = parameters.positive("original_max_position_embeddings");
  const auto magnitude = [](double scale, double m) { return scale <= 1 ? 1.0 : 0.1 * m * std::log(scale) + 1.0; };
  const double mscale = parameters.number("mscale", 0), all = parameters.number("mscale_all_dim", 0);
  attention_factor =
      mscale != 0 && all != 0 ? magnitude(factor, mscale) / magnitude(factor, all) : magnitude(factor, 1);
  if (parameters.has("attention_factor")) attention_factor = parameters.positive("attention_factor");
  const auto or_default = [&](const char* name, double value) {  // 0 counts as absent
    return parameters.number(name, 0) == 0 ? value : parameters.positive(name);
  };
  const auto pair_of = [&](double turns) {
    return dim * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(info.theta));
  };
  double low = pair_of(or_default("beta_fast", 32)), high = pair_of(or_default("beta_slow", 1));
  if (parameters.flag("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  const at::Tensor ramp = ((at::arange(dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const at::Tensor wavelengths = powers(info.theta, dim);
  const at::Tensor kept = 1.0 / wavelengths, interpolated = 1.0 / (factor * wavelengths), share = 1 - ramp;
  return interpolated * (1 - share) + kept * share;
}

/// LongRoPE (arXiv 2402.13753): one divisor a pair, of two lists.
at::Tensor scale_longrope(const RopeInfo& info, const Parameters& parameters, int64_t length,
                          double& attention_factor) {
  const double context = parameters.positive("original_max_position_embeddings");
  if (parameters.has("attention_factor")) {
    attention_factor = parameters.positive("attention_factor");
  } else {
    const double factor = parameters.positive("factor");
    attention_factor = factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(context));
  }
  const bool is_long = static_cast<double>(length) > context;
  return 1.0 / (parameters.divisors(is_long ? "long_factor" : "short_factor") * powers(info.theta, info.rotary_dim));
}

/// Dynamic NTK: a larger base for sequences longer than the trained context.
at::Tensor scale_dynamic(const RopeInfo& info, const Parameters& parameters, int64_t length) {
  const double factor = parameters.positive("factor"),
               trained = parameters.positive("original_max_position_embeddings");
  if (info.rotary_dim < 4) throw parameters.wrong("rotary_dim is 2");
  const double reached = std::max(static_cast<double>(length), trained), dim = info.rotary_dim;
  const double base = info.theta * std::pow(factor * reached / trained - (factor - 1), dim / (dim - 2));
  return 1.0 / powers(base, info.rotary_dim);
}

bool by_length(const RopeInfo& kind) { return kind.scaling == "dynamic" || kind.scaling == "longrope"; }

}  // namespace

Rope::Rope(const RopeInfo& info) : rotary_dim_(info.rotary_dim), interleaved_(info.kind == "interleaved") {
  if (info.kind != "half-split" && !interleaved_) throw bad_input("rope kind", info.kind, "half-split or interleaved");
  if (info.scaling != "by-layer") {
    kinds_.push_back(info);
  } else {
    try {
      const auto json = parse_json<Json>(info.scaling_json, "rope scaling by-layer");
      kind_of_layer_ = json.at("layers").get<std::vector<int>>();
      for (const Json& kind : json.at("kinds")) {
        kinds_.push_back({kind.at("theta").get<double>(), info.kind, kind.at("scaling").get<std::string>(),
                          kind.at("scaling_json").get<std::string>(), info.rotary_dim});
      }
    } catch (const Json::exception& error) {
      throw bad_input("rope scaling by-layer", error.what());
    }
    for (const int kind : kind_of_layer_) {
      if (kind < -1 || kind >= static_cast<int>(kinds_.size())) {
        throw bad_input("rope scaling by-layer", "a layer of kind " + std::to_string(kind),
                        "-1 or one of " + std::to_string(kinds_.size()));
      }
    }
    if (kinds_.empty()) throw bad_input("rope scaling by-layer", "no kinds");
  }
  for (const RopeInfo& kind : kinds_) fixed_.push_back(frequencies(kind, 0));  // what is wrong is said here
}

Rope::Frequencies Rope::frequencies(const RopeInfo& kind, int64_t length) const {
  Frequencies result;
  if (kind.scaling == "none") {
    result.inverse = 1.0 / powers(kind.theta, kind.rotary_dim);
    return result;
  }
  const Parameters parameters(kind);
  if (kind.scaling == "linear") {
    result.inverse = 1.0 / powers(kind.theta, kind.rotary_dim) / parameters.positive("factor");
  } else if (kind.scaling == "llama3") {
    // A GGUF file whose factors follow the rule has its parameters too: then the rule, to the last bit.
    const bool factors_alone = parameters.has("freq_factors") && !parameters.has("low_freq_factor");
    const at::Tensor plain = 1.0 / powers(kind.theta, kind.rotary_dim);
    result.inverse = factors_alone ? plain / parameters.divisors("freq_factors") : scale_llama3(plain, parameters);
  } else if (kind.scaling == "yarn") {
    result.inverse = scale_yarn(kind, parameters, result.attention_factor);
  } else if (kind.scaling == "longrope") {
    result.inverse = scale_longrope(kind, parameters, length, result.attention_factor);
  } else if (kind.scaling == "dynamic") {
    result.inverse = scale_dynamic(kind, parameters, length);
  } else {
    throw bad_input("rope scaling", kind.scaling, "one of: none, linear, dynamic, yarn, llama3, longrope");
  }
  return result;
}

Rope::Angles Rope::Angles::narrow(int64_t begin, int64_t count) const {
  Angles part;
  for (const auto& [cos, sin] : kinds)
    part.kinds.emplace_back(cos.narrow(0, begin, count), sin.narrow(0, begin, count));
  return part;
}

Rope::Angles Rope::Angles::to(at::Device device) const {
  Angles moved;
  for (const auto& [cos, sin] : kinds) moved.kinds.emplace_back(cos.to(device), sin.to(device));
  return moved;
}

Rope::Angles Rope::angles(int64_t first, int64_t count) const {
  const at::Tensor positions = at::arange(first, first + count, at::kFloat).unsqueeze(1);
  Angles result;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const Frequencies now = by_length(kinds_[k]) ? frequencies(kinds_[k], first + count) : fixed_[k];
    const at::Tensor half = positions * now.inverse;
    const at::Tensor angle = (interleaved_ ? half.repeat_interleave(2, 1) : at::cat({half, half}, 1)).unsqueeze(1);
    at::Tensor cos = angle.cos(), sin = angle.sin();
    if (now.attention_factor != 1) {
      cos = cos * now.attention_factor;
      sin = sin * now.attention_factor;
    }
    result.kinds.emplace_back(cos, sin);
  }
  return result;
}

at::Tensor Rope::rotate(const at::Tensor& x, const Angles& angles, int layer) const {
  const int kind = kind_of_layer_.empty() ? 0 : kind_of_layer_.at(layer);
  if (kind < 0) return x;
  const auto& [cos, sin] = angles.kinds.at(kind);
  const int64_t dim = x.size(-1), half = rotary_dim_ / 2;
  const at::Tensor turned = x.narrow(-1, 0, rotary_dim_);
  at::Tensor other;
  if (interleaved_) {
    const at::Tensor pairs = turned.unflatten(-1, {half, 2});
    other = at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
  } else {
    other = at::cat({-turned.narrow(-1, half, half), turned.narrow(-1, 0, half)}, -1);
  }
  const at::Tensor rotated = turned * cos + other * sin;
  return rotary_dim_ == dim ? rotated : at::cat({rotated, x.narrow(-1, rotary_dim_, dim - rotary_dim_)}, -1);
}

}  // namespace kvcc
