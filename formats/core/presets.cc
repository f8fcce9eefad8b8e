#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "formats/core/scheme_parts.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

/// A family of presets: PREFIX BITS [MIDDLE] [-P%] [-sinkN].
struct Family {
  const char* prefix;  ///< "kvcc-nuq"
  const char* middle;  ///< between the bits and the options: "-channel-prerope", or ""
  int bits_min, bits_max;
  bool sparse;  ///< takes -P%
  bool fitted;  ///< takes -cap, -qnorm, and -f, -fs2, -layer, -head where they are not its own
  PresetInfo info;
  Scheme (*make)(int bits, double sparse, int sink);
};

Scheme make_per_token(Grid grid, int bits, double sparse, int sink) {
  Scheme scheme;
  scheme.key = {grid, bits, Site::post_rope, Axis::token};
  scheme.value = {grid, bits, Site::pre_rope, Axis::token};
  scheme.sparse = sparse;
  scheme.sink = sink;
  return scheme;
}

Scheme make_per_channel(Grid grid, int bits, double sparse, int sink) {
  Scheme scheme;
  scheme.key = {grid, bits, Site::pre_rope, Axis::channel};
  scheme.value = {grid, bits, Site::pre_rope, Axis::token};
  scheme.sparse = sparse;
  scheme.sink = sink;
  return scheme;
}

/// The first token belongs in the ranges when it has to be encoded with them, that is without sinks.
Scheme make_per_channel_baseline(Grid grid, int bits, double sparse, int sink) {
  Scheme scheme = make_per_channel(grid, bits, sparse, sink);
  scheme.first_in_thresholds = sink == 0;
  return scheme;
}

Scheme make_kvquant(int bits, double sparse, int sink) {
  Scheme scheme = make_per_channel(Grid::nuq, bits, sparse, sink);
  scheme.codebook = CodebookScope::layer;
  scheme.weight = FitWeight::f;
  scheme.first_in_thresholds = true;
  scheme.first_in_kmeans = sink == 0;
  return scheme;
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"kvcc-nuq",
       "",
       2,
       5,
       true,
       true,
       {"kvcc-nuq{2,3,4,5}[-P%][-cap][-qnorm][-f][-layer][-sinkN]", "kvcc-nuq4-1%-sink1",
        "kvcc's default: codebook per head, weight F s^2, first token out of the fit",
        "kvcc; after KVQuant (arXiv 2401.18079) with the weight of its eq. (7)"},
       [](int bits, double sparse, int sink) { return make_per_channel(Grid::nuq, bits, sparse, sink); }},
      {"kvquant-nuq",
       "",
       2,
       4,
       true,
       true,
       {"kvquant-nuq{2,3,4}[-P%][-cap][-qnorm][-fs2][-head][-sinkN]", "kvquant-nuq4-1%-sink1",
        "keys per channel before RoPE, codebook per layer, weight F, first token in the thresholds",
        "KVQuant (arXiv 2401.18079), as released; -fs2: the weight of its eq. (7)"},
       make_kvquant},
      {"int",
       "-channel-prerope",
       2,
       8,
       true,
       false,
       {"int{2..8}-channel-prerope[-P%][-sinkN]", "int4-channel-prerope",
        "uniform levels, keys per channel before RoPE, values per token", "KVQuant's ablation (arXiv 2401.18079)"},
       [](int bits, double sparse, int sink) { return make_per_channel_baseline(Grid::integer, bits, sparse, sink); }},
      {"nf",
       "-channel-prerope",
       2,
       4,
       true,
       false,
       {"nf{2,3,4}-channel-prerope[-P%][-sinkN]", "nf3-channel-prerope",
        "NormalFloat levels, keys per channel before RoPE, values per token",
        "KVQuant's ablation (arXiv 2401.18079), levels of QLoRA (arXiv 2305.14314)"},
       [](int bits, double sparse, int sink) {
         return make_per_channel_baseline(Grid::normal_float, bits, sparse, sink);
       }},
      {"int",
       "",
       2,
       8,
       false,
       false,
       {"int{2..8}[-sinkN]", "int4", "baseline: uniform levels per token, keys after RoPE",
        "KVQuant's baseline (arXiv 2401.18079, appendix M)"},
       [](int bits, double sparse, int sink) { return make_per_token(Grid::integer, bits, sparse, sink); }},
      {"nf",
       "",
       2,
       4,
       false,
       false,
       {"nf{2,3,4}[-sinkN]", "nf4", "baseline: NormalFloat levels per token, keys after RoPE",
        "KVQuant's baseline (arXiv 2401.18079), levels of QLoRA (arXiv 2305.14314)"},
       [](int bits, double sparse, int sink) { return make_per_token(Grid::normal_float, bits, sparse, sink); }},
  };
  return all;
}

