// How one tensor of a scheme is spelt: GRIDBITS@SITE/AXIS and a key for each further dimension.
#include <fmt/format.h>

#include <array>
#include <charconv>

#include "formats/core/scheme_words.h"

namespace kvcc {
namespace {

using namespace scheme_parts;

constexpr int kMostVectorBits = 12;  ///< of a group of coordinates
constexpr int kMostGroup = 4096;     ///< channels or tokens of a group, tokens of a tile

constexpr std::array<Word<Grid>, 9> kGrids = {{{"int", Grid::integer},
                                               {"nf", Grid::normal_float},
                                               {"nuq", Grid::nuq},
                                               {"lloyd", Grid::lloyd},
                                               {"fp", Grid::floating},
                                               {"polar", Grid::polar},
                                               {"angles", Grid::angles},
                                               {"sign", Grid::sign},
                                               {"vq", Grid::vector}}};
constexpr std::array<Word<Site>, 2> kSites = {{{"prerope", Site::pre_rope}, {"postrope", Site::post_rope}}};
constexpr std::array<Word<Axis>, 3> kAxes = {
    {{"channel", Axis::channel}, {"token", Axis::token}, {"tensor", Axis::tensor}}};
constexpr std::array<Word<Rotation>, 7> kRotations = {{{"none", Rotation::none},
                                                       {"hadamard", Rotation::hadamard},
                                                       {"hadamard-64", Rotation::hadamard_64},
                                                       {"random", Rotation::random},
                                                       {"fklt-head", Rotation::fklt_head},
                                                       {"fklt-layer", Rotation::fklt_layer},
                                                       {"spectral", Rotation::spectral}}};
constexpr std::array<Word<Norm>, 6> kNorms = {{{"none", Norm::none},
                                               {"head", Norm::head},
                                               {"head-corrected", Norm::head_corrected},
                                               {"token", Norm::token},
                                               {"varn", Norm::varn},
                                               {"varn-rms", Norm::varn_rms}}};
constexpr std::array<Word<Rounding>, 7> kRoundings = {{{"ends", Rounding::ends},
                                                       {"zero", Rounding::zero},
                                                       {"zero-inside", Rounding::zero_inside},
                                                       {"zero-clamped", Rounding::zero_clamped},
                                                       {"symmetric", Rounding::symmetric},
                                                       {"inverse", Rounding::inverse},
                                                       {"ggml", Rounding::ggml}}};
constexpr std::array<Word<bool>, 2> kScales = {{{"fp16", true}, {"fp8", false}}};

bool is_varn(Norm norm) { return norm == Norm::varn || norm == Norm::varn_rms; }

int parse_number(std::string_view what, std::string_view digits, int least, int most, std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || number < least ||
      number > most) {
    throw refuse(text, fmt::format("{} is '{}'", what, digits), fmt::format("{} to {}", least, most));
  }
  return number;
}

/// "channel", "token", "tensor", "channel:128", "token:64", "token:head".
void parse_axis(std::string_view key, std::string_view axis, std::string_view text, TensorScheme& tensor) {
  const size_t colon = std::min(axis.find(':'), axis.size());
  tensor.axis = value_of(kAxes, fmt::format("the axis of {}", key), axis.substr(0, colon), text);
  if (colon == axis.size()) return;
  if (tensor.axis == Axis::tensor) {
    throw refuse(text, fmt::format("{} has groups of a tensor", key), "channel:G, token:G or token:head");
  }
  const std::string_view group = axis.substr(colon + 1);
  if (tensor.axis == Axis::token && group == "head") {
    tensor.group = 0;
  } else {
    tensor.group = parse_number(fmt::format("the group of {}", key), group, 1, kMostGroup, text);
  }
  tensor.axis = tensor.axis == Axis::token ? Axis::token_group : Axis::channel_group;
}

std::string axis_text(const TensorScheme& tensor) {
  switch (tensor.axis) {
    case Axis::token_group:
      return tensor.group == 0 ? "token:head" : fmt::format("token:{}", tensor.group);
    case Axis::channel_group:
      return fmt::format("channel:{}", tensor.group);
    default:
      return word_of(kAxes, tensor.axis);
  }
}

std::string norm_text(const TensorScheme& tensor) {
  const char* word = word_of(kNorms, tensor.norm);
  return is_varn(tensor.norm) ? fmt::format("{}{}:{}", word, tensor.iterations, tensor.tile) : word;
}

std::string wide_text(const TensorScheme& tensor) {
  return fmt::format("{}:{}", scheme_parts::sparse_text(tensor.wide), tensor.wide_bits);
}

/// A dimension that only some tensors have, as a key "k-NAME" or "v-NAME".
struct Dimension {
  const char* name;
  bool (*is_set)(const TensorScheme&);
  std::string (*print)(const TensorScheme&);
  void (*parse)(TensorScheme&, std::string_view key, std::string_view value, std::string_view text);
};

void parse_norm(TensorScheme& tensor, std::string_view key, std::string_view value, std::string_view text) {
  const size_t digits = std::min(value.find_first_of("0123456789:"), value.size());
  tensor.norm = value_of(kNorms, key, value.substr(0, digits), text);
  const std::string_view rest = value.substr(digits);
  if (!is_varn(tensor.norm)) {
    if (!rest.empty())
      throw refuse(text, fmt::format("{} is '{}'", key, value), "iterations of varn and varn-rms alone");
    return;
  }
  const size_t colon = rest.find(':');
  if (colon == std::string_view::npos) {
    throw refuse(text, fmt::format("{} is '{}'", key, value), "varnN:G: N iterations on tiles of G tokens");
  }
  tensor.iterations = parse_number(fmt::format("the iterations of {}", key), rest.substr(0, colon), 1, 64, text);
  tensor.tile = parse_number(fmt::format("the tile of {}", key), rest.substr(colon + 1), 2, kMostGroup, text);
}

void parse_clip(TensorScheme& tensor, std::string_view key, std::string_view value, std::string_view text) {
  const auto [end, error] =
      std::from_chars(value.data(), value.data() + value.size(), tensor.clip, std::chars_format::fixed);
  if (value.empty() || error != std::errc() || end != value.data() + value.size() || !(tensor.clip > 0) ||
      tensor.clip > 1) {
    throw refuse(text, fmt::format("{} is '{}'", key, value), "above 0, at most 1");
  }
}

void parse_wide(TensorScheme& tensor, std::string_view key, std::string_view value, std::string_view text) {
  const size_t colon = value.find(':');
  if (colon == std::string_view::npos) {
    throw refuse(text, fmt::format("{} is '{}'", key, value), "SHARE:BITS such as 12.5%:4");
  }
  tensor.wide = scheme_parts::parse_share(key, value.substr(0, colon), 1.0, text);
  tensor.wide_bits = parse_number(fmt::format("the width of {}", key), value.substr(colon + 1), 1, 16, text);
}

void parse_early(TensorScheme& tensor, std::string_view key, std::string_view value, std::string_view text) {
  const size_t colon = value.find(':');
  if (colon == std::string_view::npos) {
    throw refuse(text, fmt::format("{} is '{}'", key, value), "LAYERS:SKETCH such as 15:4");
  }
  tensor.early_layers = parse_number(fmt::format("the layers of {}", key), value.substr(0, colon), 1, 1024, text);
  tensor.early_sketch = parse_number(fmt::format("the sketch of {}", key), value.substr(colon + 1), 1, 8, text);
}

const std::vector<Dimension>& dimensions() {
  using T = const TensorScheme&;
  static const std::vector<Dimension> all = {
      {"rotate", [](T t) { return t.rotation != Rotation::none; },
       [](T t) -> std::string { return word_of(kRotations, t.rotation); },
       [](TensorScheme& t, std::string_view key, std::string_view value, std::string_view text) {
         t.rotation = value_of(kRotations, key, value, text);
       }},
      {"norm", [](T t) { return t.norm != Norm::none; }, norm_text, parse_norm},
      {"round", [](T t) { return t.rounding != Rounding::ends; },
       [](T t) -> std::string { return word_of(kRoundings, t.rounding); },
       [](TensorScheme& t, std::string_view key, std::string_view value, std::string_view text) {
         t.rounding = value_of(kRoundings, key, value, text);
       }},
      {"clip", [](T t) { return t.clip != 1; }, [](T t) { return fmt::format("{}", t.clip); }, parse_clip},
      {"wide", [](T t) { return t.wide > 0 || t.wide_bits > 0; }, wide_text, parse_wide},
      {"scales", [](T t) { return !t.half_scales; }, [](T t) -> std::string { return word_of(kScales, t.half_scales); },
       [](TensorScheme& t, std::string_view key, std::string_view value, std::string_view text) {
         t.half_scales = value_of(kScales, key, value, text);
       }},
      {"sketch", [](T t) { return t.sketch != 0; }, [](T t) { return fmt::format("{}", t.sketch); },
       [](TensorScheme& t, std::string_view key, std::string_view value, std::string_view text) {
         t.sketch = parse_number(key, value, 0, 8, text);
       }},
      {"width", [](T t) { return t.width != 0; }, [](T t) { return fmt::format("{}", t.width); },
       [](TensorScheme& t, std::string_view key, std::string_view value, std::string_view text) {
         t.width = value == "auto" ? 0 : parse_number(key, value, 1, 8, text);
       }},
      {"predict", [](T t) { return t.predicted; }, [](T) -> std::string { return "key"; },
       [](TensorScheme& t, std::string_view key, std::string_view value, std::string_view text) {
         if (value != "key" && value != "none")
           throw refuse(text, fmt::format("{} is '{}'", key, value), "key or none");
         t.predicted = value == "key";
       }},
      {"early", [](T t) { return t.early_layers > 0 || t.early_sketch > 0; },
       [](T t) { return fmt::format("{}:{}", t.early_layers, t.early_sketch); }, parse_early},
  };
  return all;
}

}  // namespace

