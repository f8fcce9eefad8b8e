#include "formats/core/scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "formats/core/scheme_words.h"

namespace kvcc {
namespace {

using namespace scheme_parts;

constexpr std::array<Word<CodebookScope>, 2> kScopes = {
    {{"layer", CodebookScope::layer}, {"head", CodebookScope::head}}};
constexpr std::array<Word<FitWeight>, 3> kWeights = {
    {{"none", FitWeight::none}, {"f", FitWeight::f}, {"fs2", FitWeight::fs2}}};
constexpr std::array<Word<bool>, 2> kInOut = {{{"in", true}, {"out", false}}};
constexpr std::array<Word<bool>, 2> kCaps = {{{"token", true}, {"none", false}}};
constexpr std::array<Word<bool>, 2> kOnOff = {{{"on", true}, {"off", false}}};

const std::vector<std::string>& keys() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names = {"k",        "v",      "sparse",           "sink",         "residual",
                                      "codebook", "weight", "first-thresholds", "first-kmeans", "cap",
                                      "qnorm",    "budget"};
    for (const std::string& key : dimension_keys()) names.push_back(key);
    return names;
  }();
  return all;
}

void set_key(Scheme& scheme, std::string_view key, std::string_view value, std::string_view text) {
  if (set_dimension(scheme, key, value, text)) return;
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
  } else if (key == "cap") {
    scheme.capped = value_of(kCaps, key, value, text);
  } else if (key == "qnorm") {
    scheme.qnorm = value_of(kOnOff, key, value, text);
  } else if (key == "budget") {
    scheme.budget = scheme_parts::parse_budget(value, text);
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
    for (const char* tensor : {"k", "v"}) {
      if (key.starts_with(fmt::format("{}-", tensor)) && !seen.contains(tensor)) {
        throw refuse(text, fmt::format("'{}' comes before '{}'", key, tensor), fmt::format("{}=… first", tensor));
      }
    }
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

double parse_sparse(std::string_view value, std::string_view text) { return parse_share("sparse", value, 0.5, text); }

double parse_share(std::string_view key, std::string_view value, double below, std::string_view text) {
  const bool percent = value.ends_with('%');
  const std::string_view digits = percent ? value.substr(0, value.size() - 1) : value;
  double number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, std::chars_format::fixed);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(number)) {
    throw refuse(text, fmt::format("{} is '{}'", key, value), "a percentage such as 1%");
  }
  const double fraction = percent ? number / 100 : number;
  if (fraction < 0 || fraction >= below) {
    throw refuse(text, fmt::format("{} is '{}'", key, value), fmt::format("0% up to below {}%", below * 100),
                 !percent && number >= below ? fmt::format("write {}% for a percentage", value) : "");
  }
  return fraction + 0.0;  // -0 becomes 0
}

double parse_budget(std::string_view value, std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(value.data(), value.data() + value.size(), number, std::chars_format::fixed);
  if (value.empty() || error != std::errc() || end != value.data() + value.size() ||
      !(number >= 0.01 && number <= 16)) {
    throw refuse(text, fmt::format("budget is '{}'", value), "effective bits an element, 0.01 to 16");
  }
  return number;
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

}  // namespace scheme_parts

bool Scheme::needs_rotations() const {
  return key.rotation == Rotation::spectral || value.rotation == Rotation::spectral;
}

bool Scheme::needs_calibration() const {
  if (needs_rotations()) return true;
  const auto offline = [](const TensorScheme& tensor) {
    return tensor.grid == Grid::nuq || tensor.grid == Grid::vector ||
           (tensor.grid != Grid::full && tensor.axis == Axis::channel);
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
  const std::string text = fmt::format(
      "k={},v={},sparse={},sink={},residual={},codebook={},weight={},first-"
      "thresholds={},first-kmeans={}",
      tensor_text(scheme.key, true), tensor_text(scheme.value, false), scheme_parts::sparse_text(scheme.sparse),
      scheme.sink, scheme.residual, word_of(kScopes, scheme.codebook), word_of(kWeights, scheme.weight),
      word_of(kInOut, scheme.first_in_thresholds), word_of(kInOut, scheme.first_in_kmeans));
  const std::string extended = fmt::format("{}{}{}", scheme.capped ? ",cap=token" : "", scheme.qnorm ? ",qnorm=on" : "",
                                           scheme.budget > 0 ? fmt::format(",budget={}", scheme.budget) : "");
  return text + extended + dimension_texts(scheme.key, "k") + dimension_texts(scheme.value, "v");
}

std::string scheme_json(const Scheme& scheme) {
  return fmt::format(
      R"({{"k":{},"v":{},"sparse":{},"sink":{},"residual":{},"codebook":"{}","weight":"{}","first-thresholds":"{}","first-kmeans":"{}"{}{}{}}})",
      tensor_json(scheme.key, true), tensor_json(scheme.value, false), scheme.sparse, scheme.sink, scheme.residual,
      word_of(kScopes, scheme.codebook), word_of(kWeights, scheme.weight), word_of(kInOut, scheme.first_in_thresholds),
      word_of(kInOut, scheme.first_in_kmeans), scheme.capped ? R"(,"cap":"token")" : "",
      scheme.qnorm ? R"(,"qnorm":"on")" : "", scheme.budget > 0 ? fmt::format(R"(,"budget":{})", scheme.budget) : "");
}

int64_t tail_unit(int64_t residual, int64_t block) {
  return std::max<int64_t>(1, (residual + block - 1) / block) * block;
}

int outliers_per_tail(double sparse, int channels) {
  if (sparse <= 0 || channels < 3) return 0;
  // channels - ceil(t (channels - 1)) with t = 1 - sparse / 2, written without the cancellation; the slack keeps a
  // product that is whole on paper (201 channels at 1 %) from falling below it.
  return 1 + static_cast<int>(std::floor(sparse / 2 * (channels - 1) + 1e-9));
}

}  // namespace kvcc
