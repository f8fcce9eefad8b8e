// Text to token ids and back: byte-level BPE, BPE of characters and Unigram with byte fallback, SentencePiece's; from
// tokenizer.json, tokenizer.model or GGUF metadata. O(n log n) in the text, whatever its words.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/weights/model_files.h"

namespace kvcc {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids of `text`, added and special tokens recognised, no BOS. Each invalid UTF-8 byte is a byte token by itself, but
  /// U+FFFD where SentencePiece normalises a text as a whole. What the vocabulary has no token for becomes the unknown
  /// token where the file names one, else it is left out (as PyPI tokenizers does; SmolLM2 has none for eight control
  /// and lead bytes and those never in UTF-8). A text of more than 512 MiB is refused where SentencePiece normalises
  /// it; nothing else throws on content. `progress` (may be empty) gets bytes done, from time to time.
  virtual std::vector<int32_t> encode(std::string_view text,
                                      const std::function<void(size_t)>& progress = {}) const = 0;
  /// The texts of the tokens in a row: with the space that SentencePiece's vocabularies put before a text.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// A control token, which is no text: end of text, beginning of a turn.
  virtual bool is_special(int32_t id) const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t bos_id() const = 0;      ///< -1: none
  virtual bool adds_bos() const = 0;       ///< the model's own policy, for --bos auto
  virtual std::string sha256() const = 0;  ///< of everything that decides the ids
};

/// Throws Error(bad_input) for a tokenizer or pre-tokenizer that is not known, naming it and the known ones; hint:
/// --ids FILE.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerSource& source);

}  // namespace kvcc
