// Presets of published systems whose grids need no calibration: their names, read and written. What they are is in
// presets_*.cc, a file a kind of system.
#include "formats/core/presets_published.h"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <utility>

namespace kvcc::scheme_parts {

TensorScheme integer(int bits, Axis axis, int group, Rounding rounding) {
  TensorScheme tensor;
  tensor.grid = Grid::integer;
  tensor.bits = bits;
  tensor.axis = axis;
  tensor.group = group;
  tensor.rounding = rounding;
  return tensor;
}

TensorScheme after_rope(TensorScheme tensor) {
  tensor.site = Site::post_rope;
  return tensor;
}

Scheme both(const TensorScheme& tensor, const Options& o) {
  Scheme scheme;
  scheme.key = tensor;
  scheme.key.site = o.prerope ? Site::pre_rope : Site::post_rope;
  scheme.value = tensor;
  scheme.sink = o.sink;
  scheme.residual = o.residual;
  return scheme;
}

Scheme of(const TensorScheme& key, const TensorScheme& value, const Options& o) {
  Scheme scheme = both(value, o);
  scheme.key = after_rope(key);
  return scheme;
}

std::vector<Published> widths(const char* prefix, std::initializer_list<int> bits, const char* allowed,
                              const Options& defaults, Scheme (*make)(int bits, const Options&)) {
  std::vector<Published> members;
  for (const int b : bits) {
    members.push_back(
        {fmt::format("{}-{}", prefix, b), allowed, defaults, [=](const Options& o) { return make(b, o); }});
  }
  return members;
}

namespace {

/// Options as patterns show them.
constexpr std::array<std::pair<const char*, const char*>, 8> kOptionTexts = {{{"g", "[-gN]"},
                                                                              {"it", "[-itN]"},
                                                                              {"rms", "[-rms]"},
                                                                              {"fp8", "[-fp8]"},
                                                                              {"prod", "[-prod]"},
                                                                              {"prerope", "[-prerope]"},
                                                                              {"r", "[-rN]"},
                                                                              {"sink", "[-sinkN]"}}};

/// In the order that tables have.
std::vector<Family> make_families() {
  std::vector<Family> all;
  for (const auto& some : {channel_group_families, varn_families, token_families, vector_families}) {
    std::vector<Family> made = some();
    std::move(made.begin(), made.end(), std::back_inserter(all));
  }
  return all;
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> made = make_families();
    for (Family& family : made) {
      const std::string allowed = " " + family.members.front().allowed + " ";
      for (const auto& [word, shown] : kOptionTexts) {
        if (allowed.find(fmt::format(" {} ", word)) != std::string::npos) family.info.pattern += shown;
      }
    }
    return made;
  }();
  return all;
}

bool allows(const Published& preset, std::string_view option) {
  return fmt::format(" {} ", preset.allowed).find(fmt::format(" {} ", option)) != std::string::npos;
}

/// Sets what "-g64" or "-rms" says; false when the preset has no such option.
bool set_option(const Published& preset, std::string_view option, Options& out, std::string_view text) {
  for (const auto& [word, flag] :
       {std::pair{"rms", &out.rms}, {"fp8", &out.fp8}, {"prod", &out.prod}, {"prerope", &out.prerope}}) {
    if (option != word || !allows(preset, word)) continue;
    if (std::exchange(*flag, true)) throw refuse(text, fmt::format("{} is given twice", word));
    return true;
  }
  for (const auto& [word, number] :
       {std::pair{"g", &out.group}, {"r", &out.residual}, {"sink", &out.sink}, {"it", &out.iterations}}) {
    const std::string_view prefix = word;
    if (!option.starts_with(prefix) || !allows(preset, word)) continue;
    const std::string_view digits = option.substr(prefix.size());
    if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) continue;
    *number = parse_count(word, digits, text);
    const auto limit = [&](int least, int most) {
      if (*number < least || *number > most) {
        throw refuse(text, fmt::format("{} is '{}'", word, digits), fmt::format("{} to {}", least, most));
      }
    };
    if (prefix == "g") limit(2, 4096);
    if (prefix == "it") limit(1, 64);
    return true;
  }
  return false;
}

