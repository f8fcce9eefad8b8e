// What a tokenizer is made of, whichever file it came from. Loaders fill it, the pipeline runs it: added tokens are
// taken out of the text, normalizers change what lies between, stages cut it into words, a model gives their ids.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calib/text/charsmap.h"
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
  bool normalized = false;              ///< looked for after the others, normalised, in the normalised text
};

/// One step of changing the text, named as tokenizer.json names them.
struct NormalizerStep {
  enum class Kind : uint8_t {
    nfc,
    nfd,
    nfkc,
    nfkd,
    lowercase,
    strip_accents,
    strip,
    nmt,
    prepend,
    replace,
    replace_regex,
    precompiled
  };
  Kind kind = Kind::nfc;
  std::string pattern, content;           ///< replace, replace_regex: both; prepend: content
  bool left = false, right = false;       ///< strip
  std::shared_ptr<const Charsmap> table;  ///< precompiled
};

/// What becomes of the places where a splitting pattern matches.
enum class Behaviour : uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

/// One step of cutting text into words.
struct SplitStage {
  std::string pattern;  ///< in Oniguruma's dialect, as tokenizer.json has it; "" does not cut
  Behaviour behaviour = Behaviour::isolated;
  bool invert = false;        ///< the gaps between matches take the place of the matches
  std::string space;          ///< what a space becomes before the cutting; "": it stays
  std::string prefix;         ///< put before a word that does not begin with it; "": nothing
  bool prefix_first = false;  ///< only before the first word of the text
};

enum class ModelKind : uint8_t { bpe, unigram, sentencepiece };

struct TokenizerSpec {
  std::string place;  ///< for errors
  ModelKind kind = ModelKind::bpe;
  std::vector<std::string> tokens;  ///< [vocab] "" where the id is unused; bytes if byte_level, else UTF-8
  bool byte_level = false;          ///< BPE starts from bytes, else from characters
  bool byte_fallback = false;  ///< a character that is no token becomes the tokens "<0x00>" to "<0xFF>" of its bytes
  std::vector<std::pair<int32_t, int32_t>> merges;  ///< BPE: in order of rank
  std::vector<double> scores;                       ///< Unigram: [vocab] log probabilities
  std::vector<int32_t> byte_ids;                    ///< Unigram: [256] if the tokens do not tell; -1: none
  bool float_sums =
      false;  ///< Unigram: sums of scores are rounded as sentencepiece 0.2.3 does, else as PyPI tokenizers
  double least_score = std::numeric_limits<double>::quiet_NaN();  ///< Unigram: NaN: that of all tokens
  std::string sentencepiece;      ///< a serialised ModelProto, which has all of the above
  bool normalises_whole = false;  ///< SentencePiece normalises a text as a whole, and cuts it itself
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizers;
  std::vector<SplitStage> stages;
  bool ignore_merges = false;  ///< a word that is a token is taken whole
  int32_t unknown = -1;        ///< for what has no token; -1: it is left out, as PyPI tokenizers does
  bool fuse_unknown = false;   ///< several in a row are one
  int64_t bos_id = -1;
  bool adds_bos = false;
};

/// GPT-2's pattern, which pre-tokenizer "ByteLevel" of tokenizer.json stands for.
inline constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// U+2581, which stands for a space in the vocabularies of SentencePiece.
inline constexpr const char* kSpaceMark = "\xe2\x96\x81";

TokenizerSpec spec_from_gguf(const TokenizerSource& source);
TokenizerSpec spec_from_json(const TokenizerSource& source);
/// Puts a serialised ModelProto into spec, which has a place. Throws Error(bad_input).
void set_sentencepiece(std::string model, TokenizerSpec& spec);
/// Of tokenizer.model with tokenizer_config.json and added_tokens.json where they are.
TokenizerSpec spec_from_sentencepiece(const TokenizerSource& source);

/// SHA-256 of everything in it that decides the ids.
std::string hash_of(const TokenizerSpec& spec);

/// The bytes of a token written in GPT-2's alphabet (each byte one printable character); false when the text has other
/// characters.
bool bytes_of_alphabet(std::string_view text, std::string& bytes);
/// The byte that a token "<0x0A>" stands for; -1: it is no such token.
int byte_of_token(std::string_view token);

/// Refusals of tokenizers have one cure.
Error tokenizer_error(const std::string& place, const std::string& found, const std::string& wanted = "");

}  // namespace kvcc
