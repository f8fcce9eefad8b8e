// What tokenizer.ggml.pre of a GGUF file stands for.
#pragma once

#include <string>
#include <vector>

namespace kvcc {

struct GgufPreTokenizer {
  const char* names;                  ///< values of tokenizer.ggml.pre, each between blanks
  std::vector<const char*> patterns;  ///< one stage each, in order; matches and gaps are words
  bool ignore_merges, adds_bos;       ///< adds_bos: where the file does not say
};

/// Throws Error(bad_input) at `place` for a name that is not known, listing those that are.
const GgufPreTokenizer& find_gguf_pre_tokenizer(const std::string& name, const std::string& place);

/// All known names, with commas between.
std::string gguf_pre_tokenizer_names();

}  // namespace kvcc
