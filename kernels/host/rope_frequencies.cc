#include "kernels/host/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "formats/core/error.h"
#include "formats/core/json.h"

namespace kvcc::host {
namespace {

/// The model's own parameters of its scaling.
class Parameters {
 public:
  explicit Parameters(const RopeInfo& rope)
      : rope_(rope), json_(parse_json<nlohmann::json>(rope.scaling_json, "RoPE scaling " + rope.scaling)) {}

  bool has(const char* name) const { return json_.contains(name) && !json_.at(name).is_null(); }
  std::optional<double> find(const char* name) const {
    if (!has(name)) return std::nullopt;
    const nlohmann::json& value = json_.at(name);
    if (!value.is_number()) throw wrong(std::string(name) + " is " + value.type_name(), "a number");
    return value.get<double>();
  }
  bool flag(const char* name, bool otherwise) const {
    if (!has(name)) return otherwise;
    if (!json_.at(name).is_boolean())
      throw wrong(std::string(name) + " is " + json_brief(json_.at(name)), "true or false");
    return json_.at(name).get<bool>();
  }
  double positive(const char* name) const { return positive(name, find(name)); }
  double positive(const char* name, std::optional<double> value) const {
    if (!value) throw wrong(std::string("no ") + name, std::string("a number ") + name);
    if (!(*value > 0) || !std::isfinite(*value)) throw wrong(name + (" is " + std::to_string(*value)), "above 0");
    return *value;
  }
  /// One divisor a pair.
  std::vector<float> divisors(const char* name) const {
    if (!has(name)) throw wrong(std::string("no ") + name, "one number a rotary pair");
    std::vector<float> values;
    const nlohmann::json& list = json_.at(name);
    for (const nlohmann::json& value : list.is_array() ? list : nlohmann::json::array()) {
      values.push_back(value.is_number() ? value.get<float>() : 0.0f);
      if (!(values.back() > 0) || !std::isfinite(values.back())) {
        throw wrong(std::string(name) + " holds " + json_brief(value), "positive numbers");
      }
    }
    if (static_cast<int64_t>(values.size()) != rope_.rotary_dim / 2) {
      throw wrong(std::string(name) + " holds " + std::to_string(values.size()) + " numbers",
                  std::to_string(rope_.rotary_dim / 2));
    }
    return values;
  }
  Error wrong(std::string found, std::string wanted) const {
    return bad_input("RoPE scaling " + rope_.scaling, std::move(found), std::move(wanted));
  }

