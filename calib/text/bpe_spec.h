// What a byte-level BPE tokenizer is made of, whichever file it came from. Loaders fill it, BpeTokenizer runs it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/core/error.h"
#include "formats/weights/model_files.h"

namespace kvcc {

/// A string that is one token wherever it stands in the text.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool lstrip = false, rstrip = false;  ///< swallows the white space before, after it
  bool single_word = false;             ///< only between characters that are not of words
  bool normalized = false;              ///< looked for after the others
};

/// One step of cutting text into words.
struct SplitStage {
  std::string pattern;            ///< in Oniguruma's dialect, as tokenizer.json has it; "" does not cut
  bool keep_gaps = true;          ///< what lies between matches is a word too (behaviour "Isolated"), else dropped
  bool keep_matches = true;       ///< false: matches are dropped ("Removed")
  bool add_prefix_space = false;  ///< puts a space before a word that has none
};

struct BpeSpec {
  std::string place;                                ///< for errors
  std::vector<std::string> tokens;                  ///< [vocab] bytes of each token; "" where the id is unused
  std::vector<std::pair<int32_t, int32_t>> merges;  ///< in order of rank
  std::vector<AddedToken> added;
  std::vector<SplitStage> stages;
  bool ignore_merges = false;  ///< a word that is a token is taken whole
  int32_t unknown = -1;        ///< for bytes that have no token; -1: they are left out, as PyPI tokenizers does
  bool fuse_unknown = false;   ///< several in a row are one
  int64_t bos_id = -1;
  bool adds_bos = false;
};

/// GPT-2's pattern, which pre-tokenizer "ByteLevel" of tokenizer.json stands for.
inline constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

BpeSpec spec_from_gguf(const TokenizerSource& source);
BpeSpec spec_from_json(const TokenizerSource& source);

/// The bytes of a token written in GPT-2's alphabet (each byte one printable character); false when the text has other
/// characters.
bool bytes_of_alphabet(std::string_view text, std::string& bytes);

/// Refusals of tokenizers have one cure.
Error tokenizer_error(const std::string& place, const std::string& found, const std::string& wanted = "");

}  // namespace kvcc
