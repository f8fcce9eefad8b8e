// Presets of vector codebooks: kvcc-WIDTH, its predicting, its per-head and its untransformed form.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "formats/core/scheme_parts.h"

namespace kvcc::scheme_parts {
namespace {

/// A width's name, and the effective bits that it may take: a twentieth of a bit for codebooks and transforms.
struct Width {
  const char* name;
  double budget;
};
constexpr std::array<Width, 6> kWidths = {
    {{"1", 1.05}, {"1.5", 1.55}, {"2", 2.05}, {"2.5", 2.55}, {"3", 3.05}, {"4", 4.05}}};

struct Form {
  const char* word;  ///< of the name, "" for the form across heads
  Rotation rotation;
  bool predicted = false;
};
constexpr std::array<Form, 5> kForms = {{{"", Rotation::fklt_layer},
                                         {"-predict", Rotation::fklt_layer, true},
                                         {"-head", Rotation::fklt_head},
                                         {"-head-predict", Rotation::fklt_head, true},
                                         {"-channels", Rotation::none}}};

constexpr int kMostBits = 10;  ///< a table of 4 coordinates then takes 16 KiB in f32

Scheme make(const Width& width, const Form& form, int sink) {
  TensorScheme tensor;
  tensor.grid = Grid::vector;
  tensor.bits = kMostBits;
  tensor.site = Site::pre_rope;
  tensor.axis = Axis::tensor;
  tensor.rotation = form.rotation;
  // Groups of 4 end at 2.5 bits an element, so above that channels are paired.
  if (form.rotation == Rotation::none) tensor.width = width.budget < 2.5 ? 4 : 2;
  Scheme scheme;
  scheme.key = scheme.value = tensor;
  scheme.value.predicted = form.predicted;
  scheme.sink = sink;
  scheme.weight = FitWeight::f;
  scheme.budget = width.budget;
  return scheme;
}

std::string name_of(const Width& width, const Form& form) { return fmt::format("kvcc-{}{}", width.name, form.word); }

std::string name_of(const Width& width, const Form& form, int sink) {
  return name_of(width, form) + (sink == 1 ? "" : fmt::format("-sink{}", sink));
}

}  // namespace

std::optional<Scheme> parse_vector(std::string_view text) {
  for (const Width& width : kWidths) {
    for (const Form& form : kForms) {
      const std::string name = name_of(width, form);
      if (!text.starts_with(name)) continue;
      const std::string_view rest = text.substr(name.size());
      if (rest.empty()) return make(width, form, 1);
      if (rest.starts_with("-sink")) return make(width, form, parse_count("sink", rest.substr(5), text));
    }
  }
  return std::nullopt;
}

std::pair<std::string, const PresetInfo*> vector_name(const Scheme& scheme) {
  for (const Width& width : kWidths) {
    for (const Form& form : kForms) {
      if (scheme == make(width, form, scheme.sink)) return {name_of(width, form, scheme.sink), &vector_preset()};
    }
  }
  return {"", nullptr};
}

std::vector<std::string> vector_names() {
  std::vector<std::string> names;
  for (const Width& width : kWidths) {
    for (const Form& form : kForms) names.push_back(name_of(width, form));
  }
  return names;
}

const PresetInfo& vector_preset() {
  static const PresetInfo info = {
      "kvcc-{1,1.5,2,2.5,3,4}[-predict|-head|-head-predict|-channels][-sinkN]", "kvcc-2",
      "vector codebooks over the Karhunen-Loeve transform in the metric of the loss, bits by rate and distortion over "
      "the whole model; across the heads of a layer, -predict: of values what the token's keys do not tell, -head: of "
      "each head, -channels: correlated channels without a "
      "transform; the first token exact",
      "kvcc"};
  return info;
}

}  // namespace kvcc::scheme_parts
