// How presets of published systems are written down: a name, what of it may be varied, and the scheme it makes. For
// presets_*.cc alone, a file a kind of system.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "formats/core/scheme_parts.h"

namespace kvcc::scheme_parts {

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

TensorScheme integer(int bits, Axis axis, int group, Rounding rounding = Rounding::ends);
TensorScheme after_rope(TensorScheme tensor);
/// Keys and values alike; keys where the options say.
Scheme both(const TensorScheme& tensor, const Options& o);
/// Keys after RoPE.
Scheme of(const TensorScheme& key, const TensorScheme& value, const Options& o);
/// PREFIX-BITS for each width.
std::vector<Published> widths(const char* prefix, std::initializer_list<int> bits, const char* allowed,
                              const Options& defaults, Scheme (*make)(int bits, const Options&));

/// KIVI, Kitty, OScaR and what KVarN's paper calls KVQuant: keys in groups of tokens.
std::vector<Family> channel_group_families();
/// QuaRot, Atom, FlexGen, FP8, OSCAR and llama.cpp's types: every token alone.
std::vector<Family> token_families();
/// KVarN.
std::vector<Family> varn_families();
/// TurboQuant, both PolarQuants and QJL: unit vectors, angles and sketches.
std::vector<Family> vector_families();

}  // namespace kvcc::scheme_parts
