// Presets of published systems whose grids need no calibration: a name, and what of it may be varied.
#include <fmt/format.h>

#include <array>
#include <climits>
#include <functional>
#include <utility>

#include "formats/core/scheme_parts.h"

namespace kvcc::scheme_parts {
namespace {

/// What an option of a name sets. A preset's own values are its defaults.
struct Options {
  int group = 0;         ///< -gN
  int residual = 0;      ///< -rN
  int sink = 0;          ///< -sinkN
  int iterations = 0;    ///< -itN
  bool rms = false;      ///< -rms: VarN of tiles divided by their root mean square
  bool fp8 = false;      ///< -fp8: scales in FP8
  bool prod = false;     ///< -prod: one bit less, and the signs of a sketch of what is left
  bool prerope = false;  ///< -prerope: keys before RoPE
};

struct Published {
  std::string name;
  std::string allowed;  ///< options of the name, e.g. "g r sink"
  Options defaults;
  std::function<Scheme(const Options&)> make;
};

struct Family {
  PresetInfo info;
  std::vector<Published> members;
};

TensorScheme integer(int bits, Axis axis, int group, Rounding rounding = Rounding::ends) {
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

Scheme kivi(int bits, const Options& o) {
  return of(integer(bits, Axis::channel_group, o.group), integer(bits, Axis::token_group, o.group), o);
}

Scheme kvarn(int key_bits, int value_bits, const Options& o) {
  const auto normalised = [&](TensorScheme tensor) {
    tensor.rotation = Rotation::hadamard;
    tensor.norm = o.rms ? Norm::varn_rms : Norm::varn;
    tensor.iterations = o.iterations;
    tensor.tile = o.group;
    tensor.half_scales = !o.fp8;
    return tensor;
  };
  return of(normalised(integer(key_bits, Axis::channel_group, o.group)),
            normalised(integer(value_bits, Axis::token_group, 0)), o);
}

Scheme quarot(int bits, const Options& o) {
  const auto turned = [](TensorScheme tensor) {
    tensor.rotation = Rotation::hadamard;
    tensor.clip = 0.95;
    return tensor;
  };
  return of(turned(integer(bits, Axis::token_group, 0, Rounding::zero_inside)),
            turned(integer(bits, Axis::token_group, 0, Rounding::zero)), o);
}

Scheme ggml(int bits, bool turned, const Options& o) {
  TensorScheme key = integer(bits, Axis::token_group, 32, Rounding::ggml), value = key;
  if (turned) {
    key.rotation = Rotation::hadamard;
    value.rotation = Rotation::hadamard_64;
  }
  return of(key, value, o);
}

/// Half of the rotated channels get one bit more when `half` says so.
Scheme turboquant(int bits, bool half, const Options& o) {
  TensorScheme tensor;
  tensor.grid = Grid::lloyd;
  tensor.bits = bits - (o.prod ? 1 : 0);
  tensor.axis = Axis::token_group;
  tensor.rotation = Rotation::random;
  tensor.norm = Norm::head;
  if (half) {
    tensor.wide = 0.5;
    tensor.wide_bits = tensor.bits + 1;
  }
  tensor.sketch = o.prod ? 1 : 0;
  return both(tensor, o);
}

Scheme turboquant_vllm(int bits, const Options& o) {
  TensorScheme key;
  key.grid = Grid::lloyd;
  key.bits = bits;
  key.axis = Axis::token_group;
  key.rotation = Rotation::hadamard;
  key.norm = Norm::head_corrected;
  return of(key, integer(bits, Axis::token_group, 0), o);
}

Scheme polarquant_a(int value_bits, const Options& o) {
  TensorScheme key;
  key.grid = Grid::polar;
  key.bits = 4;
  key.axis = Axis::channel_group;
  key.group = 128;
  return of(key, integer(value_bits, Axis::token_group, 128), o);
}

Scheme polarquant_b(const Options& o) {
  TensorScheme tensor;
  tensor.grid = Grid::angles;
  tensor.bits = 4;
  tensor.axis = Axis::token_group;
  tensor.group = 16;
  tensor.rotation = Rotation::random;
  return both(tensor, o);
}

Scheme qjl(const Options& o) {
  TensorScheme key;
  key.grid = Grid::sign;
  key.bits = 1;
  key.axis = Axis::channel_group;
  key.group = 32;
  key.sketch = 2;
  key.wide = 0.0625;
  key.wide_bits = 1;
  return of(key, integer(2, Axis::token_group, 32), o);
}

/// Keys of two widths, by channel.
Scheme two_widths(double share, int wide_bits, const Options& o) {
  TensorScheme key = integer(2, Axis::channel_group, 128);
  key.wide = share;
  key.wide_bits = wide_bits;
  return of(key, integer(2, Axis::token_group, 128), o);
}

Scheme oscar_norm(const Options& o) {
  TensorScheme key = integer(2, Axis::channel_group, 32, Rounding::zero);
  key.rotation = Rotation::hadamard;
  key.norm = Norm::token;
  TensorScheme value = integer(2, Axis::token_group, 32, Rounding::zero);
  value.rotation = Rotation::hadamard;
  return of(key, value, o);
}

Scheme fp8(const Options& o) {
  TensorScheme tensor;
  tensor.grid = Grid::floating;
  tensor.bits = 8;
  tensor.axis = Axis::tensor;
  return both(tensor, o);
}

/// Options as patterns show them.
constexpr std::array<std::pair<const char*, const char*>, 8> kOptionTexts = {{{"g", "[-gN]"},
                                                                              {"it", "[-itN]"},
                                                                              {"rms", "[-rms]"},
                                                                              {"fp8", "[-fp8]"},
                                                                              {"prod", "[-prod]"},
                                                                              {"prerope", "[-prerope]"},
                                                                              {"r", "[-rN]"},
                                                                              {"sink", "[-sinkN]"}}};

/// PREFIX-BITS for each width.
std::vector<Published> widths(const char* prefix, std::initializer_list<int> bits, const char* allowed,
                              const Options& defaults, Scheme (*make)(int bits, const Options&)) {
  std::vector<Published> members;
  for (const int b : bits) {
    members.push_back(
        {fmt::format("{}-{}", prefix, b), allowed, defaults, [=](const Options& o) { return make(b, o); }});
  }
  return members;
}

std::vector<Published> turboquant_members() {
  std::vector<Published> members;
  for (const auto& [width, bits, half] :
       {std::tuple{"2", 2, false}, {"2.5", 2, true}, {"3", 3, false}, {"3.5", 3, true}, {"4", 4, false}}) {
    members.push_back(
        {fmt::format("turboquant-{}", width), "prod sink r", {}, [bits = bits, half = half](const Options& o) {
           return turboquant(bits, half, o);
         }});
  }
  return members;
}

std::vector<Family> make_families() {
  std::vector<Family> all;
  all.push_back({{"kivi-{2,4}", "kivi-2",
                  "keys per channel of 32 tokens, values per token of 32 channels; the last 128 tokens exact",
                  "KIVI (arXiv 2402.02750); -g128 as in KVarN's comparison"},
                 widths("kivi", {2, 4}, "g r sink", {.group = 32, .residual = 128}, kivi)});
  all.push_back({{"kvarn-{2,k4v2,k4v4}", "kvarn-2",
                  "rotated tiles of 128 tokens, balanced in both directions by 8 rounds of variance normalisation; 128 "
                  "sinks, the incomplete tile exact",
                  "KVarN (arXiv 2606.03458); -rms mends its scale's floor, -fp8 as its appendix D counts"},
                 {}});
  for (const auto& [name, k, v] : {std::tuple{"2", 2, 2}, {"k4v2", 4, 2}, {"k4v4", 4, 4}}) {
    all.back().members.push_back({fmt::format("kvarn-{}", name),
                                  "g it rms fp8 sink",
                                  {.group = 128, .sink = 128, .iterations = 8},
                                  [k = k, v = v](const Options& o) { return kvarn(k, v, o); }});
  }
  all.push_back(
      {{"quarot-{2,3,4}", "quarot-4",
        "each head rotated by Hadamard's matrix, then integer levels per token and head, ends clipped to 0.95",
        "QuaRot (arXiv 2404.00456), its KV cache"},
       widths("quarot", {2, 3, 4}, "sink r", {}, quarot)});
  all.push_back({{"atom-{2,3,4}", "atom-4",
                  "per token in groups of 128 channels with a zero-point that is a code; keys after RoPE as in "
                  "KVQuant's table, -prerope as released",
                  "Atom (arXiv 2310.19102)"},
                 widths("atom", {2, 3, 4}, "g prerope sink r", {.group = 128}, [](int bits, const Options& o) {
                   return both(integer(bits, Axis::token_group, o.group, Rounding::zero_clamped), o);
                 })});
  all.push_back({{"flexgen-{2,3,4}", "flexgen-4", "per token in groups of 64 channels, minimum and inverse scale",
                  "FlexGen (arXiv 2303.06865)"},
                 widths("flexgen", {2, 3, 4}, "g sink r", {.group = 64}, [](int bits, const Options& o) {
                   return both(integer(bits, Axis::token_group, o.group, Rounding::inverse), o);
                 })});
  all.push_back({{"fp8", "fp8", "every element rounded to FP8 E4M3, no scale; above 448 saturates",
                  "OCP 8-bit floating point (arXiv 2209.05433); vLLM's fp8_e4m3 cache with scale 1"},
                 {{"fp8", "sink r", {}, fp8}}});
  all.push_back(
      {{"q{4,8}_0{,-hadamard}", "q8_0",
        "blocks of 32 channels with one fp16 scale; -hadamard: rotated first, as its default since 2026-04-01",
        "llama.cpp's cache types (ggml Q4_0, Q8_0; pull request 21038)"},
       {}});
  for (const int bits : {4, 8}) {
    for (const bool turned : {false, true}) {
      all.back().members.push_back(
          {fmt::format("q{}_0{}", bits, turned ? "-hadamard" : ""), "sink r", {}, [=](const Options& o) {
             return ggml(bits, turned, o);
           }});
    }
  }
  all.push_back({{"turboquant-{2,2.5,3,3.5,4}", "turboquant-3",
                  "each head's vector randomly rotated, scaled to length 1, Lloyd-Max levels; -prod: one bit of them "
                  "is a sketch of the rest; half widths: the first half of the rotated channels gets one bit more",
                  "TurboQuant (arXiv 2504.19874)"},
                 turboquant_members()});
  all.push_back(
      {{"turboquant-vllm-{3,4}", "turboquant-vllm-3",
        "Hadamard instead of a random rotation, decoded keys of length 1; values per token and head, unrotated",
        "vLLM's turboquant_3bit_nc and turboquant_4bit_nc"},
       widths("turboquant-vllm", {3, 4}, "sink r", {}, turboquant_vllm)});
  all.push_back(
      {{"polarquant-a{,-v2}", "polarquant-a",
        "radius and angle of the pairs that RoPE turns, 4 bits each, per pair of 128 tokens; values as KIVI's",
        "PolarQuant (Wu et al., arXiv 2502.00527)"},
       {{"polarquant-a", "r sink", {.residual = 128}, [](const Options& o) { return polarquant_a(4, o); }},
        {"polarquant-a-v2", "r sink", {.residual = 128}, [](const Options& o) { return polarquant_a(2, o); }}}});
  all.push_back(
      {{"polarquant-b", "polarquant-b", "randomly rotated, blocks of 16 channels as a radius and 15 recursive angles",
        "PolarQuant (Han et al., arXiv 2502.02617)"},
       {{"polarquant-b", "sink r", {}, polarquant_b}}});
  all.push_back(
      {{"qjl", "qjl",
        "keys as signs of two random projections a channel, the greatest channels of 32 tokens apart; 2-bit values",
        "QJL (arXiv 2406.03482)"},
       {{"qjl", "r sink", {.residual = 128}, qjl}}});
  all.push_back(
      {{"kitty{,-pro}", "kitty",
        "KIVI in pages of 128 tokens; the keys' greatest 12.5 % (pro: 20 %) of channels get 4 bits; 32 sinks",
        "Kitty (arXiv 2511.18643)"},
       {{"kitty", "r sink", {.residual = 128, .sink = 32}, [](const Options& o) { return two_widths(0.125, 4, o); }},
        {"kitty-pro", "r sink", {.residual = 128, .sink = 32}, [](const Options& o) {
           return two_widths(0.2, 4, o);
         }}}});
  all.push_back(
      {{"kvquant-1%-channels", "kvquant-1%-channels",
        "2-bit groups of 128 with the keys' greatest 1 % of channels in fp16: what KVarN's paper calls KVQuant",
        "KVarN (arXiv 2606.03458), appendix D"},
       {{"kvquant-1%-channels", "r sink", {.residual = 128, .sink = 128}, [](const Options& o) {
           return two_widths(0.01, 16, o);
         }}}});
  all.push_back({{"oscar-norm", "oscar-norm",
                  "rotated by Hadamard's matrix, tokens of all heads scaled to length 1, 2-bit keys per channel of 32 "
                  "tokens, values per token of 32 channels",
                  "OScaR (arXiv 2605.19660)"},
                 {{"oscar-norm", "r sink", {}, oscar_norm}}});
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
    const auto [least, most] = prefix == "g"    ? std::pair(2, 4096)
                               : prefix == "it" ? std::pair(1, 64)
                                                : std::pair(INT_MIN, INT_MAX);
    if (*number < least || *number > most) {
      throw refuse(text, fmt::format("{} is '{}'", word, digits), fmt::format("{} to {}", least, most));
    }
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