/// A fitted family's option that is a word, and what it sets.
struct FittedOption {
  const char* word;
  void (*set)(Scheme&);
};
constexpr std::array<FittedOption, 6> kFittedOptions = {
    {{"cap", [](Scheme& s) { s.capped = true; }},
     {"qnorm", [](Scheme& s) { s.qnorm = true; }},
     {"f", [](Scheme& s) { s.weight = FitWeight::f; }},
     {"fs2", [](Scheme& s) { s.weight = FitWeight::fs2; }},
     {"layer", [](Scheme& s) { s.codebook = CodebookScope::layer; }},
     {"head", [](Scheme& s) { s.codebook = CodebookScope::head; }}}};

/// Words that turn `base` into `scheme`, each of which changes something, or nothing when none do.
std::optional<std::string> fitted_words(Scheme base, const Scheme& scheme) {
  std::string words;
  for (const FittedOption& option : kFittedOptions) {
    Scheme with = base, asked = scheme;
    option.set(with);
    option.set(asked);
    if (with == base || !(asked == scheme)) continue;
    words.append("-").append(option.word);
    base = with;
  }
  if (!(base == scheme)) return std::nullopt;
  return words;
}

std::string family_name(const Family& family, int bits, double sparse, const std::string& words, int sink) {
  std::string name = fmt::format("{}{}{}", family.prefix, bits, family.middle);
  if (sparse > 0) name.append("-").append(scheme_parts::sparse_text(sparse));
  name += words;
  if (sink > 0) name += fmt::format("-sink{}", sink);
  return name;
}

/// Reads "-1%-cap-sink1", in any order.
Scheme parse_options(const Family& family, int bits, std::string_view options, std::string_view text) {
  double sparse = 0;
  int sink = 0;
  bool sparse_seen = false, sink_seen = false;
  std::vector<const FittedOption*> fitted;
  while (!options.empty()) {
    options.remove_prefix(1);  // '-'
    const std::string_view option = options.substr(0, options.find('-'));
    options.remove_prefix(option.size());
    if (option.starts_with("sink")) {
      if (std::exchange(sink_seen, true)) throw scheme_parts::refuse(text, "sink is given twice");
      sink = scheme_parts::parse_count("sink", option.substr(4), text);
    } else if (option.ends_with('%') && family.sparse) {
      if (std::exchange(sparse_seen, true)) throw scheme_parts::refuse(text, "the sparse part is given twice");
      sparse = scheme_parts::parse_sparse(option, text);
    } else if (option.ends_with('%')) {
      throw scheme_parts::refuse(text, fmt::format("'{}': this baseline has no sparse part", option),
                                 family.info.pattern,
                                 "spell the scheme out to combine them: k=…,v=…,sparse=" + std::string(option));
    } else {
      const auto word = std::find_if(kFittedOptions.begin(), kFittedOptions.end(),
                                     [&](const FittedOption& o) { return option == o.word; });
      if (!family.fitted || word == kFittedOptions.end()) {
        throw scheme_parts::refuse(text, fmt::format("unknown part '{}'", option), family.info.pattern);
      }
      if (std::find(fitted.begin(), fitted.end(), &*word) != fitted.end()) {
        throw scheme_parts::refuse(text, fmt::format("{} is given twice", option));
      }
      fitted.push_back(&*word);
    }
  }
  Scheme scheme = family.make(bits, sparse, sink);
  for (const FittedOption* option : fitted) option->set(scheme);
  return scheme;
}

/// Published systems whose presets are not in this release.
constexpr std::array<const char*, 2> kLater = {"sinq", "skvq"};

}  // namespace

