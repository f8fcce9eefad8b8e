// The verbs of kvcc: help, the nearest right verb and shell completion come from this one list.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace kvcc::cli {

struct Verb {
  const char* name;
  const char* meaning;
  bool torch;  ///< its program, or one that it starts, loads libtorch and is absent from builds without it
};

std::span<const Verb> verbs();
std::vector<std::string> verb_names();

/// Script for `shell`, "bash" or "zsh". Throws Error(usage).
std::string completion_script(const std::string& shell);

}  // namespace kvcc::cli