Scheme parse_options(const Published& preset, std::string_view options, const std::string& pattern,
                     std::string_view text) {
  Options out = preset.defaults;
  std::vector<std::string> seen;
  while (!options.empty()) {
    options.remove_prefix(1);  // '-'
    const std::string_view option = options.substr(0, options.find('-'));
    options.remove_prefix(option.size());
    if (!set_option(preset, option, out, text)) {
      throw refuse(text, fmt::format("unknown part '{}'", option), pattern);
    }
    const std::string word(option.substr(0, option.find_first_of("0123456789")));
    for (const std::string& other : seen) {
      if (other == word) throw refuse(text, fmt::format("{} is given twice", word));
    }
    seen.push_back(word);
  }
  return preset.make(out);
}

/// The options under which the preset could be this scheme.
Options options_of(const Published& preset, const Scheme& scheme) {
  Options o = preset.defaults;
  if (allows(preset, "g")) o.group = scheme.key.group;
  if (allows(preset, "r")) o.residual = scheme.residual;
  if (allows(preset, "sink")) o.sink = scheme.sink;
  if (allows(preset, "it")) o.iterations = scheme.key.iterations;
  if (allows(preset, "rms")) o.rms = scheme.key.norm == Norm::varn_rms;
  if (allows(preset, "fp8")) o.fp8 = !scheme.key.half_scales;
  if (allows(preset, "prod")) o.prod = scheme.key.sketch > 0;
  if (allows(preset, "prerope")) o.prerope = scheme.key.site == Site::pre_rope;
  return o;
}

std::string name_of(const Published& preset, const Options& o) {
  std::string name = preset.name;
  const Options& usual = preset.defaults;
  if (o.group != usual.group) name += fmt::format("-g{}", o.group);
  if (o.iterations != usual.iterations) name += fmt::format("-it{}", o.iterations);
  if (o.rms) name += "-rms";
  if (o.fp8) name += "-fp8";
  if (o.prod) name += "-prod";
  if (o.prerope) name += "-prerope";
  if (o.residual != usual.residual) name += fmt::format("-r{}", o.residual);
  if (o.sink != usual.sink) name += fmt::format("-sink{}", o.sink);
  return name;
}

}  // namespace

std::optional<Scheme> parse_published(std::string_view text) {
  const Family* family = nullptr;
  const Published* best = nullptr;  // the longest name: kitty-pro before kitty
  for (const Family& f : families()) {
    for (const Published& preset : f.members) {
      const bool fits =
          text.starts_with(preset.name) && (text.size() == preset.name.size() || text[preset.name.size()] == '-');
      if (!fits || (best != nullptr && best->name.size() > preset.name.size())) continue;
      family = &f;
      best = &preset;
    }
  }
  if (best == nullptr) return std::nullopt;
  return parse_options(*best, text.substr(best->name.size()), family->info.pattern, text);
}

std::pair<std::string, const PresetInfo*> published_name(const Scheme& scheme) {
  for (const Family& family : families()) {
    for (const Published& preset : family.members) {
      const Options options = options_of(preset, scheme);
      if (preset.make(options) == scheme) return {name_of(preset, options), &family.info};
    }
  }
  return {"", nullptr};
}

std::vector<std::string> published_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    for (const Published& preset : family.members) names.push_back(preset.name);
  }
  return names;
}

const std::vector<PresetInfo>& published_presets() {
  static const std::vector<PresetInfo> all = [] {
    std::vector<PresetInfo> list;
    for (const Family& family : families()) list.push_back(family.info);
    return list;
  }();
  return all;
}

}  // namespace kvcc::scheme_parts