 private:
  const RopeInfo& rope_;
  nlohmann::json json_;
};

/// theta^(2i / R), in f32 as models do; the base itself is rounded to f32 by their tensor libraries.
std::vector<float> wavelengths(double theta, int rotary_dim) {
  std::vector<float> powers(rotary_dim / 2);
  for (int i = 0; i < rotary_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    powers[i] = std::pow(static_cast<float>(theta), exponent);
  }
  return powers;
}

std::vector<float> inverse(std::vector<float> powers) {
  for (float& power : powers) power = 1.0f / power;
  return powers;
}

/// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between interpolated.
void scale_llama3(const Parameters& parameters, std::vector<float>& frequencies) {
  const double factor = parameters.positive("factor"),
               context = parameters.positive("original_max_position_embeddings");
  const double low = parameters.positive("low_freq_factor"), high = parameters.positive("high_freq_factor");
  if (!(high > low)) throw parameters.wrong("high_freq_factor not above low_freq_factor", "a range of wavelengths");
  const auto longest = static_cast<float>(context / low), shortest = static_cast<float>(context / high);
  for (float& f : frequencies) {
    const float wavelength = (1.0f / f) * static_cast<float>(2 * std::numbers::pi);
    const float scaled = wavelength > longest ? f / static_cast<float>(factor) : f;
    const float smooth =
        ((1.0f / wavelength) * static_cast<float>(context) - static_cast<float>(low)) / static_cast<float>(high - low);
    const bool between = !(wavelength < shortest) && !(wavelength > longest);
    f = between ? (1.0f - smooth) * scaled / static_cast<float>(factor) + smooth * scaled : scaled;
  }
}

/// Tokens that the model was trained on.
double trained_context(const Parameters& parameters, const RopeUse& use) {
  std::optional<double> stated = parameters.find("original_max_position_embeddings");
  if (!stated && use.max_positions > 0) stated = static_cast<double>(use.max_positions);
  return parameters.positive("original_max_position_embeddings", stated);
}
/// By how much the context is stretched: stated, or what the model claims over what it was trained on.
double stretch(const Parameters& parameters, const RopeUse& use, double context) {
  std::optional<double> stated = parameters.find("factor");
  if (!stated && use.max_positions > 0) stated = static_cast<double>(use.max_positions) / context;
  return parameters.positive("factor", stated);
}

/// YaRN: frequencies between those that turn beta_slow and beta_fast times in the trained context pass from
/// interpolation to extrapolation along a ramp.
RopeFrequencies scale_yarn(const Parameters& parameters, const RopeInfo& rope, const RopeUse& use) {
  const int dim = rope.rotary_dim;
  const double context = trained_context(parameters, use);
  const double factor = stretch(parameters, use, context);
  const auto or_default = [&](const char* name, double value) {  // 0 counts as absent, as in transformers
    const double found = parameters.find(name).value_or(0.0);
    return found == 0.0 ? value : parameters.positive(name, found);
  };
  const double fast = or_default("beta_fast", 32), slow = or_default("beta_slow", 1);

  RopeFrequencies result;
  const auto magnitude = [](double scale, double m) { return scale <= 1 ? 1.0 : 0.1 * m * std::log(scale) + 1.0; };
  const double mscale = parameters.find("mscale").value_or(0.0), all = parameters.find("mscale_all_dim").value_or(0.0);
  double attention = magnitude(factor, 1);
  if (mscale != 0.0 && all != 0.0) attention = magnitude(factor, mscale) / magnitude(factor, all);
  if (parameters.has("attention_factor")) attention = parameters.positive("attention_factor");
  result.attention_factor = static_cast<float>(attention);

  const auto pair_of = [&](double turns) {
    return dim * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = pair_of(fast), high = pair_of(slow);
  if (parameters.flag("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  const std::vector<float> powers = wavelengths(rope.theta, dim);
  for (int i = 0; i < dim / 2; ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float extrapolated = 1.0f - ramp, interpolated = 1.0f - extrapolated;
    result.inverse.push_back(1.0f / (static_cast<float>(factor) * powers[i]) * interpolated +
                             1.0f / powers[i] * extrapolated);
  }
  return result;
}

/// LongRoPE: one divisor a pair, from one of two lists.
RopeFrequencies scale_longrope(const Parameters& parameters, const RopeInfo& rope, const RopeUse& use) {
  const double context = trained_context(parameters, use);
  RopeFrequencies result;
  if (parameters.has("attention_factor")) {
    result.attention_factor = static_cast<float>(parameters.positive("attention_factor"));
  } else {
    const double factor = stretch(parameters, use, context);
    if (factor > 1) result.attention_factor = static_cast<float>(std::sqrt(1 + std::log(factor) / std::log(context)));
  }
  const bool is_long = static_cast<double>(use.length) > context;
  result.inverse = wavelengths(rope.theta, rope.rotary_dim);
  const std::vector<float> divisors = parameters.divisors(is_long ? "long_factor" : "short_factor");
  for (size_t i = 0; i < divisors.size(); ++i) result.inverse[i] = 1.0f / (divisors[i] * result.inverse[i]);
  return result;
}

/// Dynamic NTK: a larger base for sequences longer than the model was trained on.
double dynamic_base(const Parameters& parameters, const RopeInfo& rope, const RopeUse& use) {
  const double factor = parameters.positive("factor");
  if (use.max_positions <= 0) {
    throw parameters.wrong("max_position_embeddings is not known", "the model's, in RopeUse::max_positions");
  }
  const double trained = static_cast<double>(use.max_positions);
  const double length = static_cast<double>(std::max(use.length, use.max_positions));
  return rope.theta * std::pow(factor * length / trained - (factor - 1), rope.rotary_dim / (rope.rotary_dim - 2.0));
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeInfo& rope, const RopeUse& use) {
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
    throw bad_input("RoPE, rotary_dim", std::to_string(rope.rotary_dim), "an even number, at least 2");
  }
  if (!(rope.theta > 1) || !std::isfinite(rope.theta)) {
    throw bad_input("RoPE, theta", std::to_string(rope.theta), "above 1");
  }
  if (rope.scaling == "none") return {inverse(wavelengths(rope.theta, rope.rotary_dim))};
  constexpr const char* kKnown[] = {"linear", "llama3", "yarn", "longrope", "dynamic"};
  if (std::find(std::begin(kKnown), std::end(kKnown), rope.scaling) == std::end(kKnown)) {
    throw bad_input("RoPE scaling", rope.scaling, "none, linear, llama3, yarn, longrope or dynamic");
  }
  const Parameters parameters(rope);
  if (rope.scaling == "yarn") return scale_yarn(parameters, rope, use);
  if (rope.scaling == "longrope") return scale_longrope(parameters, rope, use);
  if (rope.scaling == "dynamic") {
    if (rope.rotary_dim < 4) throw parameters.wrong("rotary_dim 2", "at least 4");
    return {inverse(wavelengths(dynamic_base(parameters, rope, use), rope.rotary_dim))};
  }
  RopeFrequencies result{inverse(wavelengths(rope.theta, rope.rotary_dim))};
  if (rope.scaling == "linear") {
    const auto factor = static_cast<float>(parameters.positive("factor"));
    for (float& f : result.inverse) f /= factor;
  } else if (parameters.has("freq_factors") && !parameters.has("low_freq_factor")) {
    const std::vector<float> divisors = parameters.divisors("freq_factors");
    for (size_t i = 0; i < divisors.size(); ++i) result.inverse[i] /= divisors[i];
  } else {
    scale_llama3(parameters, result.inverse);
  }
  return result;
}

}  // namespace kvcc::host
