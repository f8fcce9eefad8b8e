// What turns one word into ids: BPE, Unigram, or SentencePiece's library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "calib/text/tokenizer_spec.h"

namespace kvcc {

class WordModel {
 public:
  virtual ~WordModel() = default;
  /// Appends the ids of `word`.
  virtual void encode(std::string_view word, std::vector<int32_t>& out) const = 0;
  /// Appends the token of one byte by itself, or what stands for a byte without token.
  virtual void encode_byte(unsigned char byte, std::vector<int32_t>& out) const = 0;
  /// The text of a token of the model's own vocabulary; ids without token give "".
  virtual std::string text(int32_t id) const = 0;
  virtual int64_t size() const = 0;  ///< of its vocabulary
};

/// These keep a reference to spec. Throw Error(bad_input) for what cannot be a vocabulary.
std::unique_ptr<WordModel> make_bpe(const TokenizerSpec& spec);
std::unique_ptr<WordModel> make_unigram(const TokenizerSpec& spec);
std::unique_ptr<WordModel> make_sentencepiece(const TokenizerSpec& spec);

/// Whether merges can be made across the border of two characters at all: only if some token has them side by side.
/// Cutting a text elsewhere changes none of its ids.
class Borders {
 public:
  explicit Borders(const TokenizerSpec& spec);
  /// End of the part that begins at `at`: the next border that no token spans, or the end of the text.
  size_t part_end(std::string_view text, size_t at) const;

 private:
  std::vector<uint64_t> pairs_;           // a bit a hash of two characters: one too many only joins parts
  std::unordered_set<uint32_t> singles_;  // characters that are tokens
  bool fuses_ = false;                    // unknown characters side by side become one token
  bool any_ = false;                      // some border may be cut at all
};

}  // namespace kvcc