namespace scheme_parts {

TensorScheme parse_tensor(std::string_view key, std::string_view value, std::string_view text) {
  if (value == "fp") return {};
  const char* form =
      key == "k" ? "GRIDBITS@SITE/AXIS such as nuq3@prerope/channel" : "GRIDBITS@AXIS such as nuq3@token";
  const size_t at = value.find('@');
  if (at == std::string_view::npos) throw refuse(text, fmt::format("{}={} has no '@'", key, value), form);
  const std::string_view grid = value.substr(0, at);
  std::string_view axis = value.substr(at + 1);
  const size_t digits = std::min(grid.find_first_of("0123456789"), grid.size());

  TensorScheme tensor;
  tensor.grid = value_of(kGrids, fmt::format("the grid of {}", key), grid.substr(0, digits), text);
  const std::string_view width = grid.substr(digits);
  const auto [end, error] = std::from_chars(width.data(), width.data() + width.size(), tensor.bits);
  const int most = tensor.grid == Grid::vector ? kMostVectorBits : 8;
  if (width.empty() || error != std::errc() || end != width.data() + width.size() || tensor.bits < 1 ||
      tensor.bits > most) {
    throw refuse(text, fmt::format("the width of {} is '{}'", key, width), fmt::format("1 to {} bits", most));
  }
  const size_t slash = axis.find('/');
  if (key == "k") {
    if (slash == std::string_view::npos) throw refuse(text, fmt::format("{}={} names no site", key, value), form);
    tensor.site = value_of(kSites, "the site of k", axis.substr(0, slash), text);
    axis = axis.substr(slash + 1);
  } else if (slash != std::string_view::npos) {
    throw refuse(text, fmt::format("{}={} names a site", key, value), form, "only keys are rotated by RoPE");
  }
  parse_axis(key, axis, text, tensor);
  return tensor;
}

std::string tensor_text(const TensorScheme& tensor, bool key) {
  if (tensor.grid == Grid::full) return "fp";
  const std::string site = key ? fmt::format("{}/", word_of(kSites, tensor.site)) : "";
  return fmt::format("{}{}@{}{}", word_of(kGrids, tensor.grid), tensor.bits, site, axis_text(tensor));
}

std::string tensor_json(const TensorScheme& tensor, bool key) {
  if (tensor.grid == Grid::full) return R"({"grid":"fp"})";
  const std::string site = key ? fmt::format(R"("site":"{}",)", word_of(kSites, tensor.site)) : "";
  std::string json = fmt::format(R"({{"grid":"{}","bits":{},{}"axis":"{}")", word_of(kGrids, tensor.grid), tensor.bits,
                                 site, axis_text(tensor));
  for (const Dimension& dimension : dimensions()) {
    if (dimension.is_set(tensor)) json += fmt::format(R"(,"{}":"{}")", dimension.name, dimension.print(tensor));
  }
  return json + "}";
}

bool set_dimension(Scheme& scheme, std::string_view key, std::string_view value, std::string_view text) {
  if (!key.starts_with("k-") && !key.starts_with("v-")) return false;
  for (const Dimension& dimension : dimensions()) {
    if (key.substr(2) != dimension.name) continue;
    dimension.parse(key.front() == 'k' ? scheme.key : scheme.value, key, value, text);
    return true;
  }
  return false;
}

std::string dimension_texts(const TensorScheme& tensor, const char* key) {
  std::string text;
  for (const Dimension& dimension : dimensions()) {
    if (dimension.is_set(tensor)) text += fmt::format(",{}-{}={}", key, dimension.name, dimension.print(tensor));
  }
  return text;
}

std::vector<std::string> dimension_keys() {
  std::vector<std::string> keys;
  for (const char* tensor : {"k", "v"}) {
    for (const Dimension& dimension : dimensions()) keys.push_back(fmt::format("{}-{}", tensor, dimension.name));
  }
  return keys;
}

}  // namespace scheme_parts

bool TensorScheme::is_plain() const {
  TensorScheme plain;
  plain.grid = grid;
  plain.bits = bits;
  plain.site = site;
  plain.axis = axis;
  const bool known = grid == Grid::full || grid == Grid::integer || grid == Grid::normal_float || grid == Grid::nuq;
  return known && (axis == Axis::channel || axis == Axis::token) && *this == plain;
}

TensorScheme TensorScheme::in_layer(int layer) const {
  TensorScheme tensor = *this;
  if (layer < early_layers) tensor.sketch = early_sketch;
  tensor.early_layers = tensor.early_sketch = 0;
  return tensor;
}

int64_t TensorScheme::block_tokens() const {
  if (tile > 0) return tile;
  return axis == Axis::channel_group ? group : 1;
}

}  // namespace kvcc
