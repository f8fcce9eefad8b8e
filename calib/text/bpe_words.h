// Byte pair encoding of one word, from bytes (GPT-2) or from characters (SentencePiece's vocabularies).
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "calib/text/word_model.h"

namespace kvcc {

/// Merges neighbours in order of rank, leftmost first among equals, until none is left: R. Sennrich et al., "Neural
/// Machine Translation of Rare Words with Subword Units", 2016. O(n log n) in the length of the word.
class BpeWords : public WordModel {
 public:
  /// Keeps a reference to spec. Throws Error(bad_input) when a merge's result is not in the vocabulary.
  explicit BpeWords(const TokenizerSpec& spec);

  /// `word`: any bytes if spec.byte_level, else well-formed UTF-8.
  void encode(std::string_view word, std::vector<int32_t>& out) const override;
  void encode_byte(unsigned char byte, std::vector<int32_t>& out) const override;
  std::string text(int32_t id) const override;
  int64_t size() const override { return static_cast<int64_t>(spec_.tokens.size()); }

 private:
  struct Merge {
    int32_t rank, id;
  };
  struct Symbol {
    int32_t id, previous, next;  // neighbours by index, -1: none; id -1: merged into the one before
  };
  const Merge* merge(int32_t left, int32_t right) const;
  std::vector<Symbol> split(std::string_view word) const;
  void merge_all(std::vector<Symbol>& symbols) const;

  const TokenizerSpec& spec_;
  int32_t byte_ids_[256];
  std::unordered_map<std::string_view, int32_t> ids_;  // of the bytes of tokens that BPE can make; views into spec_
  std::vector<uint64_t> keys_;                         // open addressing: left << 32 | right, kEmpty where free
  std::vector<Merge> merges_;
  uint64_t mask_ = 0;
};

}  // namespace kvcc
