// The kinds of tokenizers that can be read, for people (`kvcc models`).
#pragma once

#include <string>
#include <vector>

namespace kvcc {

struct TokenizerKind {
  std::string name;      ///< "byte-level BPE"
  std::string files;     ///< where it is read from
  std::string rules;     ///< what of it is known
  std::string verified;  ///< how
};

const std::vector<TokenizerKind>& tokenizer_kinds();

}  // namespace kvcc
