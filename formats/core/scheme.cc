#include "formats/core/scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "formats/core/scheme_parts.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

using scheme_parts::refuse;

template <typename Value>
struct Word {
  const char* text;
  Value value;
};

constexpr std::array<Word<Grid>, 3> kGrids = {{{"int", Grid::integer}, {"nf", Grid::normal_float}, {"nuq", Grid::nuq}}};
constexpr std::array<Word<Site>, 2> kSites = {{{"prerope", Site::pre_rope}, {"postrope", Site::post_rope}}};
constexpr std::array<Word<Axis>, 2> kAxes = {{{"channel", Axis::channel}, {"token", Axis::token}}};
constexpr std::array<Word<CodebookScope>, 2> kScopes = {
    {{"layer", CodebookScope::layer}, {"head", CodebookScope::head}}};
constexpr std::array<Word<FitWeight>, 3> kWeights = {
    {{"none", FitWeight::none}, {"f", FitWeight::f}, {"fs2", FitWeight::fs2}}};
constexpr std::array<Word<bool>, 2> kInOut = {{{"in", true}, {"out", false}}};

template <typename Words>
std::vector<std::string> texts_of(const Words& words) {
  std::vector<std::string> texts;
  for (const auto& word : words) texts.emplace_back(word.text);
  return texts;
}

template <typename Words, typename Value>
const char* word_of(const Words& words, Value value) {
  return std::find_if(words.begin(), words.end(), [&](const auto& word) { return word.value == value; })->text;
}

std::string meant(std::string_view word, const std::vector<std::string>& choices) {
  const std::string near = nearest(word, choices);
  return near.empty() ? "" : fmt::format("did you mean '{}'?", near);
}

template <typename Words>
auto value_of(const Words& words, std::string_view key, std::string_view word, std::string_view text) {
  for (const auto& entry : words) {
    if (word == entry.text) return entry.value;
  }
  const std::vector<std::string> choices = texts_of(words);
  throw refuse(text, fmt::format("{} is '{}'", key, word), fmt::format("one of {}", fmt::join(choices, ", ")),
               meant(word, choices));
}

/// "nuq3@prerope/channel" for keys, "nuq3@token" for values, "fp" for both.
TensorScheme parse_tensor(std::string_view key, std::string_view value, std::string_view text) {
  if (value == "fp") return {};
  const char* form =
      key == "k" ? "GRIDBITS@SITE/AXIS such as nuq3@prerope/channel" : "GRIDBITS@token such as nuq3@token";
  const size_t at = value.find('@');
  if (at == std::string_view::npos) throw refuse(text, fmt::format("{}={} has no '@'", key, value), form);
  const std::string_view grid = value.substr(0, at);
  std::string_view axis = value.substr(at + 1);
  const size_t digits = std::min(grid.find_first_of("0123456789"), grid.size());

  TensorScheme tensor;
  tensor.grid = value_of(kGrids, fmt::format("the grid of {}", key), grid.substr(0, digits), text);
  const std::string_view width = grid.substr(digits);
  const auto [end, error] = std::from_chars(width.data(), width.data() + width.size(), tensor.bits);
  if (width.empty() || error != std::errc() || end != width.data() + width.size() || tensor.bits < 1 ||
      tensor.bits > 8) {
    throw refuse(text, fmt::format("the width of {} is '{}'", key, width), "1 to 8 bits");
  }
  const size_t slash = axis.find('/');
  if (key == "k") {
    if (slash == std::string_view::npos) throw refuse(text, fmt::format("{}={} names no site", key, value), form);
    tensor.site = value_of(kSites, "the site of k", axis.substr(0, slash), text);
    axis = axis.substr(slash + 1);
  } else if (slash != std::string_view::npos) {
    throw refuse(text, fmt::format("{}={} names a site", key, value), form, "only keys are rotated by RoPE");
  }
  tensor.axis = value_of(kAxes, fmt::format("the axis of {}", key), axis, text);
  return tensor;
}

std::string tensor_text(const TensorScheme& tensor, bool key) {
  if (tensor.grid == Grid::full) return "fp";
  const std::string site = key ? fmt::format("{}/", word_of(kSites, tensor.site)) : "";
  return fmt::format("{}{}@{}{}", word_of(kGrids, tensor.grid), tensor.bits, site, word_of(kAxes, tensor.axis));
}

