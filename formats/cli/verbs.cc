#include "formats/cli/verbs.h"

#include <fmt/format.h>

#include "formats/core/error.h"

namespace kvcc::cli {
namespace {

// Options come from the verb's own --help, so that the script never lags behind.
constexpr const char* kBash = R"sh(# kvcc completion bash >> ~/.bash_completion
_kvcc() {
  local current=${COMP_WORDS[COMP_CWORD]}
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "@verbs@ help completion --version" -- "$current"))
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$(kvcc "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE -e '--[a-z][a-z0-9-]*')" -- "$current"))
  elif [[ ${COMP_WORDS[1]} == help ]]; then
    COMPREPLY=($(compgen -W "@verbs@" -- "$current"))
  else
    COMPREPLY=()
  fi
}
complete -o default -F _kvcc kvcc
)sh";

std::string replace_all(std::string text, const std::string& mark, const std::string& with) {
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + with.size())) {
    text.replace(at, mark.size(), with);
  }
  return text;
}

}  // namespace

std::span<const Verb> verbs() {
  static constexpr Verb kVerbs[] = {
      {"calibrate", "collect, fit, and on request compile and evaluate, with good defaults", true},
      {"collect", "activations and Fisher diagonals of a model on a text", true},
      {"ablate", "perplexity, KL and stability of codebooks against samples, length, text and seed", true},
      {"merge", "joins activations of runs over other text or from other machines", false},
      {"fit", "codebooks, thresholds and scales from activations", false},
      {"refine", "vector codebooks tuned by gradient against the model's own predictions", true},
      {"fit-weights", "quantised weights of a model, alone or for joint evaluation with a cache", true},
      {"compile", "CUDA kernels from a codebook artifact", false},
      {"inspect", "what a file of kvcc holds: provenance, statistics, codebooks", false},
      {"diff", "what changed between two artifacts, head by head", false},
      {"eval", "perplexity, KL and top-1 agreement of schemes, side by side", true},
      {"generate", "text from a model that decodes with the packed cache", true},
      {"export", "a codebook artifact in a format of others", false},
      {"validate", "check files: structure, checksums, ranges and meaning", false},
      {"models", "the architectures and tokenizers that are supported, and how each was verified", false},
      {"schemes", "the presets, or schemes spelt out with their effective bits", false},
      {"data", "data sets by manifest: fetch, list, check", false},
  };
  return kVerbs;
}

std::vector<std::string> verb_names() {
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) names.emplace_back(verb.name);
  return names;
}

std::string completion_script(const std::string& shell) {
  const std::string script = replace_all(kBash, "@verbs@", fmt::format("{}", fmt::join(verb_names(), " ")));
  if (shell == "bash") return script;
  if (shell == "zsh") {
    return "#compdef kvcc\nautoload -U +X bashcompinit && bashcompinit\n" + script.substr(script.find('\n') + 1);
  }
  throw Error(ErrorKind::usage, "completion", fmt::format("unknown shell '{}'", shell), "bash or zsh");
}

}  // namespace kvcc::cli