namespace scheme_parts {

std::optional<Scheme> parse_preset(std::string_view text) {
  if (text == "fp") return Scheme{};
  for (const Family& family : families()) {
    const std::string_view prefix = family.prefix, middle = family.middle;
    if (!text.starts_with(prefix)) continue;
    const std::string_view rest = text.substr(prefix.size());
    int bits = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), bits);
    if (error != std::errc() || bits < 0) continue;
    const std::string_view after = rest.substr(static_cast<size_t>(end - rest.data()));
    if (!after.starts_with(middle)) continue;
    const std::string_view options = after.substr(middle.size());
    if (!options.empty() && options.front() != '-') continue;
    if (bits < family.bits_min || bits > family.bits_max) {
      throw refuse(text, fmt::format("{} bits", bits), family.info.pattern);
    }
    return parse_options(family, bits, options, text);
  }
  if (std::optional<Scheme> vector = parse_vector(text)) return vector;
  if (std::optional<Scheme> published = parse_published(text)) return published;
  for (const std::string_view later : kLater) {
    if (text.starts_with(later) && (text.size() == later.size() || text[later.size()] == '-')) {
      throw refuse(text, fmt::format("the presets of {} are not in this release", later), "",
                   "'kvcc schemes' lists those that are");
    }
  }
  return std::nullopt;
}

std::string nearest_preset(std::string_view text) {
  // Compare with every family at every width, with the options of the text itself, so that only the name is judged.
  const size_t options = std::min({text.size(), text.find("-sink"), [&] {
                                     const size_t percent = text.find('%');
                                     return percent == std::string_view::npos ? percent : text.rfind('-', percent);
                                   }()});
  std::vector<std::string> names = preset_names();
  names.push_back("fp");
  for (const std::string& name : published_names()) {
    if (name.starts_with(fmt::format("{}-", text))) return name;  // "kivi"
  }
  const std::string near = nearest(text.substr(0, options), names);
  if (near.empty()) return "";
  const std::string whole = near + std::string(text.substr(options));
  try {
    const std::optional<Scheme> scheme = parse_preset(whole);  // parse_scheme would ask for the nearest again, for ever
    if (!scheme) return near;
    check(*scheme, whole);
    return whole;
  } catch (const Error&) {
    return near;
  }
}

}  // namespace scheme_parts

std::vector<std::string> preset_names() {
  std::vector<std::string> names = scheme_parts::vector_names();
  for (const Family& family : families()) {
    for (int bits = family.bits_min; bits <= family.bits_max; ++bits) {
      names.push_back(family_name(family, bits, 0, "", 0));
    }
  }
  for (const std::string& name : scheme_parts::published_names()) names.push_back(name);
  return names;
}

namespace {

const PresetInfo kFull = {"fp", "fp", "full precision: 16-bit keys and values", "the model itself"};

std::pair<std::string, const PresetInfo*> named(const Scheme& scheme) {
  if (scheme == Scheme{}) return {"fp", &kFull};
  if (scheme.is_vector()) return scheme_parts::vector_name(scheme);
  for (const Family& family : families()) {
    const int bits = scheme.key.bits;
    if (bits < family.bits_min || bits > family.bits_max || (scheme.sparse > 0 && !family.sparse)) continue;
    const std::optional<std::string> words = fitted_words(family.make(bits, scheme.sparse, scheme.sink), scheme);
    if (!words || (!words->empty() && !family.fitted)) continue;
    const std::string name = family_name(family, bits, scheme.sparse, *words, scheme.sink);
    // A fraction that no percentage gives exactly has no preset's name.
    if (scheme.sparse == 0 || name.find('%') != std::string::npos) return {name, &family.info};
  }
  return scheme_parts::published_name(scheme);
}

}  // namespace

std::string short_name(const Scheme& scheme) {
  const std::string name = named(scheme).first;
  return name.empty() ? to_string(scheme) : name;
}

const PresetInfo* preset_of(const Scheme& scheme) { return named(scheme).second; }

const std::vector<PresetInfo>& presets() {
  static const std::vector<PresetInfo> all = [] {
    std::vector<PresetInfo> list{scheme_parts::vector_preset()};
    for (const Family& family : families()) list.push_back(family.info);
    for (const PresetInfo& info : scheme_parts::published_presets()) list.push_back(info);
    list.push_back(kFull);
    return list;
  }();
  return all;
}

}  // namespace kvcc