std::string tensor_json(const TensorScheme& tensor, bool key) {
  if (tensor.grid == Grid::full) return R"({"grid":"fp"})";
  const std::string site = key ? fmt::format(R"("site":"{}",)", word_of(kSites, tensor.site)) : "";
  return fmt::format(R"({{"grid":"{}","bits":{},{}"axis":"{}"}})", word_of(kGrids, tensor.grid), tensor.bits, site,
                     word_of(kAxes, tensor.axis));
}

const std::vector<std::string>& keys() {
  static const std::vector<std::string> all = {"k",        "v",      "sparse",           "sink",        "residual",
                                               "codebook", "weight", "first-thresholds", "first-kmeans"};
  return all;
}

void set_key(Scheme& scheme, std::string_view key, std::string_view value, std::string_view text) {
  if (key == "k") {
    scheme.key = parse_tensor(key, value, text);
  } else if (key == "v") {
    scheme.value = parse_tensor(key, value, text);
  } else if (key == "sparse") {
    scheme.sparse = scheme_parts::parse_sparse(value, text);
  } else if (key == "sink") {
    scheme.sink = scheme_parts::parse_count(key, value, text);
  } else if (key == "residual") {
    scheme.residual = scheme_parts::parse_count(key, value, text);
  } else if (key == "codebook") {
    scheme.codebook = value_of(kScopes, key, value, text);
  } else if (key == "weight") {
    scheme.weight = value_of(kWeights, key, value, text);
  } else if (key == "first-thresholds") {
    scheme.first_in_thresholds = value_of(kInOut, key, value, text);
  } else if (key == "first-kmeans") {
    scheme.first_in_kmeans = value_of(kInOut, key, value, text);
  } else {
    throw refuse(text, fmt::format("unknown key '{}'", key), fmt::format("one of {}", fmt::join(keys(), ", ")),
                 meant(key, keys()));
  }
}

Scheme parse_spelt_out(std::string_view text) {
  Scheme scheme;
  std::set<std::string_view> seen;
  for (size_t start = 0; start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string_view part = text.substr(start, comma - start);
    start = comma + 1;
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      throw refuse(text, fmt::format("'{}' is not KEY=VALUE", part), "k=…,v=… and further keys, separated by commas");
    }
    const std::string_view key = part.substr(0, equals);
    if (!seen.insert(key).second) throw refuse(text, fmt::format("'{}' is given twice", key));
    set_key(scheme, key, part.substr(equals + 1), text);
  }
  for (const char* needed : {"k", "v"}) {
    if (!seen.contains(needed)) throw refuse(text, fmt::format("'{}' is missing", needed), "both k=… and v=…");
  }
  return scheme;
}

}  // namespace

namespace scheme_parts {

Error refuse(std::string_view text, std::string found, std::string wanted, std::string hint) {
  return Error(ErrorKind::usage, fmt::format("scheme '{}'", text), std::move(found), std::move(wanted),
               std::move(hint));
}

double parse_sparse(std::string_view value, std::string_view text) {
  const bool percent = value.ends_with('%');
  const std::string_view digits = percent ? value.substr(0, value.size() - 1) : value;
  double number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, std::chars_format::fixed);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(number)) {
    throw refuse(text, fmt::format("sparse is '{}'", value), "a percentage such as 1%");
  }
  const double fraction = percent ? number / 100 : number;
  if (fraction < 0 || fraction >= 0.5) {
    throw refuse(text, fmt::format("sparse is '{}'", value), "0% up to below 50%",
                 !percent && number >= 0.5 ? fmt::format("write {}% for a percentage", value) : "");
  }
  return fraction + 0.0;  // -0 becomes 0
}

std::string sparse_text(double sparse) {
  for (int digits = 0; digits <= 20; ++digits) {
    const std::string text = fmt::format("{:.{}f}", sparse * 100, digits);
    double back = -1;
    std::from_chars(text.data(), text.data() + text.size(), back, std::chars_format::fixed);
    if (back / 100 == sparse) return text + "%";
  }
  std::array<char, 1100> buffer;  // the longest double in fixed form
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), sparse, std::chars_format::fixed);
  return std::string(buffer.data(), error == std::errc() ? end : buffer.data());
}

int parse_count(std::string_view key, std::string_view value, std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (value.empty() || error != std::errc() || end != value.data() + value.size() || number < 0 || number > (1 << 30)) {
    throw refuse(text, fmt::format("{} is '{}'", key, value), "a whole number of tokens, 0 or more");
  }
  return number;
}

void check(const Scheme& scheme, std::string_view text) {
  const TensorScheme& key = scheme.key;
  const TensorScheme& value = scheme.value;
  const auto refuse_all = [&](const TensorScheme& tensor, const char* name) {
    if (tensor.grid == Grid::normal_float && (tensor.bits < 2 || tensor.bits > 4)) {
      throw refuse(text, fmt::format("{} is nf with {} bits", name, tensor.bits), "nf2, nf3 or nf4");
    }
  };
  refuse_all(key, "k");
  refuse_all(value, "v");
  if ((key.grid == Grid::full) != (value.grid == Grid::full)) {
    throw refuse(text, "one of k and v is fp and the other is not", "both quantised, or both fp");
  }
  if (scheme.is_full() && (scheme.sparse > 0 || scheme.sink > 0 || scheme.residual > 0)) {
    throw refuse(text, "fp with outliers, sinks or a residual window", "fp alone", "full precision has no exceptions");
  }
  if (scheme.is_full()) return;
  if (key.axis == Axis::channel && key.site == Site::post_rope) {
    throw refuse(text, "keys per channel after RoPE", "k=…@prerope/channel or k=…@postrope/token",
                 "static scales per channel are fitted to keys before RoPE");
  }
  if (key.axis == Axis::token && key.grid == Grid::nuq) {
    throw refuse(text, "nuq keys per token", "k=nuq…@prerope/channel, or int and nf per token",
                 "key codebooks are fitted per channel");
  }
  if (value.axis == Axis::channel) {
    throw refuse(text, "values per channel", "v=…@token", "values are scaled per token");
  }
}

}  // namespace scheme_parts

bool Scheme::needs_calibration() const {
  const auto offline = [](const TensorScheme& tensor) {
    return tensor.grid == Grid::nuq || (tensor.grid != Grid::full && tensor.axis == Axis::channel);
  };
  return offline(key) || offline(value);
}

Scheme parse_scheme(std::string_view text) {
  if (text.find('=') != std::string_view::npos) {
    const Scheme scheme = parse_spelt_out(text);
    scheme_parts::check(scheme, text);
    return scheme;
  }
  if (const std::optional<Scheme> preset = scheme_parts::parse_preset(text)) {
    scheme_parts::check(*preset, text);
    return *preset;
  }
  const std::string near = scheme_parts::nearest_preset(text);
  throw refuse(text, "unknown preset", "",
               near.empty() ? "'kvcc schemes' lists them" : fmt::format("did you mean '{}'?", near));
}

std::string to_string(const Scheme& scheme) {
  return fmt::format(
      "k={},v={},sparse={},sink={},residual={},codebook={},weight={},first-thresholds={},first-kmeans={}",
      tensor_text(scheme.key, true), tensor_text(scheme.value, false), scheme_parts::sparse_text(scheme.sparse),
      scheme.sink, scheme.residual, word_of(kScopes, scheme.codebook), word_of(kWeights, scheme.weight),
      word_of(kInOut, scheme.first_in_thresholds), word_of(kInOut, scheme.first_in_kmeans));
}

std::string scheme_json(const Scheme& scheme) {
  return fmt::format(
      R"({{"k":{},"v":{},"sparse":{},"sink":{},"residual":{},"codebook":"{}","weight":"{}","first-thresholds":"{}","first-kmeans":"{}"}})",
      tensor_json(scheme.key, true), tensor_json(scheme.value, false), scheme.sparse, scheme.sink, scheme.residual,
      word_of(kScopes, scheme.codebook), word_of(kWeights, scheme.weight), word_of(kInOut, scheme.first_in_thresholds),
      word_of(kInOut, scheme.first_in_kmeans));
}

int outliers_per_tail(double sparse, int channels) {
  if (sparse <= 0 || channels < 3) return 0;
  // channels - ceil(t (channels - 1)) with t = 1 - sparse / 2, written without the cancellation; the slack keeps a
  // product that is whole on paper (201 channels at 1 %) from falling below it.
  return 1 + static_cast<int>(std::floor(sparse / 2 * (channels - 1) + 1e-9));
}

}  // namespace kvcc
